"""The pool (B19) and what its failures mean (B15)."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from postroom.db import (
    Database,
    DatabaseRefusedError,
    DatabaseUnavailable,
    Isolation,
    NestedAcquireError,
    UnsupportedServerError,
    is_connection_lost,
    is_data_error,
    is_disk_full,
    is_lock_timeout,
    is_serialization,
    is_transient,
    pool,
)

WHATEVER_COMES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


@pytest.mark.parametrize("value", [{"a": [1, None, "ü"]}, [], "text", 7, None])
async def test_json_values_come_back(db: Database, value: object) -> None:
    async with db.acquire() as connection:
        for kind in ("jsonb", "json"):
            assert await connection.fetchval(f"SELECT $1::{kind}", value) == value
        assert await connection.fetchval("SELECT '{\"n\": 1}'::jsonb") == {"n": 1}


async def test_sessions_are_set_up(db: Database) -> None:
    async with db.acquire() as connection:
        assert await connection.fetchval("SHOW timezone") == "UTC"
        assert await connection.fetchval("SELECT current_schemas(false)") == ["postroom", "public"]
        assert await connection.fetchval("SHOW application_name") == "postroom-tests"


@pytest.mark.covers("decisions:B19")
async def test_a_task_that_holds_a_connection_gets_no_second(db: Database) -> None:
    async with db.acquire() as outer:
        with pytest.raises(NestedAcquireError):
            async with db.acquire():
                pass
        with pytest.raises(NestedAcquireError):
            async with db.transaction():
                pass
        assert await outer.fetchval("SELECT 1") == 1
    async with db.transaction() as connection:
        assert await connection.fetchval("SELECT 1") == 1


@pytest.mark.covers("decisions:B19")
async def test_many_tasks_on_a_small_pool_all_get_through(database_url: str) -> None:
    async with Database(database_url, min_size=1, max_size=3, acquire_timeout=30) as database:

        async def work(n: int) -> int:
            async with database.transaction() as connection:
                value: int = await connection.fetchval("SELECT $1::int", n)
                return value

        assert await asyncio.gather(*(work(n) for n in range(200))) == list(range(200))
        assert database.stats()["size"] <= 3


async def test_exhausted_pool_is_said_in_time(database_url: str) -> None:
    async with Database(database_url, min_size=1, max_size=1, acquire_timeout=0.05) as database:
        taken, give_back = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with database.acquire():
                taken.set()
                await give_back.wait()

        holder = asyncio.create_task(hold())
        await taken.wait()
        with pytest.raises(DatabaseUnavailable) as caught:
            async with database.acquire():
                pass
        assert is_transient(caught.value)
        give_back.set()
        await holder
        async with database.acquire() as connection:
            assert await connection.fetchval("SELECT 1") == 1


async def test_a_failed_block_is_rolled_back(db: Database) -> None:
    async with db.acquire() as connection:
        await connection.execute("CREATE TABLE t (n int)")

    async def fail() -> None:
        async with db.transaction() as connection:
            await connection.execute("INSERT INTO t VALUES (1)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with db.transaction(Isolation.REPEATABLE_READ, readonly=True) as connection:
        assert await connection.fetchval("SELECT count(*) FROM t") == 0
        assert await connection.fetchval("SHOW transaction_isolation") == "repeatable read"
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await connection.execute("INSERT INTO t VALUES (1)")


async def test_an_open_transaction_does_not_survive_release(database_url: str) -> None:
    async with Database(database_url, min_size=1, max_size=1) as database:
        async with database.acquire() as connection:
            await connection.execute("BEGIN; CREATE TABLE t (n int)")
        async with database.acquire() as connection:
            assert await connection.fetchval("SELECT to_regclass('t')") is None


async def test_a_killed_connection_is_replaced(db: Database) -> None:
    with pytest.raises(WHATEVER_COMES) as caught:
        async with db.acquire() as connection:
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert is_connection_lost(caught.value)
    assert is_transient(caught.value)
    async with db.acquire() as connection:
        assert await connection.fetchval("SELECT 1") == 1


async def test_no_server_is_unavailable(tmp_path: Path) -> None:
    database = Database(f"postgresql:///x?host={tmp_path}&user=x")
    with pytest.raises(DatabaseUnavailable) as caught:
        await database.open()
    assert is_transient(caught.value)
    with pytest.raises(RuntimeError, match="not open"):
        async with database.acquire():
            pass


async def test_a_wrong_url_is_refused_for_good(database_url: str) -> None:
    name = database_url.split("/")[3].split("?")[0]
    wrong = [
        "no url at all",
        "postgresql://host:notaport/x",
        database_url.replace(name, "postroom_test_no_such_database"),
    ]
    for url in wrong:
        with pytest.raises(DatabaseRefusedError) as caught:
            await Database(url).open()
        assert not is_transient(caught.value)


@pytest.mark.covers("decisions:B15")
async def test_a_backend_killed_inside_a_transaction(db: Database) -> None:
    async def lose() -> None:
        async with db.transaction() as connection:
            pid = await connection.fetchval("SELECT pg_backend_pid()")
            other = await db.connect()
            await other.execute("SELECT pg_terminate_backend($1)", pid)
            await other.close()
            await connection.execute("SELECT 1")

    with pytest.raises(WHATEVER_COMES) as caught:
        await lose()
    assert is_connection_lost(caught.value)
    async with db.transaction() as connection:
        assert await connection.fetchval("SELECT 1") == 1


@pytest.mark.covers("decisions:B15")
async def test_a_session_that_ended_unnoticed_is_a_lost_connection(db: Database) -> None:
    async def lose() -> None:
        async with db.transaction() as connection:
            pid = await connection.fetchval("SELECT pg_backend_pid()")
            other = await db.connect()
            await other.execute("SELECT pg_terminate_backend($1)", pid)
            gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)"
            async with asyncio.timeout(30):
                while not await other.fetchval(gone, pid):
                    pass
            await other.close()
            await asyncio.sleep(0)  # the loop sees the end of the stream
            await connection.execute("SELECT 1")

    with pytest.raises(WHATEVER_COMES) as caught:
        await lose()
    assert is_connection_lost(caught.value)
    assert not is_data_error(caught.value)


@pytest.mark.covers("decisions:B15")
async def test_an_error_is_not_hidden_by_the_rollback_that_fails(db: Database) -> None:
    async def lose() -> None:
        async with db.transaction() as connection:
            connection.terminate()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await lose()
    async with db.acquire() as connection:
        await connection.execute("CREATE TABLE t (n int)")
        connection.terminate()  # after the work was done: nobody's error
    async with db.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM t") == 0


async def test_an_old_server_is_refused(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MINIMUM_VERSION", 990000)
    with pytest.raises(UnsupportedServerError, match="needs 99 or newer"):
        await Database(database_url).open()


async def test_a_database_that_is_not_utf8_is_refused(postgres_url: str, database_url: str) -> None:
    name = "postroom_test_latin1"
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {name}")
        await connection.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0"
        )
        url = database_url.replace(database_url.split("/")[3].split("?")[0], name, 1)
        with pytest.raises(UnsupportedServerError, match="LATIN1"):
            await Database(url).open()
    finally:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.close()


@pytest.mark.covers("decisions:B15")
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 / 0",  # 22012
        "SELECT E'\\\\x00'::bytea::text, convert_from('\\x00', 'UTF8')",  # 22021
        "INSERT INTO u VALUES (1), (1)",  # 23505
        "INSERT INTO u VALUES (NULL)",  # 23502
        "SELECT to_tsvector(string_agg('w' || n, ' ')) FROM generate_series(1, 300000) AS n",  # 54000
    ],
)
async def test_data_errors(db: Database, statement: str) -> None:
    async with db.acquire() as connection:
        await connection.execute("CREATE TABLE u (n int PRIMARY KEY)")
        with pytest.raises(asyncpg.PostgresError) as caught:
            await connection.execute(statement)
    assert is_data_error(caught.value)
    assert not is_transient(caught.value)
    assert not is_connection_lost(caught.value)


@pytest.mark.covers("decisions:B15")
@pytest.mark.parametrize("value", ["not a number", 2**70])
async def test_values_that_cannot_be_encoded_are_data_errors(db: Database, value: object) -> None:
    async with db.acquire() as connection:
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)) as caught:
            await connection.execute("SELECT $1::int", value)
    assert is_data_error(caught.value)
    assert not is_connection_lost(caught.value)


@pytest.mark.covers("decisions:B15")
async def test_strings_that_cannot_be_encoded_are_data_errors(db: Database) -> None:
    async with db.acquire() as connection:
        for value in ("lone \ud800 surrogate", "NUL \0 inside"):
            with pytest.raises(Exception) as caught:
                await connection.execute("SELECT $1::text", value)
            assert is_data_error(caught.value), value
        assert await connection.fetchval("SELECT 1") == 1


@pytest.mark.covers("decisions:B15")
async def test_deadlock_and_lock_timeout(database_url: str) -> None:
    one, two = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    try:
        await one.execute("CREATE TABLE t (n int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
        for connection, n in ((one, 1), (two, 2)):
            await connection.execute("BEGIN; SET LOCAL deadlock_timeout = '10ms'")
            await connection.execute("SELECT FROM t WHERE n = $1 FOR UPDATE".replace("$1", str(n)))
        results = await asyncio.gather(
            one.execute("SELECT FROM t WHERE n = 2 FOR UPDATE"),
            two.execute("SELECT FROM t WHERE n = 1 FOR UPDATE"),
            return_exceptions=True,
        )
        (victim,) = [result for result in results if isinstance(result, BaseException)]
        assert is_serialization(victim)
        assert is_transient(victim)
        assert not is_data_error(victim)
        await one.execute("ROLLBACK")
        await two.execute("ROLLBACK")
        await one.execute("BEGIN; SELECT FROM t WHERE n = 1 FOR UPDATE")
        with pytest.raises(asyncpg.LockNotAvailableError) as caught:
            await two.execute("SET lock_timeout = '10ms'; SELECT FROM t WHERE n = 1 FOR UPDATE")
        assert is_lock_timeout(caught.value)
        assert is_transient(caught.value)
    finally:
        one.terminate()
        two.terminate()


def test_other_classes() -> None:
    assert is_disk_full(asyncpg.DiskFullError("disk full"))
    assert is_transient(asyncpg.DiskFullError("disk full"))
    assert is_connection_lost(ConnectionResetError())
    assert is_connection_lost(asyncpg.AdminShutdownError("bye"))
    assert is_connection_lost(asyncpg.CannotConnectNowError("starting"))
    assert is_connection_lost(asyncpg.InternalClientError("cannot switch to state 15"))
    assert is_transient(TimeoutError())
    for neither in (ValueError(), KeyError(), asyncpg.UndefinedTableError("t"), asyncpg.InterfaceError("misuse")):
        assert not is_transient(neither)
        assert not is_connection_lost(neither)
        assert not is_data_error(neither)
