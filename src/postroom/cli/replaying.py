"""Having events sent again: one operation, which is a verb of webhooks and of events (events-webhooks-errors §10)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Final, TypeVar

import typer

from postroom.accounts.audit import HOST
from postroom.app import Core, open_client, webhooks_of
from postroom.base.ids import is_id
from postroom.cli.arguments import read_choice, read_time
from postroom.cli.failures import usage
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run
from postroom.events.webhooks.models import AttemptStatus
from postroom.events.webhooks.service import Webhooks
from postroom.events.webhooks.windows import MAX_EVENTS, MAX_IDS, Asked, ByIds, ByWindow

T = TypeVar("T")

EVENT: Final = "evt_"

StatusOption = Annotated[
    str | None, typer.Option("--status", metavar="succeeded|failed|dead", help="Only those that ended so.")
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help=f"What happened since then, up to {MAX_EVENTS:,} events."),
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="And before then.")]
NAMED_HELP: Final = f"An event, evt_…; up to {MAX_IDS}."


def with_webhooks(call: Invocation, work: Callable[[Core, Webhooks], Awaitable[T]]) -> T:
    """Run *work* with the deployment's webhooks, to its end."""

    async def inner(core: Core) -> T:
        client = await open_client(core)
        try:
            return await work(core, webhooks_of(core, client))
        finally:
            await client.aclose()

    return run(call, inner)


def replay(
    call: Invocation,
    webhook: str,
    events: list[str] | None,
    since: str | None,
    until: str | None,
    status: str | None,
) -> None:
    """Queue the events that are named, or those of a window, for a webhook once more, and tell how many. Raises a
    usage error for what names neither or both.
    """
    named = tuple(dict.fromkeys(events or ()))
    asked = _asked(named, since, until, status)

    async def work(core: Core, webhooks: Webhooks) -> int:
        return await webhooks.replays.replay(None, webhook, asked, by=HOST)

    queued = with_webhooks(call, work)
    told = f"{queued} event{'' if queued == 1 else 's'} will be sent to {webhook} again."
    if queued < len(named):
        told += f" {len(named) - queued} will not: not kept any more, or not what it is told of."
    call.output.result({"queued": queued}, essential="queued", human=told)


def _asked(named: tuple[str, ...], since: str | None, until: str | None, status: str | None) -> Asked:
    if bool(named) == (since is not None):
        raise usage("name events, or a window by --since", "Events have ids such as evt_…; see --help.")
    if since is None:
        if until is not None or status is not None:
            raise usage("--until and --status narrow a window, which begins with --since")
        for one in named:
            read_event(one)
        return ByIds(named)
    begin, end = read_time(since, "--since"), read_moment("--until", until)
    if end is not None and end <= begin:
        raise usage("--until: nothing is before it, and at or after --since")
    return ByWindow(begin, end, read_choice("--status", status, AttemptStatus))


def read_event(text: str) -> str:
    """An event's id. Raises a usage error for anything else."""
    if not is_id(EVENT, text):
        raise usage(f"{text!r} is not the id of an event, evt_…", "postroom events list shows them.")
    return text


def read_moment(option: str, text: str | None) -> datetime | None:
    """The time that an option names, if it was given."""
    return None if text is None else read_time(text, option)
