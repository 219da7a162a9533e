"""`postroom demo`: a whole mail server on this machine, with somebody in it, to try things out."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop

from postroom.base import log as base_log
from postroom.cli.failures import Exit, infrastructure, usage
from postroom.cli.invocation import Json, Quiet, invocation
from postroom.cli.output import Output
from postroom.cli.reach import take_commands_lock
from postroom.demo import place, story, welcome
from postroom.demo.place import MAX_BASE, PortsTaken, choose_ports
from postroom.demo.runner import Demo, NotADemo, run

app = typer.Typer(add_completion=False)

LOG_NAME: Final = "postroom.log"


@app.command()
def demo(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help="Keep the demo there; thrown away when not given.")
    ] = None,
    port_base: Annotated[
        int | None,
        typer.Option(
            "--port-base",
            min=1024,
            max=MAX_BASE,
            help="HTTP port; the next four are SMTP, IMAP and submission with STARTTLS and with TLS. [default: 8025 …]",
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Play the story against the demo: exit 0 or 1.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a demo: a mail server with a person, an agent, and some mail. Ctrl-C ends it."""
    call = invocation(json, quiet)
    try:
        ports = choose_ports(port_base)
    except PortsTaken as error:
        raise infrastructure(str(error), "Choose others with --port-base.") from None
    teller = _Teller(call.output)
    try:
        ok = uvloop.run(_demo(data_dir, ports, teller, check=check))
    except NotADemo as error:
        raise usage(str(error), "Give --data-dir another directory, or leave it out.") from None
    if check:
        teller.summary()
    if not ok:
        raise typer.Exit(Exit.BUG)


async def _demo(data_dir: Path | None, ports: place.Ports, teller: _Teller, *, check: bool) -> bool:
    if data_dir is None:
        return await run(None, ports, teller, check=check, up=_nothing)
    lock = await take_commands_lock(data_dir)
    try:
        with _log_file(data_dir):
            return await run(data_dir, ports, teller, check=check, up=lock.release)
    finally:
        lock.release()


def _nothing() -> None:
    return None


@contextlib.contextmanager
def _log_file(data_dir: Path) -> Iterator[None]:
    """The server's log goes to a file beside its data: the terminal is for what people want to read."""
    fd = os.open(data_dir / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "a", encoding="utf-8", buffering=1) as file:
        base_log.configure("info", "text", file)
        try:
            yield
        finally:
            base_log.configure("critical", "text", sys.stderr)


@dataclass(slots=True)
class _Teller:
    """Tells on the terminal: a line for each step; a document at the end for programs."""

    output: Output
    outcomes: list[story.Outcome] = field(default_factory=list)

    def step(self, text: str, seconds: float) -> None:
        self.output.line(f"✓ {text} ({seconds:.1f} s)")

    def outcome(self, outcome: story.Outcome) -> None:
        self.outcomes.append(outcome)
        mark = "✓" if outcome.ok else "✗"
        self.output.line(f"{mark} {outcome.title}: {outcome.note} ({outcome.seconds * 1000:.0f} ms)")

    def ready(self, demo: Demo) -> None:
        document = place.record(demo.cast, demo.ports)
        self.output.result(document, essential="http", human=welcome.text(demo))

    def stopping(self) -> None:
        self.output.note("Stopping …")

    def summary(self) -> None:
        """How the story went."""
        failed = sum(not one.ok for one in self.outcomes)
        steps = [
            {"title": one.title, "ok": one.ok, "seconds": round(one.seconds, 3), "note": one.note}
            for one in self.outcomes
        ]
        human = f"{failed} of {len(steps)} steps went wrong." if failed else f"All {len(steps)} steps went well."
        self.output.result({"ok": not failed, "steps": steps}, essential="ok", human=human)
