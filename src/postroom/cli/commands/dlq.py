"""`postroom dlq`: work that was given up (edge J8)."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.app import Core
from postroom.base.errors import PostroomError
from postroom.cli import shapes
from postroom.cli.failures import usage
from postroom.cli.frame import command
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run
from postroom.outbound.dead_letters import DeadLetter, DeadLetters, DeadQueue, State
from postroom.sending import tell_workers
from postroom.servers import objects

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Work that was given up, and beginning it anew.")

_PAGE = 100
MAX_SHOWN = 1000

QueueOption = Annotated[str | None, typer.Option("--queue", metavar="outbound|index|…", help="Of this queue alone.")]


def _dead(core: Core) -> DeadLetters:
    return DeadLetters(core.database, core.clock, core.ids, lambda: tell_workers(core))


@command(app, "list")
def list_(
    call: Invocation,
    queue: QueueOption = None,
    status: Annotated[str, typer.Option("--status", metavar="open|redriven", help="Which.")] = "open",
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="ID", help="Of this tenant alone, ten_….")] = None,
) -> None:
    """List what was given up in the last fourteen days, oldest first."""
    if status not in tuple(State):
        raise usage(f"--status: {status!r} is not open or redriven")
    chosen = _queue(queue)

    async def work(core: Core) -> list[shapes.Document]:
        return [objects.dead_letter(one) for one in await _all(core, chosen, State(status), tenant)]

    columns = ("id", "queue", "kind", "tenant_id", "first_seen_at", "redriven_at", "redrive_count")
    call.output.listing(run(call, work), columns, empty="Nothing was given up.")


@command(app)
def redrive(
    call: Invocation,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Items, dlq_….")] = None,
    queue: QueueOption = None,
) -> None:
    """Begin work anew: the items that are named, or all open ones of a queue."""
    if bool(ids) == (queue is not None):
        raise usage("name items, or a queue with --queue")
    chosen = _queue(queue)

    async def work(core: Core) -> list[shapes.Document]:
        wanted = ids or [one.public_id for one in await _all(core, chosen, State.OPEN, None)]
        dead, done, failed = _dead(core), [], None
        for one in wanted:
            try:
                done.append(objects.dead_letter(await dead.redrive(one)))
            except PostroomError as error:
                failed = failed or error  # the others are begun all the same
        if failed is not None:
            raise failed
        return done

    call.output.listing(run(call, work), ("id", "queue", "kind", "redriven_at", "redrive_count"), empty="Nothing.")


async def _all(core: Core, queue: DeadQueue | None, state: State, tenant: str | None) -> list[DeadLetter]:
    dead, found, after = _dead(core), list[DeadLetter](), None
    while len(found) < MAX_SHOWN:
        page = await dead.page(state=state, queue=queue, tenant=tenant, limit=_PAGE, after=after)
        found += page
        if len(page) < _PAGE:
            break
        after = (page[-1].first_seen_at, page[-1].public_id)
    return found


def _queue(name: str | None) -> DeadQueue | None:
    if name is not None and name not in tuple(DeadQueue):
        raise usage(f"--queue: {name!r} is not one of {', '.join(DeadQueue)}")
    return None if name is None else DeadQueue(name)
