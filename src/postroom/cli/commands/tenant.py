"""`postroom tenant`: the tenants of the deployment."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Annotated, Any

import typer

from postroom.accounts.models import Mode, NewTenant, Tenant, TenantChanges, TenantStatus
from postroom.accounts.permissions import Level
from postroom.accounts.policy import document
from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import DEFAULT_LIMIT, CursorOption, Fetch, LimitOption, find_tenant
from postroom.cli.failures import usage
from postroom.cli.frame import command, tell_list
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Tenants: the workspaces that identities belong to.")

NamedTenant = Annotated[str, typer.Argument(metavar="ID|SLUG", help="The tenant.")]


@command(app)
def create(
    call: Invocation,
    slug: Annotated[str, typer.Argument(help="Its short name: 2 to 32 of a-z, 0-9 and -.")],
    name: Annotated[str | None, typer.Option("--name", help="Its full name; the slug when not given.")] = None,
    mode: Annotated[str, typer.Option("--mode", metavar="live|test", help="Whether mail may leave.")] = "live",
    suffix: Annotated[
        str | None, typer.Option("--address-suffix", help="Ends its local parts; .SLUG when not given.")
    ] = None,
    timezone: Annotated[str, typer.Option("--timezone", help="Its time zone.")] = "UTC",
    default: Annotated[bool, typer.Option("--default", help="The one tenant without an address suffix.")] = False,
) -> None:
    """Make a tenant."""
    if mode not in tuple(Mode):
        raise usage(f"--mode: {mode!r} is not live or test")
    new = NewTenant(
        slug=slug,
        name=slug if name is None else name,
        mode=Mode(mode),
        address_suffix=suffix,
        is_default=default,
        timezone=timezone,
    )
    made = run(call, lambda core: core.tenants.create(new), create=True)
    call.output.result(shapes.tenant(made))


@command(app, "list")
def list_(
    call: Invocation,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
) -> None:
    """List tenants, newest first."""

    async def pages(core: Core) -> Fetch[Tenant]:
        return lambda size, after: core.tenants.page(limit=size, after=after)

    tell_list(
        call,
        pages,
        shapes.tenant,
        limit,
        cursor,
        columns=("id", "slug", "name", "mode", "status", "address_suffix", "created_at"),
        empty="No tenants yet: make one with postroom tenant create.",
    )


@command(app)
def show(call: Invocation, named: NamedTenant) -> None:
    """Show a tenant."""
    call.output.result(run(call, lambda core: _shown(find_tenant(core, named))))


@command(app, "set")
def set_(
    call: Invocation,
    named: NamedTenant,
    name: Annotated[str | None, typer.Option("--name", help="Its full name.")] = None,
    timezone: Annotated[str | None, typer.Option("--timezone", help="Its time zone.")] = None,
) -> None:
    """Change a tenant's name or time zone."""
    if name is None and timezone is None:
        raise usage("nothing to change", "Give --name or --timezone.")
    _change(call, named, TenantChanges(name=name, timezone=timezone))


@command(app)
def suspend(call: Invocation, named: NamedTenant) -> None:
    """Suspend a tenant: nothing is sent for it, and mail to it is put off for five days, then refused."""
    _change(call, named, TenantChanges(status=TenantStatus.SUSPENDED))


@command(app)
def resume(call: Invocation, named: NamedTenant) -> None:
    """Lift a suspension, whoever made it. Identities that were paused before it stay so."""
    _change(call, named, TenantChanges(status=TenantStatus.ACTIVE))


def _change(call: Invocation, named: str, changes: TenantChanges) -> None:
    async def work(core: Core) -> shapes.Document:
        tenant = await find_tenant(core, named)
        return shapes.tenant(await core.tenants.update(tenant.id, changes, follow=core.identities.follow_tenant))

    call.output.result(run(call, work))


async def _shown(finding: Awaitable[Tenant]) -> shapes.Document:
    return shapes.tenant(await finding)


@command(app)
def policy(
    call: Invocation,
    named: NamedTenant,
    members: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Such as ai_disclosure.mode=footer; NAME= for the default."),
    ] = None,
    access: Annotated[
        bool, typer.Option("--access", help="Show who may change what: classes, and ceilings for the tenant's keys.")
    ] = False,
) -> None:
    """Show a tenant's policy, or change members of it. What is set here of a number or a switch is also the most that
    others may set it to."""
    changes = _changes(members or [])

    async def work(core: Core) -> shapes.Document:
        tenant = await find_tenant(core, named)
        if changes:
            tenant = await core.tenants.change_policy(tenant.id, changes)
        stance = core.tenants.stance
        shown = document(stance.effective(tenant.policy))
        if access:
            fields = [shapes.access(one) for one in stance.access(Level.TENANT, tenant.policy)]
            return {"policy": shown, "policy_version": tenant.policy_version, "fields": fields}
        return shown

    call.output.result(run(call, work))


def _changes(members: list[str]) -> dict[str, Any]:
    """As a document: `a.b=1` is within the object `a`."""
    changes: dict[str, Any] = {}
    for one in members:
        name, equals, text = one.partition("=")
        if not name or not equals:
            raise usage(f"{one!r} is not NAME=VALUE")
        outer, dot, inner = name.partition(".")
        if dot:
            held = changes.setdefault(outer, {})
            if not isinstance(held, dict):
                raise usage(f"{outer} is given in two ways")
            held[inner] = _value(name, text)
        else:
            changes[outer] = _value(name, text)
    return changes


def _value(name: str, text: str) -> Any:
    """Numbers, lists, `true` and `false` as JSON has them; anything else, and what is a text by its name, as it
    stands.
    """
    if not text:
        return None
    if name.endswith(".text"):
        return text
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, int | float | list | dict) else text
