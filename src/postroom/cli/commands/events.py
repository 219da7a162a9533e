"""`postroom events`: what happened, and what happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

import orjson
import typer

from postroom.accounts.models import PLATFORM_SCOPE
from postroom.app import Core
from postroom.base.errors import PostroomError
from postroom.cli import shapes
from postroom.cli.arguments import (
    DEFAULT_LIMIT,
    CursorOption,
    Fetch,
    LimitOption,
    Position,
    find_identity,
    find_tenant,
)
from postroom.cli.failures import usage
from postroom.cli.frame import command, following, tell_list
from postroom.cli.invocation import Invocation
from postroom.cli.output import Mode, dump
from postroom.cli.reach import run
from postroom.cli.replaying import (
    NAMED_HELP,
    SinceOption,
    StatusOption,
    UntilOption,
    read_event,
    read_moment,
    replay,
)
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
    begin = read_moment("--since", since)

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
        int | None,
        typer.Option(
            *("--last", "-n"),
            min=0,
            max=reading.MAX_PAGE,
            help=f"How many of those that there are; {DEFAULT_LAST} when not given.",
        ),
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="All that came after this event, evt_…, instead.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="All that happened from this time on, instead.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on, until Ctrl-C, with what happens.")] = False,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many.")] = None,
) -> None:
    """Show the last events, or all from a place on, oldest first; with --json a document on each line."""
    if sum(one is not None for one in (last, after, since)) > 1:
        raise usage("one of --last, --after and --since")
    kinds, begin = _kinds(types), read_moment("--since", since)
    place = None if after is None else read_event(after)
    start = _Start(DEFAULT_LAST if last is None else last, place, is_timed=begin is not None)

    async def work(core: Core) -> None:
        wanted = await _wanted(core, tenant, identity, kinds, begin)
        feed = Feed(core.database)
        running = asyncio.create_task(feed.run())
        try:
            async with aclosing(_from(core, feed, wanted, start, follow=follow)) as coming:
                shown = 0
                async for told in coming:
                    _tell(call, told)
                    shown += 1
                    if shown == count:
                        return
        finally:
            running.cancel()
            await asyncio.wait([running])

    with following() if follow else nullcontext():
        run(call, work)


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a tail begins: after the event that is named, at the time that the filter names, or with the last few."""

    last: int
    after: str | None
    is_timed: bool


async def _from(core: Core, feed: Feed, wanted: Wanted, start: _Start, *, follow: bool) -> AsyncGenerator[Told]:
    """Events from a place on, oldest first, each once; with *follow* without an end."""
    position = settled = await feed.caught_up()
    if start.after is not None:
        position = await _key_of(core, start.after)
    elif start.is_timed:
        position = 0
    elif start.last:
        async with core.database.acquire() as conn:
            shown = await reading.before(conn, wanted, settled + 1, start.last)
        for told in reversed(shown):
            yield told
    while True:
        while position < settled:
            async with core.database.acquire() as conn:
                shown = await reading.after(conn, wanted, position, settled, reading.MAX_PAGE)
            for told in shown:
                yield told
            position = shown[-1].key if len(shown) == reading.MAX_PAGE else settled
        if not follow:
            return
        await asyncio.sleep(FOLLOW_SECONDS)
        settled = await feed.caught_up()


async def _key_of(core: Core, public_id: str) -> int:
    """The place of an event. Raises `cursor_expired` for one that is kept no more, or never was."""
    async with core.database.acquire() as conn:
        key = await reading.key_of(conn, public_id)
    if key is None:
        raise PostroomError("cursor_expired", message=f"there is no event {public_id}, or it is kept no more")
    return key


@command(app, "replay")
def replay_(
    call: Invocation,
    events: Annotated[list[str] | None, typer.Argument(metavar="[EVENT...]", help=NAMED_HELP)] = None,
    webhook: Annotated[
        str | None, typer.Option("--webhook", metavar="ID", help="The webhook, whk_…, that they are sent to.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    status: StatusOption = None,
) -> None:
    """Send events to a webhook again: those that are named, or those of a window. `tail` shows them here."""
    if webhook is None:
        raise usage(
            "replay sends to a webhook: name it with --webhook",
            "postroom webhooks list shows them. To see events again: postroom events tail --after or --since.",
        )
    replay(call, webhook, events, since, until, status)


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
