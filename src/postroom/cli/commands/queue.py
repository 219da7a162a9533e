"""`postroom queue`: work that is to be done after mail was accepted (B1), and what was given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer

from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import DEFAULT_LIMIT, CursorOption, LimitOption, TenantOption, find_tenant
from postroom.cli.failures import CliError, Exit, usage
from postroom.cli.invocation import Config, DataDir, Invocation, Json, Quiet, invocation
from postroom.cli.queues import DELIVERIES, QUEUES
from postroom.cli.reach import run
from postroom.db import ClaimQueue
from postroom.outbound.models import QueueState
from postroom.outbound.queue import MAX_LIST, NOT_FOUND, AttemptLog, Done, MailQueue, QueueItem
from postroom.outbound.rules import Action
from postroom.sending import dkim_keys_of
from postroom.servers import objects

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Work that is waiting, and work that was given up.")

MAX_RETRY: Final = 10_000
_CONVERT: Final[Mapping[str, Any]] = MappingProxyType({"bigint": int, "integer": int, "text": str})

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help=f"One of {', '.join(QUEUES)}.")]


StateOption = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help=f"Of deliveries: {', '.join(QueueState)}; may be repeated."),
]
IdsArgument = Annotated[list[int], typer.Argument(metavar="ID…", help="Deliveries, as `list deliveries` names them.")]


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(metavar="[deliveries]", help="List mail that leaves.")] = None,
    state: StateOption = None,
    tenant: TenantOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """Count the work of every queue: due, waiting for its time, being done, given up. Or list deliveries."""
    call = invocation(json, quiet, config, data_dir)
    if name is not None:
        if name != DELIVERIES:
            raise usage(f"{name!r} cannot be listed", "Only deliveries can; show tells what other queues gave up.")
        _list_deliveries(call, state, tenant, limit, cursor)
        return
    if state or tenant is not None or cursor is not None:
        raise usage("--state, --tenant and --cursor are for queue list deliveries")

    async def work(core: Core) -> list[shapes.Document]:
        now = core.clock.now()
        async with core.database.acquire() as conn:
            return [shapes.queue(name, await queue.counts(conn, now=now)) for name, queue in QUEUES.items()]

    rows = run(call, work)
    call.output.listing(rows, ("queue", "due", "waiting", "claimed", "parked", "oldest_due"), essential="queue")


@app.command()
def stats(json: Json = False, quiet: Quiet = False, config: Config = None, data_dir: DataDir = None) -> None:
    """Figures of mail: deliveries by state, notices to be written, what came and went since the day began (UTC)."""
    call = invocation(json, quiet, config, data_dir)

    async def work(core: Core) -> shapes.Document:
        return objects.queue_statistics(await _mail_queue(core).statistics())

    call.output.result(run(call, work), essential="pending")


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="QUEUE|ID", help=f"One of {', '.join(QUEUES)}, or the id of a delivery.")
    ],
    limit: LimitOption = 100,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """Show what a queue gave up, newest first; or all about one delivery, as `list deliveries` names it, and its
    attempts.
    """
    call = invocation(json, quiet, config, data_dir)
    if name.isdecimal():
        _show_delivery(call, int(name[:19]))
        return
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
    """Make work that was given up due again, with a clean slate. Deliveries that failed or were canceled are sent anew
    (not an agent's: it sends again itself), those that wait are tried at once.
    """
    call = invocation(json, quiet, config, data_dir)
    if name == DELIVERIES and keys and all(key.isdecimal() for key in keys):
        _act(call, Action.RETRY, [int(key[:19]) for key in keys])
        return
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


@app.command()
def cancel(
    ids: IdsArgument, json: Json = False, quiet: Quiet = False, config: Config = None, data_dir: DataDir = None
) -> None:
    """Stop deliveries that wait. What is being delivered right now cannot be stopped."""
    _act(invocation(json, quiet, config, data_dir), Action.CANCEL, ids)


@app.command()
def hold(
    ids: IdsArgument, json: Json = False, quiet: Quiet = False, config: Config = None, data_dir: DataDir = None
) -> None:
    """Keep deliveries from being tried until they are released."""
    _act(invocation(json, quiet, config, data_dir), Action.HOLD, ids)


@app.command()
def release(
    ids: IdsArgument, json: Json = False, quiet: Quiet = False, config: Config = None, data_dir: DataDir = None
) -> None:
    """Let deliveries go that were held."""
    _act(invocation(json, quiet, config, data_dir), Action.RELEASE, ids)


_REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "not_found": "there is no such delivery",
        "ended": "it does not wait any more",
        "delivering": "it is being delivered",
        "uncertain": "it may have been delivered, and is never sent again",
        "sent": "it was sent",
        "agent": "an agent sent it, and has to send it again itself",
        "bounce_pending": "its sender is just being told that it failed",
        "bytes_gone": "its bytes are gone",
    }
)


def _mail_queue(core: Core) -> MailQueue:
    return MailQueue(
        core.database,
        core.blobs,
        core.clock,
        core.ids,
        sign=dkim_keys_of(core).sign,
        changed=lambda ref, modseq: core.live.changed(ref.mailbox_id, modseq),
        wake=lambda: None,  # the servers look every few seconds
        keep=timedelta(days=core.settings.queue.retention_days),
    )


def _list_deliveries(
    call: Invocation, state: list[str] | None, tenant: str | None, limit: int, cursor: str | None
) -> None:
    if unknown := set(state or ()) - set(QueueState):
        raise usage(f"--state: there is no state {sorted(unknown)[0]!r}", f"States are {', '.join(QueueState)}.")
    if cursor is not None and not cursor.isdecimal():
        raise usage("--cursor: this is not a cursor of this list")
    states = [QueueState(one) for one in state] if state else None

    async def work(core: Core) -> Sequence[QueueItem]:
        key = None if tenant is None else (await find_tenant(core, tenant)).id
        return await _mail_queue(core).list(
            states=states, tenant=key, limit=min(limit, MAX_LIST - 1) + 1, after=int((cursor or "0")[:18])
        )

    found = run(call, work)
    shown = found[: min(limit, MAX_LIST - 1)]
    columns = ("id", "state", "message_id", "recipient", "tries", "smtp_code", "next_attempt_at", "remote_mx")
    following = str(shown[-1].id) if len(found) > len(shown) else None
    rows = [shapes.delivery(item) for item in shown]
    call.output.listing(rows, columns, next_cursor=following, empty="No mail is on its way.")


def _show_delivery(call: Invocation, delivery_id: int) -> None:
    async def work(core: Core) -> tuple[QueueItem, Sequence[AttemptLog]] | None:
        return await _mail_queue(core).get(delivery_id)

    found = run(call, work)
    if found is None:
        raise CliError("cli_not_found", _REFUSED["not_found"], exit=Exit.NOT_FOUND)
    item, attempts = found
    call.output.result(shapes.delivery(item) | {"attempts": [objects.queue_attempt(one) for one in attempts]})


def _act(call: Invocation, action: Action, ids: list[int]) -> None:
    """Do it to each and tell what became of each; the exit code is that of the first that was refused."""
    if any(not 0 < one < 2**63 for one in ids):
        raise usage("ids of deliveries are positive numbers")

    async def work(core: Core) -> Sequence[Done]:
        return await _mail_queue(core).act(action, ids)

    done = run(call, work)
    rows = [
        {"id": one.id, "done": one.refused is None, "why": None if one.refused is None else _REFUSED[one.refused]}
        for one in done
    ]
    call.output.listing(rows, ("id", "done", "why"))
    refused = next((one.refused for one in done if one.refused is not None), None)
    if refused is not None:
        raise typer.Exit(Exit.NOT_FOUND if refused == NOT_FOUND else Exit.CONFLICT)


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
