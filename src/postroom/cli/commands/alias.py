"""`postroom alias`: addresses without a mailbox, whose mail goes on (decisions, section E; mail-server A6)."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import (
    DEFAULT_LIMIT,
    CursorOption,
    Fetch,
    LimitOption,
    TenantOption,
    find_tenant,
)
from postroom.cli.frame import command, tell_list
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run
from postroom.directory.models import Alias
from postroom.servers import objects

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Aliases: addresses whose mail goes on to others.")


@command(app)
def create(
    call: Invocation,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The address, on a domain of the tenant.")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="Where its mail goes: an address, or a name on the same domain.")
    ],
    tenant: TenantOption = None,
) -> None:
    """Let mail to an address go on to another one, here or elsewhere."""

    async def work(core: Core) -> shapes.Document:
        return objects.alias(await core.aliases.create((await find_tenant(core, tenant)).id, address, target))

    call.output.result(run(call, work))


@command(app, "list")
def list_(
    call: Invocation,
    tenant: TenantOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
) -> None:
    """List the aliases of a tenant, newest first."""

    async def pages(core: Core) -> Fetch[Alias]:
        room = await find_tenant(core, tenant)
        return lambda size, after: core.aliases.page(room.id, limit=size, after=after)

    tell_list(
        call,
        pages,
        objects.alias,
        limit,
        cursor,
        columns=("id", "address", "target", "created_at"),
        empty="No aliases yet: make one with postroom alias create.",
    )


@command(app)
def delete(
    call: Invocation,
    named: Annotated[str, typer.Argument(metavar="ADDRESS|ID", help="The alias's address, or its id.")],
    tenant: TenantOption = None,
) -> None:
    """Take no more mail for an alias; what was taken still goes on."""

    async def work(core: Core) -> shapes.Document:
        room = await find_tenant(core, tenant)
        find = core.aliases.by_address if "@" in named else core.aliases.get
        found = await find(room.id, named)
        await core.aliases.delete(room.id, found.public_id)
        return objects.alias(found)

    gone = run(call, work)
    call.output.result(gone, human=f"{gone['address']} takes no more mail.")
