"""`postroom migrate`: brings the database to the schema of this program, once however many run it (H4)."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from postroom.cli.failures import CliError, Exit, infrastructure
from postroom.cli.frame import command
from postroom.cli.invocation import Invocation
from postroom.cli.reach import is_set_up, reach
from postroom.db import ConnectionTarget, Migration, Migrator

app = typer.Typer(add_completion=False)


@command(app)
def migrate(
    call: Invocation,
    check: Annotated[bool, typer.Option("--check", help="Only say what is pending: exit 10 if anything is.")] = False,
) -> None:
    """Apply pending migrations, in order."""
    applied, pending, version = asyncio.run(_migrate(call, check_only=check))
    if check and pending:
        waiting = ", ".join(_name(one) for one in pending)
        fix = "Run postroom migrate without --check."
        raise CliError("cli_prerequisite", f"pending: {waiting}", exit=Exit.INFRASTRUCTURE, fix=fix)
    names = [_name(one) for one in applied]
    document = {"schema": version, "applied": names, "pending": [_name(one) for one in pending]}
    done = f"Applied {', '.join(names)}." if applied else "Nothing to do."
    call.output.result(document, essential="schema", human=f"{done} The schema is at {version:04}.")


async def _migrate(call: Invocation, *, check_only: bool) -> tuple[tuple[Migration, ...], tuple[Migration, ...], int]:
    """What was applied, what is still pending, and the schema's version."""
    settings = call.settings()
    if check_only and not is_set_up(settings):
        raise infrastructure(f"there is no Postroom in {settings.server.data_dir}", "Check --data-dir.")
    async with reach(settings) as reached:
        migrator = Migrator(ConnectionTarget(reached.url))
        applied = () if check_only else await migrator.run()
        status = await migrator.status()
    return applied, status.pending, max(status.applied, default=0)


def _name(one: Migration) -> str:
    return f"{one.version:04}_{one.name}"
