"""The program as a whole: help, usage errors, settings, version."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from postroom import __version__
from postroom.base import interruption
from postroom.base.errors import PostroomError
from postroom.cli import program
from postroom.cli.program import COMMANDS
from tests.cli.driver import DEADLINE, Cli

VERBS = {
    "tenant": ("create", "list"),
    "person": ("create", "set-password", "list"),
    "identity": ("create", "list"),
    "key": ("create", "list", "revoke"),
    "mail": ("send", "reply", "forward", "cancel", "resolve"),
    "queue": ("list", "stats", "show", "retry"),
    "config": ("show", "check"),
}


@pytest.mark.parametrize("words", [(noun, verb) for noun, verbs in VERBS.items() for verb in verbs])
def test_every_command_helps(bare: Cli, words: tuple[str, str]) -> None:
    result = bare(*words, "--help")
    assert result.code == 0
    assert "--json" in result.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_noun_helps(bare: Cli, name: str) -> None:
    result = bare(name, "--help")
    assert result.code == 0
    assert "Usage:" in result.out


@pytest.mark.covers("FR-CLI-1")
def test_help_lists_every_command(bare: Cli) -> None:
    result = bare("--help")
    assert result.code == 0
    assert all(name in result.out for name in COMMANDS)


@pytest.mark.covers("cli-config-ops:A3")
@pytest.mark.parametrize(
    "argv",
    [
        ("nonsense",),
        ("tenant", "nonsense"),
        ("tenant", "create"),
        ("tenant", "create", "a-slug", "--nonsense"),
        ("tenant", "create", "a-slug", "--mode", "dream"),
        ("serve", "--processes", "many"),
        ("identity", "create", "x", "--kind", "robot"),
        ("key", "create", "--name", "k"),
        ("key", "create", "--name", "k", "--permissions", "all", "--level", "world"),
        ("key", "create", "--name", "k", "--permissions", "all", "--identity", "idn_x"),
        ("key", "create", "--name", "k", "--permissions", "all", "--level", "platform", "--tenant", "x"),
        ("key", "create", "--name", "k", "--permissions", "all", "--expires-in", "soon"),
        ("key", "create", "--name", "k", "--permissions", "all", "--expires-at", "soon"),
        ("key", "create", "--name", "k", "--permissions", "all", "--expires-at", "2030-01-01", "--expires-in", "1d"),
        ("queue", "show", "nothing"),
        ("queue", "retry", "words"),
        ("queue", "retry", "words", "1", "--all"),
        ("queue", "retry", "words", "one"),
        ("queue", "retry", "words", "99999999999999999999"),
        ("person", "create", "ada"),
        ("healthcheck", "--url", "ftp://example.com"),
        ("demo", "--port-base", "70000"),
    ],
)
def test_usage_errors(bare: Cli, argv: tuple[str, ...]) -> None:
    told = bare(*argv)
    assert told.code == 2
    assert told.out == ""
    assert told.err.startswith("error: cli_usage: ")
    document = bare(*argv, "--json")
    assert document.code == 2
    assert document.error["code"] == "cli_usage"
    assert not bare.data_dir.exists()


@pytest.mark.covers("decisions:D13", "cli-config-ops:A3")
@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("tenants", "tenant"),
        ("identities", "identity"),
        ("addresses", "address"),
        ("people", "person"),
        ("aliases", "alias"),
        ("keys", "key"),
        ("lists", "list"),
        ("tennant", "tenant"),
    ],
)
def test_plural_nouns_are_told_the_singular(bare: Cli, word: str, meant: str) -> None:
    told = bare(word, "list")
    assert (told.code, told.out) == (2, "")
    assert told.err.startswith(f"error: cli_usage: no such command: '{word}'. Did you mean {meant}?\n")
    assert f"Did you mean {meant}?" in bare(word, "list", "--json").error["message"]


@pytest.mark.parametrize("word", ["s", "xyzzy", "", "\u202es"])
def test_what_is_like_no_command_is_told_none(bare: Cli, word: str) -> None:
    told = bare(word)
    assert (told.code, "Did you mean" in told.err, "\u202e" in told.err) == (2, False, False)


def test_json_and_quiet_exclude_each_other(bare: Cli) -> None:
    assert bare("version", "--json", "--quiet").code == 2


def test_version(bare: Cli) -> None:
    assert bare.json("version") == {"version": __version__, "schema": bare.json("version")["schema"]}
    assert bare("version", "--quiet").out == f"{__version__}\n"
    assert bare("--version").out == f"{__version__}\n"
    assert bare("version").out.startswith(f"postroom {__version__}, schema 0")


@pytest.mark.covers("mail-server:H4")
def test_config_is_shown_and_checked(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_DATABASE_URL", "postgresql://joe:geheim@db.example/postroom")
    shown = bare.json("config", "show")
    assert shown["platform_domain"] == "agents.example"
    assert "geheim" not in json.dumps(shown)
    assert "geheim" not in bare("config", "show").out
    monkeypatch.setenv("POSTROOM_NONSENSE", "1")
    assert bare.json("config", "check") == {"status": "ok", "file": None, "ignored_environment": ["POSTROOM_NONSENSE"]}
    assert "POSTROOM_NONSENSE" in bare("config", "check").err


@pytest.mark.covers("cli-config-ops:A3", "mail-server:H4")
@pytest.mark.parametrize("command", [("config", "check"), ("config", "show"), ("serve", "--check"), ("tenant", "list")])
def test_bad_settings_are_exit_3_with_everything_that_is_wrong(
    bare: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("POSTROOM_SMTP_PORT", "many")
    monkeypatch.setenv("POSTROOM_IMAP_PORT", "70000")
    result = bare(*command, "--json")
    assert result.code == 3
    assert result.error["code"] == "cli_config"
    assert {one["path"] for one in result.error["details"]["errors"]} == {"smtp.port", "imap.port"}
    told = bare(*command)
    assert told.code == 3
    assert "smtp.port: " in told.err


def test_serve_check(bare: Cli) -> None:
    assert bare.json("serve", "--check") == {"status": "ok"}
    assert bare("serve", "--check", "--roles", "smtp,nonsense").code == 3
    assert bare("serve", "--check", "--roles", "smtp,worker", "--processes", "3").code == 0
    assert not bare.data_dir.exists()


def test_the_file_of_the_data_directory_is_read(bare: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("POSTROOM_PLATFORM_DOMAIN")
    there = tmp_path / "there"
    there.mkdir()
    (there / "postroom.toml").write_text('platform_domain = "mail.example.com"\n')
    shown = bare.json("config", "show", "--data-dir", str(there))
    assert shown["platform_domain"] == "mail.example.com"
    assert shown["server"]["data_dir"] == str(there)
    monkeypatch.setenv("POSTROOM_DATA_DIR", str(there))
    assert bare.json("config", "show") == shown, "the variable says the same"
    named = tmp_path / "other.toml"
    named.write_text('platform_domain = "other.example.com"\n')
    shown = bare.json("config", "show", "--data-dir", str(there), "--config", str(named))
    assert shown["platform_domain"] == "other.example.com"
    assert bare("config", "show", "--config", str(tmp_path / "none.toml")).code == 3


def test_commands_that_read_make_nothing(bare: Cli) -> None:
    for command in (("tenant", "list"), ("person", "list"), ("queue", "list"), ("key", "revoke", "key_x")):
        result = bare(*command, "--json")
        assert result.code == 10
        assert result.error["code"] == "cli_infrastructure"
    assert bare("migrate", "--check").code == 10
    assert not bare.data_dir.exists()


def test_who_begins_a_deployment_is_told(bare: Cli) -> None:
    """A directory that was not named, or not found, would be a second one without anybody noticing."""
    first = bare("tenant", "create", "one", "--default")
    assert first.code == 0
    assert first.err == f"There was no Postroom in {bare.data_dir}: a new one begins there.\n"
    assert bare("tenant", "create", "two").err == ""


def test_a_fault_is_no_traceback(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.cli.commands.version.packaged_migrations", lambda: [][0])
    result = bare("version", "--json")
    assert result.code == 1
    assert result.error["code"] == "cli_internal"
    assert (Path.home() / ".cache" / "postroom" / "cli.log").is_file()


def test_an_interruption_is_130(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("postroom.cli.commands.version.packaged_migrations", interrupt)
    assert bare("version").code == 130


@pytest.mark.covers("cli-config-ops:A5")
@pytest.mark.parametrize(("command", "code"), [("tenant", 130), ("serve", 0)])
def test_an_interruption_while_a_class_is_made_is_one(
    bare: Cli, monkeypatch: pytest.MonkeyPatch, command: str, code: int
) -> None:
    """Imports are where a start spends its time, and before Python 3.12 such a class raises RuntimeError instead."""

    class Interrupting:
        def __set_name__(self, owner: type, name: str) -> None:
            raise interruption.Interrupted

    def importing(*arguments: object, **more: object) -> None:
        type("Made", (), {"field": Interrupting()})

    monkeypatch.setattr("typer.main.get_command", lambda app: importing)
    assert program.run([command, "--quiet"]) == code


def _as_cause() -> None:
    raise ValueError("made into another") from interruption.Interrupted()


def _as_context() -> None:
    try:
        raise interruption.Interrupted
    except interruption.Interrupted:
        raise ValueError("in what ends it")  # noqa: B904 - as it happens to others


def _without_a_trace() -> None:
    try:
        raise interruption.Interrupted
    except interruption.Interrupted:
        raise ValueError("of this alone") from None


def _of_several() -> None:
    raise BaseExceptionGroup("two", [ValueError("one"), BaseExceptionGroup("more", [interruption.Interrupted()])])


def _far_below() -> None:
    try:
        _of_several()
    except BaseException as error:  # noqa: BLE001 - a group of those that are no Exception
        try:
            raise RuntimeError("above") from error
        except RuntimeError:
            raise SystemError("further above")  # noqa: B904 - as it happens to others


def _in_a_circle() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    one.__context__ = interruption.Interrupted()
    raise other


def _swallowed_before() -> None:
    interruption.note()
    raise ValueError("what nobody would connect with it")


def _swallowed_before_a_refusal() -> None:
    interruption.note()
    raise PostroomError("unavailable")


@pytest.mark.covers("cli-config-ops:A3", "cli-config-ops:A5")
@pytest.mark.parametrize(("command", "code"), [("tenant", 130), ("serve", 0)])
@pytest.mark.parametrize(
    "interrupted",
    [
        *(_as_cause, _as_context, _without_a_trace, _of_several, _far_below, _in_a_circle),
        *(_swallowed_before, _swallowed_before_a_refusal),
    ],
)
def test_an_interruption_is_one_however_it_is_wrapped(
    bare: Cli, monkeypatch: pytest.MonkeyPatch, interrupted: Callable[[], None], command: str, code: int
) -> None:
    """pydantic makes a SchemaError of what comes while it builds a class, others make what they like."""
    monkeypatch.setattr(interruption, "_asked", threading.Event())
    monkeypatch.setattr("typer.main.get_command", lambda app: lambda **given: interrupted())
    done = bare(command, "--json")
    assert done.code == code
    assert done.err == ""
    assert (done.out == "") if command == "serve" else (done.error["code"] == "cli_interrupted")


@pytest.mark.parametrize("command", ["tenant", "serve"])
def test_what_nobody_interrupted_is_a_fault(bare: Cli, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    def faulty(**given: object) -> None:
        try:
            raise KeyError("one")
        except KeyError as error:
            raise ExceptionGroup("more", [ValueError("two")]) from error

    monkeypatch.setattr("typer.main.get_command", lambda app: faulty)
    assert (bare(command, "--json")).error["code"] == "cli_internal"


@pytest.mark.covers("cli-config-ops:A5", "mail-server:H4")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("command", "code"), [("tenant", 130), ("serve", 0)])
def test_a_signal_while_a_model_is_built_is_an_interruption(number: signal.Signals, command: str, code: int) -> None:
    """The real handler, and the real pydantic."""
    script = f"""
import os, typer.main
from pydantic import BaseModel
from postroom.cli import program

class Odd:
    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        try:
            os.kill(os.getpid(), {int(number)})
        except BaseException:
            return {{"type": "no such schema"}}
        raise AssertionError("the signal did not come")

def importing(**given):
    class Model(BaseModel):
        field: Odd

typer.main.get_command = lambda app: importing
program.main([{command!r}])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (code, b"")
    assert b"Traceback" not in done.stderr
    assert b"cli_internal" not in done.stderr


@pytest.mark.covers("cli-config-ops:A5", "mail-server:H4")
@pytest.mark.parametrize(("command", "code"), [("tenant", 130), ("serve", 0)])
@pytest.mark.parametrize("error", [ValueError("a schema"), SystemError()], ids=["other", "interpreter"])
def test_what_goes_wrong_after_the_signal_comes_of_it(
    bare: Cli, monkeypatch: pytest.MonkeyPatch, command: str, code: int, error: Exception
) -> None:
    """Compiled code passes on an error of its own and does not say what it comes of."""

    def importing(*arguments: object, **more: object) -> None:
        interruption.note()
        raise error

    monkeypatch.setattr(interruption, "_asked", threading.Event())
    monkeypatch.setattr("typer.main.get_command", lambda app: importing)
    assert program.run([command, "--quiet"]) == code


def test_the_data_directory_named_is_found_for_the_log() -> None:
    assert program._data_dir(["x", "--data-dir", "/d"]) == Path("/d")
    assert program._data_dir(["x", "--data-dir=/d"]) == Path("/d")
