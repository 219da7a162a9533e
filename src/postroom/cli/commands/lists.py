"""`postroom list`: whom a tenant wants mail from or to, and whom not (rest-api §5.16)."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.accounts.models import Tenant
from postroom.app import Core
from postroom.base.errors import PostroomError
from postroom.cli import shapes
from postroom.cli.arguments import (
    DEFAULT_LIMIT,
    CursorOption,
    LimitOption,
    TenantOption,
    collect,
    find_tenant,
    read_choice,
)
from postroom.cli.frame import command
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run
from postroom.directory import ListDirection, ListKind
from postroom.directory.lists import normalised
from postroom.servers import objects

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Sender lists: whom a tenant wants mail from or to, and whom not."
)

DirectionArgument = Annotated[str, typer.Argument(metavar="receive|send", help="Mail that comes, or mail that goes.")]
KindArgument = Annotated[str, typer.Argument(metavar="allow|block", help="Whether it is wanted.")]
EntryArgument = Annotated[str, typer.Argument(metavar="ENTRY", help="An address, or @DOMAIN for everybody there.")]


@command(app, "list")
def list_(
    call: Invocation,
    direction: DirectionArgument,
    kind: KindArgument,
    tenant: TenantOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
) -> None:
    """List the entries of one list, newest first."""
    way, sort = _named(direction, kind)

    async def work(core: Core) -> tuple[list[shapes.Document], str | None]:
        room = await _room(core, tenant)
        found, following = await collect(
            lambda size, after: core.lists.page(room.id, way, sort, limit=size, after=after),
            lambda one: (one.created_at, one.entry),
            limit,
            cursor,
        )
        return [objects.list_entry(one) for one in found], following

    rows, following = run(call, work)
    columns = ("entry", "note", "created_at")
    call.output.listing(rows, columns, next_cursor=following, essential="entry", empty="Nobody is on this list.")


@command(app)
def add(
    call: Invocation,
    direction: DirectionArgument,
    kind: KindArgument,
    entry: EntryArgument,
    note: Annotated[str | None, typer.Option("--note", help="Why it is there; without one, none.")] = None,
    tenant: TenantOption = None,
) -> None:
    """Put somebody on a list, or change the note of who is on it."""
    way, sort = _named(direction, kind)

    async def work(core: Core) -> shapes.Document:
        return objects.list_entry(await core.lists.put((await _room(core, tenant)).id, way, sort, entry, note))

    added = run(call, work)
    call.output.result(added, essential="entry", human=f"{added['entry']} is on {way.value}/{sort.value}.")


@command(app)
def remove(
    call: Invocation,
    direction: DirectionArgument,
    kind: KindArgument,
    entry: EntryArgument,
    tenant: TenantOption = None,
) -> None:
    """Take somebody off a list."""
    way, sort = _named(direction, kind)

    async def work(core: Core) -> shapes.Document:
        await core.lists.delete((await _room(core, tenant)).id, way, sort, entry)
        return {"direction": way.value, "kind": sort.value, "entry": normalised(entry)}

    gone = run(call, work)
    call.output.result(gone, essential="entry", human=f"{gone['entry']} is on {way.value}/{sort.value} no more.")


def _named(direction: str, kind: str) -> tuple[ListDirection, ListKind]:
    way, sort = read_choice("DIRECTION", direction, ListDirection), read_choice("KIND", kind, ListKind)
    assert way is not None
    assert sort is not None
    return way, sort


async def _room(core: Core, named: str | None) -> Tenant:
    """As `find_tenant`; of a tenant that is gone nothing is kept any more, and nothing new."""
    room = await find_tenant(core, named)
    if room.status.is_gone:
        raise PostroomError("tenant_not_found")
    return room
