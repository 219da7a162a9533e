"""Migrations: once, in order, whole or not at all (data-model §17.6)."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from postroom.db import ConnectionTarget, Database, Migration, MigrationError, Migrator, packaged_migrations
from postroom.db.migrate import read_migrations

pytestmark = pytest.mark.covers("edge:J9")

FIRST = Migration(1, "people", "CREATE TABLE folk (n int); INSERT INTO folk VALUES (1);")
SECOND = Migration(2, "more", "ALTER TABLE folk ADD COLUMN name text; INSERT INTO folk VALUES (2, 'two');")


@pytest.fixture
async def empty(postgres_url: str, database_url: str) -> ConnectionTarget:
    """A database on which no migration has run."""
    target = ConnectionTarget(database_url)
    connection = await target.connect()
    await connection.execute("DROP SCHEMA IF EXISTS postroom CASCADE")
    await connection.close()
    return target


async def folk(target: ConnectionTarget) -> list[int]:
    connection = await target.connect()
    try:
        return [row["n"] for row in await connection.fetch("SELECT n FROM folk ORDER BY n")]
    finally:
        await connection.close()


async def test_runs_what_is_pending_once(empty: ConnectionTarget) -> None:
    migrator = Migrator(empty, [FIRST, SECOND])
    assert await migrator.pending() == (FIRST, SECOND)
    assert await migrator.run() == (FIRST, SECOND)
    assert await migrator.pending() == ()
    assert await migrator.run() == ()
    assert await folk(empty) == [1, 2]
    connection = await empty.connect()
    rows = await connection.fetch("SELECT * FROM postroom.schema_migrations ORDER BY version")
    await connection.close()
    assert [(row["version"], row["name"], row["checksum"]) for row in rows] == [
        (1, "people", FIRST.checksum),
        (2, "more", SECOND.checksum),
    ]


async def test_pending_changes_nothing(empty: ConnectionTarget) -> None:
    assert await Migrator(empty, [FIRST]).pending() == (FIRST,)
    connection = await empty.connect()
    assert await connection.fetchval("SELECT to_regnamespace('postroom')") is None
    await connection.close()


async def test_later_migrations_continue(empty: ConnectionTarget) -> None:
    await Migrator(empty, [FIRST]).run()
    assert (await Migrator(empty, [FIRST, SECOND]).status()).applied == (1,)
    assert await Migrator(empty, [FIRST, SECOND]).run() == (SECOND,)


async def test_many_nodes_starting_together_run_them_once(empty: ConnectionTarget) -> None:
    slow = Migration(2, "slow", "SELECT pg_sleep(0.2); INSERT INTO folk VALUES (2);")
    ran = await asyncio.gather(*(Migrator(empty, [FIRST, slow]).run() for _ in range(6)))
    assert sorted(len(done) for done in ran) == [0, 0, 0, 0, 0, 2]
    assert await folk(empty) == [1, 2]


async def test_waiting_for_another_node_ends(empty: ConnectionTarget) -> None:
    holder = await empty.connect()
    await holder.fetchval("SELECT pg_advisory_lock($1)", 0x706F7374726F6F6D)
    with pytest.raises(MigrationError, match="another node has been migrating"):
        await Migrator(empty, [FIRST], lock_patience=0.05).run()
    await holder.close()
    await Migrator(empty, [FIRST]).run()


async def test_a_changed_file_is_refused(empty: ConnectionTarget) -> None:
    await Migrator(empty, [FIRST]).run()
    changed = Migration(1, "people", FIRST.sql + " -- and more")
    for attempt in (Migrator(empty, [changed, SECOND]).run, Migrator(empty, [changed]).status):
        with pytest.raises(MigrationError, match=r"0001_people was changed after it ran"):
            await attempt()
    assert await folk(empty) == [1]


def test_line_ends_do_not_change_a_checksum() -> None:
    assert Migration(1, "x", "a\r\nb").checksum == Migration(1, "x", "a\nb").checksum


async def test_a_schema_one_ahead_is_run_on_and_two_ahead_refused(empty: ConnectionTarget) -> None:
    """The previous release must run on the new schema (cli-config-ops A8)."""
    await Migrator(empty, [FIRST, SECOND]).run()
    assert await Migrator(empty, [FIRST]).run() == ()
    assert (await Migrator(empty, [FIRST]).status()).ahead == (2,)
    await Migrator(empty, [FIRST, SECOND, Migration(3, "last", "SELECT 1")]).run()
    for attempt in (Migrator(empty, [FIRST]).run, Migrator(empty, [FIRST]).status):
        with pytest.raises(MigrationError, match=r"newer than this program.*0003"):
            await attempt()
    assert (await Migrator(empty, [FIRST, SECOND]).status()).ahead == (3,)


async def test_a_gap_in_what_ran_is_refused(empty: ConnectionTarget) -> None:
    await Migrator(empty, [FIRST, SECOND]).run()
    connection = await empty.connect()
    await connection.execute("DELETE FROM postroom.schema_migrations WHERE version = 1")
    await connection.close()
    with pytest.raises(MigrationError, match="0002 but not 0001"):
        await Migrator(empty, [FIRST, SECOND]).run()


async def test_a_failing_file_leaves_nothing_and_keeps_the_earlier(empty: ConnectionTarget) -> None:
    broken = Migration(2, "broken", "INSERT INTO folk VALUES (2); SELECT 1 / 0;")
    with pytest.raises(MigrationError, match=r"0002_broken failed"):
        await Migrator(empty, [FIRST, broken]).run()
    assert await folk(empty) == [1]
    assert await Migrator(empty, [FIRST, SECOND]).run() == (SECOND,)


async def test_packaged_migrations_are_applied_by_the_fixture(db: Database) -> None:
    assert await Migrator(db).pending() == ()
    assert packaged_migrations()[0].version == 1


async def test_packaged_migrations_run_on_a_database_with_nothing(postgres_url: str) -> None:
    name = "postroom_test_from_nothing"
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {name}")
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        parts = urlsplit(postgres_url)
        target = ConnectionTarget(f"{parts.scheme}://{parts.netloc}/{name}?{parts.query}")
        assert await Migrator(target).run() == packaged_migrations()
        assert (await Migrator(target).status()).pending == ()
    finally:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.close()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["0001_a.sql", "0003_c.sql"], "0002 is missing before 0003_c"),
        (["0002_b.sql"], "0001 is missing"),
        (["0001_a.sql", "0001_b.sql"], "two migrations have the number 0001"),
        (["first.sql"], "not named like"),
        (["0001_A.sql"], "not named like"),
    ],
)
def test_files_that_are_no_series_are_refused(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1")
    with pytest.raises(MigrationError, match=message):
        read_migrations(tmp_path)


def test_other_files_are_no_migrations(tmp_path: Path) -> None:
    (tmp_path / "0001_a.sql").write_text("SELECT 1")
    (tmp_path / "README").write_text("about")
    assert [migration.name for migration in read_migrations(tmp_path)] == ["a"]
