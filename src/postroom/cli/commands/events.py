"""`postroom events`: what happened, and what happens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

import orjson
import typer

from postroom.accounts.models import PLATFORM_SCOPE
from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import (
    DEFAULT_LIMIT,
    CursorOption,
    Fetch,
    LimitOption,
    Position,
    find_identity,
    find_tenant,
    read_time,
)
from postroom.cli.failures import usage
from postroom.cli.frame import command, tell_list
from postroom.cli.invocation import Invocation
from postroom.cli.output import Mode, dump
from postroom.cli.reach import run
from postroom.events import reading
from postroom.events.feed import Feed
from postroom.events.reading import Told, Wanted
from postroom.events.registry import PUBLIC

app = typer.Typer(no_args_is_help=True, add_completion=False, help="What happened, and what happens.")

FOLLOW_SECONDS: Final = 0.5
DEFAULT_LAST: Final = 10

TenantFilter = Annotated[
    str | None, typer.Option("--tenant", metavar="ID|SLUG", help="Only this tenant's; all when not given.")
]
IdentityFilter = Annotated[
    str | None, typer.Option("--identity", metavar="ID|ADDRESS", help="Only of this identity, by id or address.")
]
TypeFilter = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="TYPE", help="Only of this type, such as message.received; may be repeated."),
]


@command(app, "list")
def list_(
    call: Invocation,
    tenant: TenantFilter = None,
    identity: IdentityFilter = None,
    types: TypeFilter = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="From this time on.")] = None,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
) -> None:
    """List events, newest first, as long as they are kept."""
    kinds = _kinds(types)
    begin = None if since is None else read_time(since, "--since")

    async def pages(core: Core) -> Fetch[Told]:
        wanted = await _wanted(core, tenant, identity, kinds, begin)

        async def fetch(size: int, after: Position | None) -> Sequence[Told]:
            async with core.database.acquire() as conn:
                key = None if after is None else await reading.key_of(conn, after[1])
                if after is not None and key is None:
                    raise usage("--cursor: this is not a cursor of this list")
                return await reading.before(conn, wanted, key, size)

        return fetch

    tell_list(
        call,
        pages,
        _document,
        limit,
        cursor,
        columns=("occurred_at", "type", "identity_id", "sequence", "id"),
        empty="Nothing of that kind happened.",
    )


@command(app, "tail")
def tail(
    call: Invocation,
    tenant: TenantFilter = None,
    identity: IdentityFilter = None,
    types: TypeFilter = None,
    last: Annotated[
        int, typer.Option("--last", "-n", min=0, max=reading.MAX_PAGE, help="How many of those that there are.")
    ] = DEFAULT_LAST,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on, until Ctrl-C, with what happens.")] = False,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many.")] = None,
) -> None:
    """Show the last events, oldest first; with --json a document on each line."""
    kinds = _kinds(types)

    async def work(core: Core) -> None:
        wanted = await _wanted(core, tenant, identity, kinds, None)
        feed = Feed(core.database)
        following = asyncio.create_task(feed.run())
        try:
            await _tail(core, feed, wanted)
        finally:
            following.cancel()
            await asyncio.wait([following])

    async def _tail(core: Core, feed: Feed, wanted: Wanted) -> None:
        left = count
        position = await feed.caught_up()
        async with core.database.acquire() as conn:
            shown = await reading.before(conn, wanted, position + 1, last) if last else []
        shown.reverse()
        while True:
            for told in shown:
                if left == 0:
                    return
                _tell(call, told)
                left = None if left is None else left - 1
            if not follow or left == 0:
                return
            if not shown:
                await asyncio.sleep(FOLLOW_SECONDS)
            settled = await feed.caught_up()
            async with core.database.acquire() as conn:
                shown = await reading.after(conn, wanted, position, settled, reading.MAX_PAGE)
            position = shown[-1].key if len(shown) == reading.MAX_PAGE else settled

    run(call, work)


def _tell(call: Invocation, told: Told) -> None:
    output, document = call.output, _document(told)
    if output.mode is Mode.JSON:
        output.out.write(dump(document) + "\n")
        output.out.flush()
    else:
        whose = document["identity_id"] or document["tenant_id"] or "-"
        output.result(document, human=f"{document['occurred_at']} {told.type} {whose} {told.public_id}")


def _kinds(types: list[str] | None) -> frozenset[str]:
    for kind in types or ():
        if kind not in PUBLIC:
            raise usage(f"--type: there is no {kind!r}", "docs/reference/events.md lists the types.")
    return reading.types_of(types, frozenset(PUBLIC))


async def _wanted(
    core: Core, tenant: str | None, identity: str | None, kinds: frozenset[str], since: datetime | None
) -> Wanted:
    room = None if tenant is None else (await find_tenant(core, tenant)).id
    box = None if identity is None else (await find_identity(core, identity)).public_id
    return Wanted(PLATFORM_SCOPE, kinds, room, box, since)


def _document(told: Told) -> shapes.Document:
    found: shapes.Document = orjson.loads(told.payload)
    return found
