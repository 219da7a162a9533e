"""`postroom address`: the addresses of an identity over time (inbound §4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from postroom.accounts.models import PLATFORM_SCOPE, tenant_scope
from postroom.app import Core
from postroom.base.errors import PostroomError
from postroom.cli import shapes
from postroom.cli.arguments import DEFAULT_LIMIT, CursorOption, Fetch, LimitOption, find_identity
from postroom.cli.frame import command, tell_list
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run
from postroom.directory.models import HostedAddress, Identity
from postroom.directory.rules import DEFAULT_RETIRE_DAYS, MAX_RETIRE_DAYS

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Addresses of an identity, over time.")

IdentityArgument = Annotated[str, typer.Argument(metavar="IDENTITY", help="Its id (idn_…), or an address of it.")]
AddressArgument = Annotated[str, typer.Argument(metavar="ADDRESS", help="The address, or its id (adr_…).")]


@command(app, "list")
def list_(
    call: Invocation, named: IdentityArgument, limit: LimitOption = DEFAULT_LIMIT, cursor: CursorOption = None
) -> None:
    """List the addresses of an identity in every state, newest first."""
    shown: list[Identity] = []

    async def pages(core: Core) -> Fetch[HostedAddress]:
        shown.append(await find_identity(core, named))
        scope = tenant_scope(shown[0].tenant_id)
        return lambda size, after: core.addresses.page(scope, shown[0].public_id, limit=size, after=after)

    tell_list(
        call,
        pages,
        lambda one: shapes.address(shown[0], one),
        limit,
        cursor,
        columns=("id", "address", "role", "status", "retire_at", "created_at"),
        empty="It has no addresses any more.",
    )


@command(app)
def add(
    call: Invocation,
    named: IdentityArgument,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The address, on a domain of its tenant.")],
) -> None:
    """Give an identity another address; it receives as soon as its domain does."""

    async def work(core: Core) -> shapes.Document:
        identity = await find_identity(core, named)
        local, _, domain = address.rpartition("@")
        domain_id = await core.addresses.domain_id(identity.tenant_id, domain)
        added = await core.addresses.add(tenant_scope(identity.tenant_id), identity.public_id, local, domain_id)
        return shapes.address(identity, added)

    added = run(call, work)
    receives = "receives" if added["status"] == "active" else "receives as soon as its domain does"
    call.output.result(added, human=f"{added['address']} {receives}.")


@command(app)
def promote(
    call: Invocation,
    named: AddressArgument,
    days: Annotated[
        int,
        typer.Option(
            "--retire-previous-after-days",
            min=0,
            max=MAX_RETIRE_DAYS,
            help="How long the address that was primary goes on receiving; 0 is until now.",
        ),
    ] = DEFAULT_RETIRE_DAYS,
) -> None:
    """Make an address the one that its identity writes from. The one before retires."""
    after = _change(call, named, lambda core, one, at: core.addresses.promote(PLATFORM_SCOPE, one, at, days))
    call.output.result(shapes.identity(after), human=f"New mail is written from {after.primary.address}.")


@command(app)
def retire(
    call: Invocation,
    named: AddressArgument,
    days: Annotated[
        int,
        typer.Option("--after-days", min=0, max=MAX_RETIRE_DAYS, help="How long it goes on receiving; 0 is until now."),
    ] = DEFAULT_RETIRE_DAYS,
) -> None:
    """Let an address receive for a while longer, and then never again."""
    after = _change(call, named, lambda core, one, at: core.addresses.retire(PLATFORM_SCOPE, one, at, days))
    call.output.result(shapes.identity(after), human="It receives until then." if days else "It receives nothing more.")


@command(app)
def rollback(call: Invocation, named: IdentityArgument) -> None:
    """Take the newest promotion of an identity back: the address that was primary before is so again."""

    async def work(core: Core) -> Identity:
        return await core.addresses.roll_back(PLATFORM_SCOPE, (await find_identity(core, named)).public_id)

    after = run(call, work)
    call.output.result(shapes.identity(after), human=f"New mail is written from {after.primary.address} again.")


@command(app)
def remove(call: Invocation, named: AddressArgument) -> None:
    """Remove an address that still waits for its domain, so has never received anything."""

    async def work(core: Core) -> shapes.Document:
        identity, address = await _find(core, named)
        await core.addresses.remove_pending(PLATFORM_SCOPE, identity.public_id, address.public_id)
        return shapes.address(identity, address)

    gone = run(call, work)
    call.output.result(gone, human=f"{gone['address']} is removed.")


def _change(call: Invocation, named: str, change: Callable[[Core, str, str], Awaitable[Identity]]) -> Identity:
    async def work(core: Core) -> Identity:
        identity, address = await _find(core, named)
        return await change(core, identity.public_id, address.public_id)

    return run(call, work)


async def _find(core: Core, named: str) -> tuple[Identity, HostedAddress]:
    """An address by itself or its id. Raises `address_not_found`."""
    if "@" in named:
        identity = await core.identities.by_address(PLATFORM_SCOPE, named)
    else:
        identity = await core.identities.by_address_id(PLATFORM_SCOPE, named)
    for one in identity.addresses:
        if named.lower() == one.address or named == one.public_id:
            return identity, one
    raise PostroomError("address_not_found")
