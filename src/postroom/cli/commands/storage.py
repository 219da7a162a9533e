"""`postroom storage`: the bytes of messages (mail-server E7)."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Annotated, Final

import typer

from postroom.app import Core
from postroom.blobs.maildir import SWEEP_AGE_SECONDS
from postroom.blobs.store import StorageError
from postroom.cli.failures import infrastructure
from postroom.cli.invocation import Config, DataDir, Json, Quiet, invocation
from postroom.cli.reach import run
from postroom.mailbox.sweep import LEAST_AGE, BlobSweep, Swept
from postroom.outbound.wires import STORED

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Where the bytes of messages are.")

HOURS: Final = LEAST_AGE // timedelta(hours=1)


@app.callback()
def _storage() -> None:
    """A group even while it has one command."""


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    hours: Annotated[
        int, typer.Option("--older-than", metavar="HOURS", min=HOURS, max=24 * 3650, help="Keep what is younger.")
    ] = HOURS,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """Remove bytes that belong to no message. Servers do it by themselves when they are 15 days old."""
    call = invocation(json, quiet, config, data_dir)
    began = time.monotonic()

    async def work(core: Core) -> tuple[Swept, int]:
        sweep = BlobSweep(core.database, core.blobs, core.clock, STORED)
        swept = await sweep.collect(timedelta(hours=hours), dry_run=dry_run)
        return swept, await core.blobs.sweep(SWEEP_AGE_SECONDS, dry_run=dry_run)

    try:
        swept, scratch = run(call, work)
    except StorageError as error:
        raise infrastructure(f"the blob store failed: {error.reason}", "See postroom doctor.") from error
    document = {
        "dry_run": dry_run,
        "looked_at": swept.keys,
        "removed_blobs": swept.removed,
        "freed_bytes": swept.octets,
        "removed_scratch": scratch,
        "unknown": swept.unknown,
        "duration_ms": int((time.monotonic() - began) * 1000),
    }
    done = "would be removed" if dry_run else "removed"
    human = (
        f"{swept.keys} looked at: {swept.removed} that belong to no message {done} ({swept.octets} bytes), "
        f"and {scratch} left by interrupted writes."
    )
    if swept.unknown:
        human += f" {swept.unknown} of a kind that is not known here were left alone."
    call.output.result(document, essential="removed_blobs", human=human)
