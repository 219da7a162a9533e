"""Runs the benchmarks: `python -m benchmarks [--quick] [--only NAME …] [--json FILE]`.

Each module runs in a process of its own, one after the other, with a time limit; one that fails is reported and the
others go on. Prints one table, writes a JSON document below `benchmarks/results`. Exit code: 0, or 1 when a module
failed. A target that is missed is shown, and fails nothing: figures depend on the machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import psutil
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .common import PROJECT, RESULTS, Row, kill, tree

MODULES: Final = (
    "mime",
    "dkim",
    "mailauth",
    "smtp_protocol",
    "mailbox",
    "smtp_in",
    "send",
    "imap",
    "rest",
    "control",
    "webhooks",
    "streams",
    "server",
)
BY_NAME: Final = ("imap_growth", "control_scale")
"""Those that run only when they are named: they take long."""
QUICK_SECONDS: Final = 300.0
FULL_SECONDS: Final = 1800.0
CLEAN_UP_SECONDS: Final = 60.0
"""For a module whose time is up to stop the servers it started."""
OUTPUT_BYTES: Final = 4000
MAX_WIDTH: Final = 200


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one module. `error` is empty when it ended well; `load` are load averages before and after."""

    module: str
    seconds: float
    load: tuple[float, float]
    rows: list[Row] = field(default_factory=list)
    error: str = ""


def is_met(row: Row) -> bool | None:
    """Whether the figure reaches its target; None without one."""
    if "target" not in row:
        return None
    value, target = float(row["value"]), float(row["target"])
    return value >= target if is_rate(row) else value <= target


def is_rate(row: Row) -> bool:
    """Whether more is better: said by the row, else true of what is counted per second."""
    if "better" in row:
        return bool(row["better"] == "higher")
    return str(row["unit"]).endswith("/s")


def run_module(name: str, quick: bool, limit: float) -> Outcome:
    """Run one module to its end, or to the end of its time."""
    began, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        result, output = Path(directory) / "rows", Path(directory) / "output"
        command = [sys.executable, "-m", "benchmarks", "--module", name, "--json", str(result)]
        with output.open("wb") as sink:
            process = subprocess.Popen(
                command + ["--quick"] * quick,
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        error = _wait(process, limit)
        rows = json.loads(result.read_text()) if result.exists() else []
        if error:
            error = f"{error}\n{output.read_text(errors='replace')[-OUTPUT_BYTES:]}".strip()
    return Outcome(name, round(time.monotonic() - began, 1), (load, os.getloadavg()[0]), rows, error)


def _wait(process: subprocess.Popen[bytes], limit: float) -> str:
    """What went wrong with the process; empty when nothing did."""
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        _end(process)
        return f"did not end within {limit:.0f} s"
    except BaseException:
        _end(process)
        raise
    return f"ended with exit code {code}" if code else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it stop what it started; then end it, and all that descends from it, by force."""
    members = tree(process.pid)
    process.terminate()
    try:
        process.wait(CLEAN_UP_SECONDS)
    except subprocess.TimeoutExpired:
        kill(tree(process.pid))
        process.wait()
    kill([member for member in members if member.is_running()])


def _run_here(name: str, quick: bool, result: Path) -> None:
    """In the module's own process: measure, and write the rows."""
    rows: list[Row] = importlib.import_module(f"benchmarks.{name}").run(quick)
    result.write_text(json.dumps(rows))


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM unwinds, so that contexts stop their servers."""
    raise SystemExit(f"stopped by signal {number}")


def table(outcomes: Sequence[Outcome]) -> Table:
    """All figures."""
    made = Table(box=box.SIMPLE, pad_edge=False)
    made.add_column("figure", no_wrap=True)
    for name in ("ours", "unit", "target", "met", "peer", "ours/peer", "peer is"):
        made.add_column(name, justify="left" if name in ("unit", "met", "peer is") else "right", no_wrap=True)
    for outcome in outcomes:
        made.add_section()
        made.add_row(f"[bold]{outcome.module}[/bold]")
        for row in outcome.rows:
            made.add_row(*_cells(row))
        if outcome.error:
            made.add_row(f"[bold red]FAILED: {escape(outcome.error.splitlines()[0])}[/bold red]")
    return made


def _cells(row: Row) -> list[str]:
    met = is_met(row)
    peer_name, peer = peer_of(row)
    return [
        escape(f"  {row['name']}"),
        number(row["value"]),
        escape(str(row["unit"])),
        "" if met is None else f"{'≥' if is_rate(row) else '≤'} {number(row['target'])}",
        "" if met is None else "[green]yes[/green]" if met else "[red]no[/red]",
        "" if peer is None else number(peer),
        f"{row['value'] / peer:.2f}" if peer else "",
        escape(peer_name),
    ]


def peer_of(row: Row) -> tuple[str, float | None]:
    """The peer's name, if it is told, and its figure, if there is one."""
    peer = row.get("peer")
    if isinstance(peer, dict):
        return str(peer["name"]), float(peer["value"])
    return "", peer


def number(value: float) -> str:
    """Four digits that count, thousands apart."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def document(outcomes: Sequence[Outcome], quick: bool, started: datetime) -> dict[str, Any]:
    """The run as JSON."""
    modules = []
    for outcome in outcomes:
        rows = [row | {"met": is_met(row)} for row in outcome.rows]
        modules.append(asdict(outcome) | {"rows": rows, "ok": not outcome.error})
    return {
        "started_at": started.isoformat(timespec="seconds"),
        "quick": quick,
        "machine": {
            "cpus": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "modules": modules,
    }


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Postroom, and its peers.")
    parser.add_argument("--quick", action="store_true", help="less of everything, for a first look")
    parser.add_argument("--only", nargs="+", action="extend", metavar="NAME", help=f"of {', '.join(MODULES + BY_NAME)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, too")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="the most that one module may take")
    parser.add_argument("--module", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if unknown := set(given.only or ()) - {*MODULES, *BY_NAME}:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(MODULES + BY_NAME)}")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """The program; its exit code."""
    given = _arguments(argv)
    if given.module is not None:
        _run_here(given.module, given.quick, given.json)
        return 0
    started = datetime.now(UTC)
    limit = given.limit or (QUICK_SECONDS if given.quick else FULL_SECONDS)
    progress = Console(stderr=True)
    outcomes = []
    for name in [name for name in MODULES + BY_NAME if name in (given.only or MODULES)]:
        progress.print(f"{name} …")
        outcomes.append(run_module(name, given.quick, limit))
    report(outcomes, given.quick, started, given.json)
    return 1 if any(outcome.error for outcome in outcomes) else 0


def report(outcomes: Sequence[Outcome], quick: bool, started: datetime, also: Path | None) -> None:
    """Print the table, and what went wrong; write the JSON documents."""
    # Wider than a narrow terminal rather than cut off: figures are read whole, or from a file.
    console, made = Console(), table(outcomes)
    wide = Console(width=MAX_WIDTH)
    wide.print(made, crop=False, width=min(MAX_WIDTH, wide.measure(made).maximum), soft_wrap=True)
    for outcome in outcomes:
        if outcome.error:
            console.print(f"{outcome.module}:", outcome.error, markup=False, highlight=False)
    loads = [load for outcome in outcomes for load in outcome.load]
    if loads:
        console.print(
            f"{os.cpu_count()} CPUs; load average {min(loads):.1f} to {max(loads):.1f}, benchmarks included. "
            "Targets that are multiples of a peer's figure use this run's.",
            highlight=False,
        )
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document(outcomes, quick, started), indent=1) + "\n"
    for path in (RESULTS / f"{started:%Y%m%dT%H%M%SZ}.json", also):
        if path is not None:
            path.write_text(text)
            console.print(f"written to {path}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    sys.exit(main())
