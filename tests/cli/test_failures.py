"""Errors: codes, words, exit codes (A3)."""

from __future__ import annotations

import asyncio
import io
import json
import ssl
from pathlib import Path

import asyncpg
import pytest

from postroom.accounts.service.deployment import DeploymentMismatch
from postroom.base.errors import ERRORS, PostroomError
from postroom.base.settings import SettingsError
from postroom.blobs.store import MarkerMismatch
from postroom.cli.failures import CRASH_LOG, Exit, describe, exit_of_status, usage
from postroom.cli.output import Mode, Output
from postroom.db import DatabaseUnavailable, MigrationError, PostgresLaunchError


@pytest.mark.covers("cli-config-ops:A3")
@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ((401, 403), 4),
        ((404,), 5),
        ((409, 410, 423), 6),
        ((400, 413, 422), 7),
        ((402, 429), 8),
        ((500, 502, 503, 504), 9),
    ],
)
def test_exit_codes_of_api_errors(statuses: tuple[int, ...], code: int) -> None:
    assert [exit_of_status(status) for status in statuses] == [code] * len(statuses)


def test_every_code_of_the_table_has_an_exit_code() -> None:
    for code, spec in ERRORS.items():
        failure = describe(PostroomError(code))
        assert (failure.code, failure.status) == (code, spec.status)
        assert failure.exit in range(4, 10)


@pytest.mark.covers("cli-config-ops:A3")
@pytest.mark.parametrize(
    ("error", "code", "exit"),
    [
        (usage("no"), "cli_usage", 2),
        (SettingsError(["smtp.port: wants a number"]), "cli_config", 3),
        (DatabaseUnavailable("down"), "cli_infrastructure", 10),
        (PostgresLaunchError("held"), "cli_infrastructure", 10),
        (MigrationError("changed"), "cli_infrastructure", 10),
        (DeploymentMismatch("other"), "cli_infrastructure", 10),
        (MarkerMismatch("other_marker"), "cli_infrastructure", 10),
        (asyncpg.ConnectionDoesNotExistError("gone"), "cli_infrastructure", 10),
        (asyncpg.UndefinedTableError("what"), "cli_infrastructure", 10),
        (ssl.SSLError(1, "bad"), "cli_infrastructure", 10),
        (PermissionError(13, "Permission denied", "/data"), "cli_infrastructure", 10),
        (TimeoutError(), "cli_infrastructure", 10),
        (KeyboardInterrupt(), "cli_interrupted", 130),
        (asyncio.CancelledError(), "cli_interrupted", 130),
    ],
)
def test_exit_codes_of_our_own(error: BaseException, code: str, exit: int) -> None:
    failure = describe(error)
    assert (failure.code, failure.exit) == (code, exit)


def test_a_fault_is_one_sentence_and_a_log_without_content(tmp_path: Path) -> None:
    try:
        raise RuntimeError("secret@example.com wrote this")
    except RuntimeError as error:
        failure = describe(error, tmp_path)
    assert (failure.code, failure.exit) == ("cli_internal", Exit.BUG)
    assert str(tmp_path / CRASH_LOG) in failure.message
    assert "secret" not in failure.message
    logged = (tmp_path / CRASH_LOG).read_text()
    assert json.loads(logged)["error"] == "RuntimeError"
    assert "test_failures.py" in logged
    assert "secret" not in logged
    assert (tmp_path / CRASH_LOG).stat().st_mode & 0o777 == 0o600


def test_a_fault_without_a_place_for_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert "Details" not in describe(RuntimeError(), tmp_path / "missing").message


def test_told_to_people_and_to_programs() -> None:
    error = PostroomError("invalid_request", details={"errors": [{"path": "na\x1bme", "message": "is too long"}]})
    out, err = io.StringIO(), io.StringIO()
    describe(error).tell(Output(Mode.HUMAN, out, err))
    first, second, third = err.getvalue().splitlines()
    assert first.startswith("error: invalid_request (400): ")
    assert second == "  na\ufffdme: is too long"
    assert third.startswith("fix: ")
    assert out.getvalue() == ""
    out, err = io.StringIO(), io.StringIO()
    describe(error).tell(Output(Mode.JSON, out, err))
    assert json.loads(out.getvalue())["error"]["details"]["errors"][0]["path"] == "na\x1bme"
    assert err.getvalue() == ""
