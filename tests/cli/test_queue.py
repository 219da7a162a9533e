"""`postroom queue`: counting work, showing and retrying what was given up; `postroom migrate`."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.cli.driver import Cli

_ROWS = """
INSERT INTO postroom.word_tasks
       (tenant_id, mailbox_id, first_id, last_id, next_attempt_at, attempts, parked_at, last_error)
VALUES (1, 1, 1, 1, now() - interval '1 minute', 0, NULL, NULL),
       (1, 1, 2, 2, now() + interval '1 hour', 1, NULL, NULL),
       (1, 1, 3, 3, NULL, 5, now(), 'worker_lost'), (1, 1, 4, 4, NULL, 5, now() - interval '1 day', 'worker_lost')
"""


def execute(url: str, statement: str) -> None:
    async def inner() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(statement)
        await connection.close()

    asyncio.run(inner())


@pytest.mark.covers("decisions:B1")
def test_work_is_counted_shown_and_retried(cli: Cli, database_url: str) -> None:
    cli.json("tenant", "create", "acme")
    execute(database_url, _ROWS)
    counts = {one["queue"]: one for one in cli.json("queue", "list")["data"]}
    assert set(counts) == {"words", "schedules"}
    words = counts["words"]
    assert [words[name] for name in ("due", "waiting", "claimed", "parked")] == [1, 1, 0, 2]
    assert words["oldest_due"] is not None
    parked = cli.json("queue", "show", "words")["data"]
    assert [(one["attempts"], one["last_error"]) for one in parked] == [(5, "worker_lost")] * 2
    assert cli("queue", "show", "words", "--limit", "1", "--quiet").out == f"{parked[0]['key']}\n"
    assert cli.json("queue", "retry", "words", parked[0]["key"]) == {"queue": "words", "retried": 1}
    assert cli("queue", "retry", "words", parked[0]["key"]).out == "0 made due again.\n"
    assert cli("queue", "retry", "words", "--all", "--quiet").out == "1\n"
    assert "Nothing was given up." in cli("queue", "show", "words").err
    assert "words" in cli("queue", "list").out


def test_migrations(bare: Cli, monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    monkeypatch.setenv("POSTROOM_DATABASE_URL", database_url)
    execute(database_url, "DROP SCHEMA postroom CASCADE")
    pending = bare("migrate", "--check", "--json")
    assert (pending.code, pending.error["code"]) == (10, "cli_prerequisite")
    assert "0001_initial" in pending.error["message"]
    assert bare("tenant", "list", "--json").code == 10
    done = bare.json("migrate")
    assert done["applied"][0] == "0001_initial"
    assert (done["pending"], done["schema"]) == ([], len(done["applied"]))
    assert bare.json("migrate", "--check")["applied"] == []
    assert bare("migrate").out == f"Nothing to do. The schema is at {done['schema']:04}.\n"


def test_the_first_command_makes_the_schema(bare: Cli, monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    monkeypatch.setenv("POSTROOM_DATABASE_URL", database_url)
    execute(database_url, "DROP SCHEMA postroom CASCADE")
    assert bare.json("tenant", "create", "acme")["slug"] == "acme"


@pytest.mark.covers("cli-config-ops:A3")
def test_a_database_that_is_away_is_exit_10(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_DATABASE_URL", "postgresql://postroom@127.0.0.1:1/postroom")
    for command in (("tenant", "list"), ("tenant", "create", "acme"), ("migrate",)):
        result = bare(*command, "--json")
        assert (result.code, result.error["code"]) == (10, "cli_infrastructure")
