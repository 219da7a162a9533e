"""`postroom doctor`: is this deployment in order? (C9)"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from postroom.base.settings_values import MAX_PORT
from postroom.cli.checks import NAMES, examine, within
from postroom.cli.failures import Exit, usage
from postroom.cli.frame import command
from postroom.cli.invocation import Invocation
from postroom.cli.output import Mode, cell
from postroom.cli.verdicts import Check, Status

app = typer.Typer(add_completion=False)

SMTP_PORT: Final = 25
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}", re.ASCII)
_PORT: Final = re.compile(r"\d{1,5}", re.ASCII)
_MARKS = {Status.PASS: "✓ pass", Status.WARN: "! warn", Status.FAIL: "✗ fail", Status.SKIP: "- skip"}


@command(app)
def doctor(
    call: Invocation,
    check: Annotated[
        list[str] | None,
        typer.Option(
            "--check", metavar="NAME", help="Only this one, or all before whose dot it stands; may be repeated."
        ),
    ] = None,
    outgoing: Annotated[
        str | None,
        typer.Option("--outgoing", metavar="HOST[:PORT]", help="Try whether mail can leave to there."),
    ] = None,
) -> None:
    """Check configuration, data, database, mail store, queue, sending, ports, TLS and names: exit 12 when something is
    wrong. A relay that is set is signed in to, as for mail; nobody else is connected to but the host of --outgoing.
    """
    for name in check or ():
        if not any(within(known, name) for known in NAMES):
            raise usage(f"--check: there is no check {name!r}", f"There are {', '.join(NAMES)}.")
    checks = asyncio.run(examine(call, only=check or (), outgoing=None if outgoing is None else _host(outgoing)))
    _tell(call, checks)
    if any(one.status is Status.FAIL for one in checks):
        raise typer.Exit(Exit.DOCTOR)


def _host(text: str) -> tuple[str, int]:
    host, colon, port = text.partition(":")
    if not _HOST.fullmatch(host) or (colon and not (_PORT.fullmatch(port) and 0 < int(port) <= MAX_PORT)):
        raise usage(f"--outgoing: {text!r} is not a host such as mx.example.net, or one with a port")
    return host, int(port) if colon else SMTP_PORT


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
