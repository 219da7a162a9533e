"""`postroom tenant`: the tenants of the deployment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable
from typing import Annotated, Any, Final, NoReturn

import orjson
import typer

from postroom.accounts.models import BillingMode, Mode, NewTenant, Tenant, TenantChanges, TenantStatus
from postroom.accounts.permissions import Level
from postroom.accounts.policy import document
from postroom.accounts.service.owners import prepare_owner
from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import DEFAULT_LIMIT, CursorOption, Fetch, LimitOption, find_tenant, read_choice
from postroom.cli.failures import usage
from postroom.cli.frame import command, tell_list
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run
from postroom.db import Connection

STDIN: Final = "-"
MAX_POLICY: Final = 1024 * 1024
"""Bytes of a policy in a file. The largest that holds has lists of some hundred short texts."""

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Tenants: the workspaces that identities belong to.")

NamedTenant = Annotated[str, typer.Argument(metavar="ID|SLUG", help="The tenant.")]
PolicyFile = Annotated[
    str | None,
    typer.Option("--policy-file", metavar="FILE", help="Members of its policy, a JSON object; - is standard input."),
]


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
    policy_file: PolicyFile = None,
    owner_email: Annotated[
        str | None, typer.Option("--owner-email", help="A person who owns it: an address elsewhere.")
    ] = None,
    owner_name: Annotated[str | None, typer.Option("--owner-name", help="Their name.")] = None,
    billing: Annotated[
        str | None,
        typer.Option(
            "--billing-mode", metavar="metered|exempt|disabled", help="Once somebody bills: how it is billed."
        ),
    ] = None,
) -> None:
    """Make a tenant."""
    if owner_name is not None and owner_email is None:
        raise usage("--owner-name without --owner-email")
    kind = read_choice("--mode", mode, Mode)
    assert kind is not None
    new = NewTenant(
        slug=slug,
        name=slug if name is None else name,
        mode=kind,
        address_suffix=suffix,
        is_default=default,
        timezone=timezone,
        policy=None if policy_file is None else _policy_of(policy_file),
        billing_mode=read_choice("--billing-mode", billing, BillingMode),
    )

    async def work(core: Core) -> Tenant:
        if owner_email is None:
            return await core.tenants.create(new)
        owner = await prepare_owner(core.tenants, core.people, owner_email, owner_name)

        async def then(conn: Connection, made: Tenant) -> None:
            await core.people.put_owner(conn, owner, made.id)

        return await core.tenants.create(new, then=then)

    call.output.result(shapes.tenant(run(call, work, create=True)))


@command(app, "list")
def list_(
    call: Invocation,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="active|suspended|erasing|erased", help="Only those that are so."),
    ] = None,
    mode: Annotated[str | None, typer.Option("--mode", metavar="live|test", help="Only those of this mode.")] = None,
    partner: Annotated[
        str | None, typer.Option("--partner", metavar="ID", help="Only those of this partner, ptn_….")
    ] = None,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
) -> None:
    """List tenants, newest first."""
    wanted, kind = read_choice("--status", status, TenantStatus), read_choice("--mode", mode, Mode)

    async def pages(core: Core) -> Fetch[Tenant]:
        owner = None if partner is None else (await core.partners.get(partner)).id
        return lambda size, after: core.tenants.search(
            status=wanted, mode=kind, partner_id=owner, limit=size, after=after
        )

    narrowed = wanted is not None or kind is not None or partner is not None
    tell_list(
        call,
        pages,
        shapes.tenant,
        limit,
        cursor,
        columns=("id", "slug", "name", "mode", "status", "address_suffix", "created_at"),
        empty="No such tenants." if narrowed else "No tenants yet: make one with postroom tenant create.",
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
    policy_file: PolicyFile = None,
) -> None:
    """Change a tenant's name, time zone or policy, all or nothing. Members of the policy that the file has not stay as
    they are, and null is the default again.
    """
    if name is None and timezone is None and policy_file is None:
        raise usage("nothing to change", "Give --name, --timezone or --policy-file.")
    policy = None if policy_file is None else _policy_of(policy_file)
    _change(call, named, TenantChanges(name=name, timezone=timezone, policy=policy))


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


def _policy_of(name: str) -> dict[str, Any]:
    """The object that a file holds, or standard input. Raises a usage error when it cannot be had, or is none."""
    shown = "standard input" if name == STDIN else os.fsencode(name).decode(errors="replace")

    def refuse(why: str) -> NoReturn:
        raise usage(f"--policy-file: {shown}: {why}") from None

    try:
        if name == STDIN:
            octets = sys.stdin.buffer.read(MAX_POLICY + 1)
        else:
            with open(name, "rb") as file:
                octets = file.read(MAX_POLICY + 1)
    except (OSError, ValueError) as error:
        refuse((error.strerror if isinstance(error, OSError) else None) or "it cannot be read")
    if len(octets) > MAX_POLICY:
        refuse(f"a policy has at most {MAX_POLICY:,} bytes")
    try:
        found = orjson.loads(octets)
    except orjson.JSONDecodeError as error:
        refuse(f"it is not JSON (line {error.lineno}, column {error.colno})")
    if not isinstance(found, dict):
        refuse("it is not a JSON object")
    return found
