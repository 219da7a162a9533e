"""`postroom doctor`: is this deployment in order? (C9)"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import typer

from postroom.cli.checks import Check, Status, examine
from postroom.cli.failures import Exit
from postroom.cli.invocation import Config, DataDir, Invocation, Json, Quiet, invocation
from postroom.cli.output import Mode, cell

app = typer.Typer(add_completion=False)

_MARKS = {Status.PASS: "✓ pass", Status.WARN: "! warn", Status.FAIL: "✗ fail", Status.SKIP: "- skip"}


@app.command()
def doctor(json: Json = False, quiet: Quiet = False, config: Config = None, data_dir: DataDir = None) -> None:
    """Check configuration, data, database, mail store, ports, TLS and names: exit 12 when something is wrong."""
    call = invocation(json, quiet, config, data_dir)
    checks = asyncio.run(examine(call))
    _tell(call, checks)
    if any(check.status is Status.FAIL for check in checks):
        raise typer.Exit(Exit.DOCTOR)


def _tell(call: Invocation, checks: Sequence[Check]) -> None:
    counts = Counter(check.status for check in checks)
    summary = {status.value: counts[status] for status in Status}
    if call.output.mode is not Mode.HUMAN:
        verdict = "fail" if counts[Status.FAIL] else "warn" if counts[Status.WARN] else "pass"
        document = {"checks": [check.document() for check in checks], "summary": summary, "status": verdict}
        call.output.result(document, essential="status")
        return
    call.output.table(("", "check", "detail"), [(_MARKS[one.status], one.name, cell(one.detail)) for one in checks])
    for check in checks:
        if check.fix:
            call.output.line(f"{check.name}: {check.detail}\n  fix: {check.fix}")
    call.output.line(", ".join(f"{count} {status}" for status, count in summary.items() if count))
