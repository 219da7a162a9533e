"""`postroom tenant`: the tenants of the deployment."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from postroom.accounts.models import Mode, NewTenant, Tenant
from postroom.accounts.policy import document
from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import DEFAULT_LIMIT, CursorOption, Fetch, LimitOption, find_tenant
from postroom.cli.failures import usage
from postroom.cli.frame import command, tell_list
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run
from postroom.directory.sending_controls import SendingControls

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Tenants: the workspaces that identities belong to.")


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
def policy(
    call: Invocation,
    named: Annotated[str, typer.Argument(metavar="ID|SLUG", help="The tenant.")],
    members: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Such as ai_disclosure.mode=footer; NAME= for the default."),
    ] = None,
) -> None:
    """Show a tenant's policy, or change members of it."""
    changes = _changes(members or [])

    async def work(core: Core) -> shapes.Document:
        controls = SendingControls(core.database, core.clock)
        tenant = await find_tenant(core, named)
        held = await (controls.change_policy(tenant.id, changes) if changes else controls.policy(tenant.id))
        return document(held)

    call.output.result(run(call, work))


def _changes(members: list[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for one in members:
        name, equals, text = one.partition("=")
        if not name or not equals:
            raise usage(f"{one!r} is not NAME=VALUE")
        changes[name] = _value(name, text)
    return changes


def _value(name: str, text: str) -> Any:
    """Numbers, `true` and `false` as JSON has them; anything else, and what is a text by its name, as it stands."""
    if not text:
        return None
    if name.endswith(".text"):
        return text
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, int) else text
