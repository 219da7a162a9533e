"""The program: finds the command, runs it, and turns whatever goes wrong into words and an exit code (A3)."""

from __future__ import annotations

import asyncio
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import typer
import typer.core

from postroom.base import interruption
from postroom.base import log as base_log
from postroom.base.interruption import Interrupted
from postroom.cli.failures import Exit, FollowEnded, describe, usage
from postroom.cli.output import Mode, Output

COMMANDS: Final = {
    name: f"postroom.cli.commands.{module}"
    for name, module in {
        "serve": "serve",
        "demo": "demo",
        "migrate": "migrate",
        "doctor": "doctor",
        "tenant": "tenant",
        "partner": "partner",
        "person": "person",
        "member": "member",
        "identity": "identity",
        "address": "address",
        "alias": "alias",
        "list": "lists",
        "folder": "folder",
        "message": "message",
        "key": "key",
        "webhooks": "webhook",
        "audit": "audit",
        "events": "events",
        "mail": "mail",
        "queue": "queue",
        "dlq": "dlq",
        "dkim": "dkim",
        "secrets": "secrets",
        "ops": "ops",
        "storage": "storage",
        "import": "imports",
        "export": "exports",
        "config": "config",
        "healthcheck": "healthcheck",
        "version": "version",
    }.items()
}
"""Command → the module whose `app` it is. A module is imported when its command is: `healthcheck` runs every few
seconds in a container and needs none of the server.
"""

ALIASES: Final = {"webhook": "webhooks"}
"""Other names of commands, which help does not list: nouns are singular (D13) but for this one and `events`."""

_PLURALS: Final = {
    "people": "person",
    "identities": "identity",
    "addresses": "address",
    "aliases": "alias",
    "queues": "queue",
}
"""Nouns as the API has them, where they are not the singular and an s."""

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


class _Commands(typer.core.TyperGroup):
    """The commands of the table."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = typer.main.get_command(importlib.import_module(module).app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        args = [ALIASES.get(one, one) for one in args[:1]] + args[1:]
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            meant = _meant(args[0])
            hint = f" Did you mean {meant}?" if meant else ""
            raise usage(f"no such command: {args[0]!r}.{hint}", "postroom --help lists the commands.")
        return super().resolve_command(ctx, args)


def _meant(word: str) -> str | None:
    """The command of a noun in the plural (D13: nouns are singular), or of one that is misspelt."""
    singular = _PLURALS.get(word, word.removesuffix("s"))
    if singular in COMMANDS:
        return singular
    return next(iter(get_close_matches(word, COMMANDS, 1)), None)


app = typer.Typer(
    cls=_Commands,
    name="postroom",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Postroom: one self-hosted mail server for people and AI agents.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from postroom import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Postroom: one self-hosted mail server for people and AI agents."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The console script. Never ends with a traceback."""
    base_log.configure("critical", "text", io.StringIO())
    for number in _ENDING:
        signal.signal(number, _interrupt)
    code = run(sys.argv[1:] if argv is None else argv)
    for number in _ENDING:
        # What was to be done is done: nothing of the exit itself is worth a traceback.
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run one command; its exit code. The log and the signals of the process are the caller's."""
    try:
        code = typer.main.get_command(app)(args=list(argv), standalone_mode=False)
        if code == Exit.INTERRUPTED:
            raise KeyboardInterrupt
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough. The interpreter must not try to flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except SystemExit:
        # So typer ends, and only so, when it was itself that found nobody reading.
        return Exit.OK
    except FollowEnded as ended:
        # What was shown is all that there was: an error in the midst of it would be one more thing to read.
        return ended.exit
    except BaseException as raised:  # noqa: BLE001 - the last place: nothing may pass it as a traceback
        error = _interrupted(raised)
        if list(argv[:1]) == ["serve"] and isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
            # A server that is told to stop before it is up ends as every other that is told to stop.
            return Exit.OK
        failure = describe(error, _data_dir(argv))
        failure.tell(Output(Mode.JSON if "--json" in argv else Mode.HUMAN))
        return failure.exit
    return code if isinstance(code, int) else Exit.OK


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM ends a command as Ctrl-C does: what it started is stopped. Servers install handlers of their own."""
    interruption.note()
    raise Interrupted


def _interrupted(error: BaseException) -> BaseException:
    """The interruption that *error* came of, else *error*. What is raised while a class is made becomes another error:
    a RuntimeError of `__set_name__` before Python 3.12, a SchemaError of pydantic's; and in what is ended another one
    may come up. Imports are where a start spends its time.
    """
    return Interrupted() if interruption.is_behind(error) else error


def _data_dir(argv: Sequence[str]) -> Path | None:
    """Where a log of a fault can go: the data directory that was named."""
    for at, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name == "--data-dir":
            given = value if equals else next(iter(argv[at + 1 :]), "")
            return Path(given) if given else None
    return Path(named) if (named := os.environ.get("POSTROOM_DATA_DIR")) else None
