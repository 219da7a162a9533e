"""How a command fails: an error code, a sentence, a fix, and an exit code that is a contract (cli-config-ops A3)."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import typer.exceptions

from postroom.base import log as base_log
from postroom.base.errors import PostroomError
from postroom.base.settings import SettingsError
from postroom.cli.output import Mode, Output, clean, dump

CRASH_LOG: Final = "cli.log"


class Exit(IntEnum):
    """Exit codes. New ones may appear, none changes its meaning."""

    OK = 0
    BUG = 1
    USAGE = 2
    CONFIGURATION = 3
    ACCESS = 4
    NOT_FOUND = 5
    CONFLICT = 6
    INVALID = 7
    LIMIT = 8
    REMOTE = 9
    INFRASTRUCTURE = 10
    VERIFICATION = 11
    DOCTOR = 12
    TIMEOUT = 13
    PRECONDITION = 15
    INTERRUPTED = 130


_OF_STATUS: Final = {
    **dict.fromkeys((401, 403), Exit.ACCESS),
    404: Exit.NOT_FOUND,
    **dict.fromkeys((409, 410, 423), Exit.CONFLICT),
    **dict.fromkeys((400, 413, 422), Exit.INVALID),
    **dict.fromkeys((402, 429), Exit.LIMIT),
}


def exit_of_status(status: int) -> Exit:
    """The exit code for an API error of that HTTP status."""
    return _OF_STATUS.get(status, Exit.REMOTE)


class CliError(Exception):
    """A failure that a command finds itself. `code` starts with `cli_`."""

    def __init__(self, code: str, message: str, *, exit: Exit, fix: str = "") -> None:
        self.code, self.message, self.exit, self.fix = code, message, exit, fix
        super().__init__(message)


class FollowEnded(CliError):
    """Whoever followed what happens has seen enough. It is told by the exit code alone: this is how it ends."""

    def __init__(self) -> None:
        super().__init__("cli_interrupted", "interrupted", exit=Exit.INTERRUPTED)


def usage(message: str, fix: str = "") -> CliError:
    """The command line cannot be carried out as it stands."""
    return CliError("cli_usage", message, exit=Exit.USAGE, fix=fix)


def infrastructure(message: str, fix: str = "") -> CliError:
    """Database, mail store, TLS or network are not as they have to be."""
    return CliError("cli_infrastructure", message, exit=Exit.INFRASTRUCTURE, fix=fix)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as it is told. `status` is the HTTP status of an API code, None for the command line's own codes."""

    code: str
    message: str
    fix: str
    exit: int
    status: int | None = None
    retryable: bool = False
    details: Mapping[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """The API's envelope."""
        error: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "retryable": self.retryable,
            "fix": self.fix,
            "request_id": None,
        }
        if self.details:
            error["details"] = dict(self.details)
        return {"error": error}

    def tell(self, output: Output) -> None:
        """Print it: a document with ``--json``, else words on standard error."""
        if output.mode is Mode.JSON:
            output.out.write(dump(self.document()) + "\n")
            output.out.flush()
            return
        status = "" if self.status is None else f" ({self.status})"
        lines = [f"error: {self.code}{status}: {self.message}"]
        lines += [f"  {one['path']}: {one['message']}" for one in (self.details or {}).get("errors", ())]
        if self.fix:
            lines.append(f"fix: {self.fix}")
        output.err.write("".join(f"{clean(line)}\n" for line in lines))
        output.err.flush()


def describe(error: BaseException, data_dir: Path | None = None) -> Failure:
    """The failure that *error* means. What nobody foresaw is written to a log, whose place the message names."""
    if isinstance(error, CliError):
        return Failure(error.code, error.message, error.fix, error.exit)
    if isinstance(error, PostroomError):
        exit = exit_of_status(error.status)
        return Failure(error.code, error.message, error.fix, exit, error.status, error.retryable, error.details)
    if isinstance(error, SettingsError):
        return _settings(error)
    if isinstance(error, KeyboardInterrupt | typer.exceptions.Abort | asyncio.CancelledError):
        return Failure("cli_interrupted", "interrupted", "", Exit.INTERRUPTED)
    if isinstance(error, typer.exceptions.TyperException):
        return Failure("cli_usage", error.format_message(), "Add --help to see what the command takes.", Exit.USAGE)
    return _infrastructure(error) or _bug(error, data_dir)


def _settings(error: SettingsError) -> Failure:
    problems = [problem.partition(": ") for problem in error.problems]
    errors = [{"path": path, "message": rest or path} for path, _, rest in problems]
    message = "the configuration cannot be used"
    return Failure(
        "cli_config", message, "Correct what is named, then try again.", Exit.CONFIGURATION, details={"errors": errors}
    )


def _infrastructure(error: BaseException) -> Failure | None:
    # Imported when something has gone wrong: most commands that end well never need them.
    import asyncpg

    from postroom.accounts.service.deployment import DeploymentMismatch
    from postroom.blobs.store import StorageError
    from postroom.db import is_transient
    from postroom.db.errors import DatabaseError

    fix = ""
    if isinstance(error, DatabaseError | DeploymentMismatch):
        message = str(error)
    elif isinstance(error, StorageError):
        message, fix = f"the mail store cannot be used: {error}", "postroom doctor says more."
    elif isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        kind = type(error).__name__
        message = f"the database went away ({kind})" if is_transient(error) else f"the database refused ({kind})"
        fix = "Look at the server and its log, then try again."
    elif isinstance(error, ssl.SSLError):
        message = f"TLS cannot be set up: {getattr(error, 'reason', None) or type(error).__name__}"
        fix = "Check tls.cert_path and tls.key_path."
    elif isinstance(error, TimeoutError):
        message = "something took too long to answer"
    elif isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        message = f"{error.strerror or type(error).__name__}{where}"
    else:
        return None
    return Failure("cli_infrastructure", message, fix, Exit.INFRASTRUCTURE, retryable=is_transient(error))


def _bug(error: BaseException, data_dir: Path | None) -> Failure:
    place = write_crash(error, data_dir)
    where = f" Details, without content, are in {place}." if place is not None else ""
    message = f"Postroom did something it should not have ({type(error).__name__}).{where}"
    return Failure("cli_internal", message, "Please report it with that log.", Exit.BUG)


def write_crash(error: BaseException, data_dir: Path | None) -> Path | None:
    """Log where *error* came from; the log's path, or None when none could be written."""
    places = [data_dir] if data_dir is not None and data_dir.is_dir() else []
    for directory in (*places, Path.home() / ".cache" / "postroom"):
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = directory / CRASH_LOG
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except (OSError, RuntimeError):
            continue
        with os.fdopen(fd, "a", encoding="utf-8") as file:
            base_log.configure("error", "json", file)
            base_log.get("cli").error("command_failed", exc_info=error)
            base_log.configure("critical", "text")
        return path
    return None
