"""Running commands: in this process against a database of the test's own, or as a program of its own."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from postroom.cli import program

DOMAIN = "agents.example"
PASSWORD = "correct horse battery"
DEADLINE = 60.0
"""Seconds after which what does not happen is not going to."""


@dataclass(frozen=True)
class Result:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output; nothing else may be there, and nothing on standard error."""
        assert self.err == ""
        assert self.out.endswith("\n")
        assert self.out.count("\n") == 1
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """What the error document says."""
        error = self.document["error"]
        assert set(error) - {"details"} == {"code", "message", "retryable", "fix", "request_id"}
        assert error["request_id"] is None
        return dict(error)


class Cli:
    """Runs commands in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], data_dir: Path) -> None:
        self._monkeypatch, self._capfd = monkeypatch, capfd
        self.data_dir = data_dir

    def __call__(self, *argv: str, stdin: str = "") -> Result:
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
        self._capfd.readouterr()
        code = program.run(argv)
        out, err = self._capfd.readouterr()
        assert "Traceback" not in out + err
        return Result(code, out, err)

    def json(self, *argv: str, stdin: str = "") -> Any:
        """The document of a command that goes well."""
        result = self(*argv, "--json", stdin=stdin)
        assert result.code == 0, result.out
        return result.document


def clean_environment(**settings: str) -> dict[str, str]:
    """This process's environment without settings of ours, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROOM_", "DATABASE_URL"))}
    return kept | settings


def run_program(*argv: str, env: dict[str, str], stdin: str = "", cwd: Path | None = None) -> Result:
    """Runs `python -m postroom` with these arguments, to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "postroom", *argv],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
        env=env,
        cwd=cwd,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr
    return Result(done.returncode, done.stdout, done.stderr)


def free_base() -> int:
    """The first of seven free ports in a row."""
    for base in range(20000 + os.getpid() % 5000 * 7, 60000, 7):
        try:
            for port in range(base, base + 7):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise AssertionError("no free ports")
