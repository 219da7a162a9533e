"""`postroom secrets`: a new master key, interrupted anywhere, beside servers; keys that are not of this database."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest

from postroom.accounts.service.master_keys import MasterKeys
from postroom.base.clock import SystemClock
from postroom.base.ids import IdGenerator
from postroom.base.sealed_columns import SCRAM_KEYS, TOTP_SECRET, SealedColumn
from postroom.base.sealing import Keyring, kid_of
from postroom.base.secrets import FILE_NAME, Secrets, load_secrets
from postroom.cli import checks
from postroom.cli.master_rotation import Plan, Rotation
from postroom.db import Database
from tests.accounts.sealed_rows import VALUES, fill, opened
from tests.cli.driver import Cli, clean_environment

T = TypeVar("T")
DAMAGED = (TOTP_SECRET, SCRAM_KEYS)


def on(url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    async def inner() -> T:
        async with Database(url, min_size=0, max_size=4) as db:
            return await work(db)

    return asyncio.run(inner())


def ring(data_dir: Path, environ: dict[str, str] | None = None) -> Keyring:
    held = load_secrets(data_dir, environ or {})
    return Keyring(held.master_key, held.other_master_key)


def keys_in(data_dir: Path) -> dict[str, str]:
    return tomllib.loads((data_dir / FILE_NAME).read_text())


def slots(status: dict[str, Any]) -> dict[str, str | None]:
    return {one["slot"]: one["kid"] for one in status["slots"]}


@pytest.fixture
def filled(cli: Cli, database_url: str) -> Cli:
    """A deployment with a value in every sealed column."""
    cli.json("tenant", "create", "acme")
    on(database_url, lambda db: fill(db, ring(cli.data_dir)))
    return cli


def left_alone(url: str, at: datetime) -> None:
    """The last rotation ended at that moment."""

    async def work(db: Database) -> None:
        async with db.acquire() as conn:
            await conn.execute("UPDATE master_keys SET resealed_at = $1", at)

    on(url, work)


# -- a rotation --------------------------------------------------------------------------------------------------------


@pytest.mark.covers("edge:O8", "security-privacy:A6.3", "cli-config-ops:A7")
def test_a_rotation(filled: Cli, database_url: str) -> None:
    cli = filled
    before = cli.json("secrets", "status")
    first = slots(before)["a"]
    assert (before["active_slot"], slots(before)["b"], before["remaining"]) == ("a", None, 0)
    plan = cli.json("secrets", "rotate-master", "--dry-run")
    assert plan == {"step": "new_key", "slot": "b", "kid": first, "new_kid": None, "remaining": 0}
    assert cli.json("secrets", "status") == before
    unsure = cli("secrets", "rotate-master", "--json")
    assert (unsure.code, unsure.error["code"]) == (2, "cli_usage")
    told = cli("secrets", "rotate-master", "--yes")
    assert told.code == 0, told.err
    after = cli.json("secrets", "status")
    second = slots(after)["b"]
    assert (after["active_slot"], slots(after)["a"], after["remaining"]) == ("b", first, 0)
    assert second not in (None, first)
    assert f"The new master key {second} is in slot b." in told.out
    assert f"Keep the one before ({first}) for 30 days" in told.out
    assert "take master_key out of secrets.toml" in told.out
    assert {one["kid"] for one in after["sealed"]} == {second}
    assert sum(one["values"] for one in after["sealed"]) == len(VALUES)
    assert on(database_url, lambda db: opened(db, ring(cli.data_dir))) == VALUES
    # No key is shown anywhere, and the log of what was done names them by id.
    shown = told.out + told.err + cli("secrets", "status").out
    assert not any(value in shown for value in keys_in(cli.data_dir).values() if len(value) > 1)
    actions = [(one["action"], one["target_id"]) for one in cli.json("audit", "list")["data"]]
    assert [one for one in actions if one[0].startswith("master_key")] == [
        ("master_key.resealed", second),
        ("master_key.activated", second),
    ]
    # The key before may be taken away, and is not made again.
    text = (cli.data_dir / FILE_NAME).read_text()
    kept = "".join(line for line in text.splitlines(True) if not line.startswith("master_key ="))
    (cli.data_dir / FILE_NAME).write_text(kept)
    assert slots(cli.json("secrets", "status")) == {"a": None, "b": second}
    cli.json("tenant", "create", "other")
    assert slots(cli.json("secrets", "status")) == {"a": None, "b": second}


@pytest.mark.covers("security-privacy:A6.3", "cli-config-ops:A3")
def test_a_key_that_backups_need_stays_for_thirty_days(filled: Cli, database_url: str) -> None:
    cli = filled
    cli.json("secrets", "rotate-master", "--yes")
    now = datetime.now(UTC)
    for ago, code in ((timedelta(days=29), 15), (timedelta(days=31), 0)):
        left_alone(database_url, now - ago)
        assert cli("secrets", "rotate-master", "--dry-run").code == code
    left_alone(database_url, now)
    refused = cli("secrets", "rotate-master", "--yes", "--json")
    assert (refused.code, refused.error["code"]) == (15, "cli_precondition")
    assert cli("secrets", "rotate-master", "--yes", "--resume").code == 15
    done = cli.json("secrets", "rotate-master", "--yes", "--discard-previous")
    assert done["active_slot"] == "a"
    assert on(database_url, lambda db: opened(db, ring(cli.data_dir))) == VALUES


# -- interrupted -------------------------------------------------------------------------------------------------------

KILLS = [
    *(("store", "before", 1), ("rename", "before", 1), ("directory", "after", 1), ("store", "after", 1)),
    *(("select", "before", 1), ("rename", "before", 2), ("select", "after", 1)),
    *(("activate", "before", 1), ("activate", "after", 1)),
    *(
        ("page", "before", 1),
        ("page", "after", 1),
        ("page", "after", 4),
        ("settle", "before", 1),
        ("settle", "after", 1),
    ),
]


@pytest.mark.covers("edge:O8", "security-privacy:A6.3")
def test_killed_anywhere_it_goes_on(filled: Cli, database_url: str) -> None:
    """After each kill everything opens with what the secrets hold, and the command brings it to its end."""
    cli = filled
    environ = clean_environment(**{name: value for name, value in os.environ.items() if name.startswith("POSTROOM_")})
    for step, when, nth in KILLS:
        before = slots(cli.json("secrets", "status"))
        argv = ["secrets", "rotate-master", "--yes", "--discard-previous"]
        dead = subprocess.run(
            [sys.executable, "-m", "tests.cli.rotation_killed", step, when, str(nth), *argv],
            capture_output=True,
            env=environ,
            cwd=Path(__file__).parents[2],
            check=False,
            timeout=100,
        )
        at = (step, when, nth)
        assert dead.returncode == -signal.SIGKILL, (at, dead.stdout, dead.stderr)
        assert on(database_url, lambda db: opened(db, ring(cli.data_dir))) == VALUES, at
        again = cli(*argv, "--json")
        if again.code == 15:
            again = cli("secrets", "rotate-master", "--yes", "--resume", "--json")
        if again.code == 15:
            # It was killed after the last of it.
            assert at == ("settle", "after", 1)
            continue
        assert again.code == 0, (at, again.out)
        assert again.document["remaining"] == 0
        after = slots(again.document)
        assert after[again.document["active_slot"]] not in before.values(), at
        assert on(database_url, lambda db: opened(db, Keyring(load_secrets(cli.data_dir, {}).master_key))) == VALUES, at
        assert [path.name for path in cli.data_dir.glob(".secrets.toml*")] == [], at


@pytest.mark.covers("cli-config-ops:A3")
def test_one_rotation_at_a_time(filled: Cli, database_url: str) -> None:
    async def held() -> asyncpg.Connection:
        connection = await asyncpg.connect(database_url)
        await connection.execute("SELECT pg_advisory_lock(hashtextextended('master key rotation', 0))")
        return connection

    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(held())
    before = keys_in(filled.data_dir)
    assert filled("secrets", "rotate-master", "--yes").code == 15
    assert keys_in(filled.data_dir) == before
    loop.run_until_complete(connection.close())
    loop.close()


@pytest.mark.covers("security-privacy:A6.3")
def test_what_another_command_did_since_it_was_planned(
    filled: Cli, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slot b was free when it was planned. By the time it is this command's turn, the key that seals is there."""
    cli, run = filled, Rotation.run
    environ = clean_environment(**{name: value for name, value in os.environ.items() if name.startswith("POSTROOM_")})

    async def after_another(self: Rotation, plan: Plan, **options: bool) -> None:
        argv = [sys.executable, "-m", "postroom", "secrets", "rotate-master", "--yes"]
        await asyncio.to_thread(subprocess.run, argv, env=environ, capture_output=True, check=True, timeout=100)
        await run(self, plan, **options)

    monkeypatch.setattr(Rotation, "run", after_another)
    for more in ([], ["--discard-previous"]):
        before = keys_in(cli.data_dir)
        if more:
            left_alone(database_url, datetime.now(UTC) - timedelta(days=31))
        assert cli("secrets", "rotate-master", "--yes", *more).code == 15
        assert keys_in(cli.data_dir) != before, "the other one's"
        assert on(database_url, lambda db: opened(db, ring(cli.data_dir))) == VALUES


def test_what_no_key_opens_is_told_of(filled: Cli, database_url: str) -> None:
    """And the operator who finds the key goes on from there."""
    lost = Keyring(b"l" * 32)

    async def put(db: Database) -> None:
        await fill(db, lost, only=next(iter(VALUES))[0])

    on(database_url, put)
    refused = filled("secrets", "rotate-master", "--yes")
    assert refused.code == 15, "1 value is under another key already"
    told = filled("secrets", "rotate-master", "--yes", "--resume", "--json")
    assert (told.code, told.error["code"]) == (10, "cli_infrastructure")
    assert lost.active in told.error["message"]
    text = (filled.data_dir / FILE_NAME).read_text()
    key = base64.b64encode(b"l" * 32).decode()
    (filled.data_dir / FILE_NAME).write_text(f'{text}master_key_b = "{key}"\n')
    assert filled.json("secrets", "rotate-master", "--yes", "--resume")["remaining"] == 0
    assert on(database_url, lambda db: opened(db, ring(filled.data_dir))) == VALUES


# -- servers that run --------------------------------------------------------------------------------------------------


@pytest.mark.covers("security-privacy:A6.3", "cli-config-ops:A3")
def test_a_process_that_lacks_the_key_is_waited_for(filled: Cli, database_url: str) -> None:
    """Of another machine, whose secrets the operator has to copy."""
    held = load_secrets(filled.data_dir, {})
    server = Keyring(held.master_key)

    async def follow(db: Database, secrets: Secrets) -> None:
        ids = IdGenerator(SystemClock())
        keys = MasterKeys(db, ids, SystemClock(), server, node="mail2")
        keys._holder = "mail2"
        await keys.follow(lambda: secrets)

    on(database_url, lambda db: follow(db, held))
    argv = ("secrets", "rotate-master", "--yes", "--patience", "0", "--json")
    for _ in range(2):
        late = filled(*argv)
        assert (late.code, late.error["code"]) == (13, "cli_timeout")
        assert "mail2" in late.error["message"]
        assert filled.json("secrets", "status")["active_slot"] == "a"
    assert len(keys_in(filled.data_dir)) == 4, "the second time it went on with the same key"
    on(database_url, lambda db: follow(db, load_secrets(filled.data_dir, {})))
    late = filled(*argv)
    assert (late.code, "seal with" in late.error["message"]) == (13, True)
    assert filled(*argv).code == 15
    assert filled.json("secrets", "status")["active_slot"] == "b"
    on(database_url, lambda db: follow(db, load_secrets(filled.data_dir, {})))
    assert filled.json(*argv[:-1], "--resume")["remaining"] == 0
    assert on(database_url, lambda db: opened(db, server)) == VALUES


@pytest.mark.covers("security-privacy:A6.1", "cli-config-ops:B2")
def test_keys_that_stand_in_the_environment(filled: Cli, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is the operator's, and the command says which."""
    mine = keys_in(filled.data_dir)
    new = base64.b64encode(b"n" * 32).decode()
    monkeypatch.setenv("POSTROOM_MASTER_KEY", mine["master_key"])
    monkeypatch.setenv("POSTROOM_MASTER_KEY_ACTIVE", "a")
    monkeypatch.setenv("POSTROOM_MASTER_KEY_B", new)
    plan = filled.json("secrets", "rotate-master", "--dry-run")
    assert (plan["step"], plan["new_kid"]) == ("switch", kid_of(b"n" * 32))
    told = filled("secrets", "rotate-master", "--yes", "--json")
    assert told.code == 3
    assert told.error["details"]["errors"][0]["path"] == "POSTROOM_MASTER_KEY_ACTIVE"
    assert "set it to b" in told.error["details"]["errors"][0]["message"]
    monkeypatch.setenv("POSTROOM_MASTER_KEY_ACTIVE", "b")
    assert filled("secrets", "rotate-master", "--yes").code == 15
    done = filled.json("secrets", "rotate-master", "--yes", "--resume")
    assert (done["active_slot"], done["remaining"]) == ("b", 0)
    assert {one["source"] for one in done["slots"]} == {"environment"}
    assert on(database_url, lambda db: opened(db, Keyring(b"n" * 32))) == VALUES
    told = filled("secrets", "rotate-master", "--yes", "--discard-previous", "--json")
    assert (told.code, told.error["details"]["errors"][0]["path"]) == (3, "POSTROOM_MASTER_KEY")
    assert keys_in(filled.data_dir) == mine


# -- the doctor --------------------------------------------------------------------------------------------------------


@pytest.mark.covers("security-privacy:A6.3", "cli-config-ops:C9")
def test_the_doctor(filled: Cli, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> tuple[str, str]:
        document = json.loads(filled("doctor", "--check", "secrets", "--json").out)
        (one,) = (check for check in document["checks"] if check["name"] == "secrets.sealed")
        return one["status"], one["detail"]

    count = len(VALUES)
    assert found() == ("pass", f"{count} values, all under the active master key")
    text = (filled.data_dir / FILE_NAME).read_text()
    (filled.data_dir / FILE_NAME).write_text(
        f'{text}master_key_b = "{base64.b64encode(b"n" * 32).decode()}"\nmaster_key_active = "b"\n'
    )
    assert found() == ("warn", f"{count} values are to be sealed anew")
    (filled.data_dir / FILE_NAME).write_text(text)
    lost = Keyring(b"l" * 32)
    on(database_url, lambda db: fill(db, lost, only=next(iter(VALUES))[0]))
    assert found() == ("fail", f"1 values are under master keys that are not here: {lost.active}")


def damaged(db_url: str, held: Keyring, cut: int, column: SealedColumn) -> None:
    """The first value of the column is cut off."""

    def seal(where: SealedColumn, value: bytes, *row: object) -> bytes:
        return held.seal(where, value, *row)[:cut]

    on(db_url, lambda db: fill(db, held, seal=seal, only=column))


@pytest.mark.covers("security-privacy:A6.3", "cli-config-ops:C9")
@pytest.mark.parametrize("cut", [21, 22, 60, -1])
def test_values_that_are_broken(filled: Cli, database_url: str, cut: int) -> None:
    """What they begin with is as it should be: only opening each tells."""
    assert filled.json("secrets", "status")["broken"] == []
    held = ring(filled.data_dir)
    first, second = DAMAGED
    damaged(database_url, held, cut, first)
    shown = filled.json("secrets", "status")
    assert (shown["remaining"], shown["broken"]) == (0, [{"column": first.name, "values": 1}])
    damaged(database_url, held, cut, second)
    broken = sorted((one.name, 1) for one in (first, second))
    assert [(one["column"], one["values"]) for one in filled.json("secrets", "status")["broken"]] == broken
    document = json.loads(filled("doctor", "--check", "secrets", "--json").out)
    (check,) = (one for one in document["checks"] if one["name"] == "secrets.sealed")
    columns = ", ".join(f"{name}: {count}" for name, count in broken)
    assert (check["status"], check["detail"]) == ("fail", f"2 values are broken, and open with no key ({columns})")
    assert check["fix"]
    # A value that is under a key that is not here is another matter, and told beside it.
    lost = Keyring(b"l" * 32)
    on(database_url, lambda db: fill(db, lost, only=second))
    document = json.loads(filled("doctor", "--check", "secrets", "--json").out)
    (check,) = (one for one in document["checks"] if one["name"] == "secrets.sealed")
    assert lost.active in check["detail"]
    assert f"1 values are broken, and open with no key ({first.name}: 1)" in check["detail"]


def test_the_doctor_stops_in_time(filled: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LOOK", 0.0)
    document = json.loads(filled("doctor", "--check", "secrets", "--json").out)
    (check,) = (one for one in document["checks"] if one["name"] == "secrets.sealed")
    assert (check["status"], check["detail"].split(" could")[0]) == ("warn", f"not all of {len(VALUES)} values")


# -- a key that is not of this database --------------------------------------------------------------------------------


@pytest.mark.covers("security-privacy:A6.3", "cli-config-ops:A3")
def test_a_lost_key(filled: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    key = keys_in(filled.data_dir)["master_key"]
    other = base64.b64encode(b"o" * 32).decode()
    monkeypatch.setenv("POSTROOM_MASTER_KEY", other)
    for argv in (("tenant", "list"), ("secrets", "status"), ("dkim", "show", "agents.example")):
        refused = filled(*argv, "--json")
        assert (refused.code, refused.error["code"]) == (3, "cli_config")
        (problem,) = refused.error["details"]["errors"]
        assert problem["path"] == "POSTROOM_MASTER_KEY"
        assert kid_of(base64.b64decode(key)) in problem["message"]
        assert not any(text in refused.out for text in (key, other))
    monkeypatch.delenv("POSTROOM_MASTER_KEY")
    assert filled("tenant", "list").code == 0
