"""`postroom queue`: work that is to be done after mail was accepted (B1), and what was given up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer

from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import LimitOption
from postroom.cli.failures import usage
from postroom.cli.invocation import Config, DataDir, Json, Quiet, invocation
from postroom.cli.reach import run
from postroom.db import ClaimQueue
from postroom.mailbox import words
from postroom.worker import SCHEDULES

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Work that is waiting, and work that was given up.")

QUEUES: Final[Mapping[str, ClaimQueue]] = MappingProxyType({"words": words.QUEUE, "schedules": SCHEDULES})
"""Name → the claimed rows. `words` is the text index, `schedules` the periodic work."""
MAX_RETRY: Final = 10_000
_CONVERT: Final[Mapping[str, Any]] = MappingProxyType({"bigint": int, "integer": int, "text": str})

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help=f"One of {', '.join(QUEUES)}.")]


@app.command("list")
def list_(json: Json = False, quiet: Quiet = False, config: Config = None, data_dir: DataDir = None) -> None:
    """Count the work of every queue: due, waiting for its time, being done, given up."""
    call = invocation(json, quiet, config, data_dir)

    async def work(core: Core) -> list[shapes.Document]:
        now = core.clock.now()
        async with core.database.acquire() as conn:
            return [shapes.queue(name, await queue.counts(conn, now=now)) for name, queue in QUEUES.items()]

    rows = run(call, work)
    call.output.listing(rows, ("queue", "due", "waiting", "claimed", "parked", "oldest_due"), essential="queue")


@app.command()
def show(
    name: QueueArgument,
    limit: LimitOption = 100,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """Show what was given up, newest first."""
    call = invocation(json, quiet, config, data_dir)
    queue = _queue(name)

    async def work(core: Core) -> list[shapes.Document]:
        async with core.database.acquire() as conn:
            return [shapes.parked(row) for row in await queue.parked(conn, limit=limit)]

    rows = run(call, work)
    columns = ("key", "parked_at", "attempts", "last_error")
    call.output.listing(rows, columns, essential="key", empty="Nothing was given up.")


@app.command()
def retry(
    name: QueueArgument,
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY…", help="Keys that `show` lists.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything that was given up.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """Make work that was given up due again, with a clean slate."""
    call = invocation(json, quiet, config, data_dir)
    queue = _queue(name)
    if bool(keys) == everything:
        raise usage("name the keys to retry, or --all")
    wanted = [_key(queue, text) for text in keys or ()]

    async def work(core: Core) -> int:
        async with core.database.acquire() as conn:
            chosen = wanted or [row.key for row in await queue.parked(conn, limit=MAX_RETRY)]
            return len(await queue.unpark(conn, chosen, now=core.clock.now()))

    count = run(call, work)
    call.output.result({"queue": name, "retried": count}, essential="retried", human=f"{count} made due again.")


def _queue(name: str) -> ClaimQueue:
    if name not in QUEUES:
        raise usage(f"there is no queue {name!r}", f"The queues are {', '.join(QUEUES)}.")
    return QUEUES[name]


def _key(queue: ClaimQueue, text: str) -> tuple[Any, ...]:
    """The key that `show` printed as *text*."""
    parts, types = text.split("/"), tuple(queue.spec.keys.values())
    try:
        key = tuple(_CONVERT[kind](part) for kind, part in zip(types, parts, strict=True))
    except (ValueError, KeyError):
        key = ()
    if not key or any(isinstance(part, int) and not 0 <= part < 2**63 for part in key):
        raise usage(f"{text!r} is not a key of this queue")
    return key
