"""`postroom alias`: addresses without a mailbox, whose mail goes on (decisions, section E; mail-server A6)."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import (
    DEFAULT_LIMIT,
    CursorOption,
    LimitOption,
    TenantOption,
    collect,
    find_tenant,
)
from postroom.cli.invocation import Config, DataDir, Json, Quiet, invocation
from postroom.cli.reach import run

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Aliases: addresses whose mail goes on to others.")


@app.command()
def create(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The address, on a domain of the tenant.")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="Where its mail goes: an address, or a name on the same domain.")
    ],
    tenant: TenantOption = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """Let mail to an address go on to another one, here or elsewhere."""
    call = invocation(json, quiet, config, data_dir)

    async def work(core: Core) -> shapes.Document:
        return shapes.alias(await core.aliases.create((await find_tenant(core, tenant)).id, address, target))

    call.output.result(run(call, work))


@app.command("list")
def list_(
    tenant: TenantOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """List the aliases of a tenant, newest first."""
    call = invocation(json, quiet, config, data_dir)

    async def work(core: Core) -> tuple[list[shapes.Document], str | None]:
        room = await find_tenant(core, tenant)
        found, following = await collect(
            lambda size, after: core.aliases.page(room.id, limit=size, after=after),
            lambda one: (one.created_at, one.public_id),
            limit,
            cursor,
        )
        return [shapes.alias(one) for one in found], following

    rows, following = run(call, work)
    call.output.listing(
        rows,
        ("id", "address", "target", "created_at"),
        next_cursor=following,
        empty="No aliases yet: make one with postroom alias create.",
    )


@app.command()
def delete(
    named: Annotated[str, typer.Argument(metavar="ADDRESS|ID", help="The alias's address, or its id.")],
    tenant: TenantOption = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """Take no more mail for an alias; what was taken still goes on."""
    call = invocation(json, quiet, config, data_dir)

    async def work(core: Core) -> shapes.Document:
        room = await find_tenant(core, tenant)
        find = core.aliases.by_address if "@" in named else core.aliases.get
        found = await find(room.id, named)
        await core.aliases.delete(room.id, found.public_id)
        return shapes.alias(found)

    gone = run(call, work)
    call.output.result(gone, human=f"{gone['address']} takes no more mail.")
