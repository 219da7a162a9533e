"""Hints between processes (B13): merged, never in the way, and re-established after every loss."""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.db import ConnectionTarget, Database, Listener, LocalPostgres, Notifier
from postroom.db.notify import MAX_KEY, MAX_PAYLOAD, decode_hints, encode_hints

pytestmark = pytest.mark.covers("decisions:B13")

# Servers and peers are polled for, with a deadline.
# ruff: noqa: ASYNC110, ASYNC240


class Seen:
    """What a listener was told."""

    def __init__(self) -> None:
        self.hints: list[tuple[str, int]] = []
        self.gaps = 0

    def hint(self, key: str, value: int) -> None:
        self.hints.append((key, value))

    def gap(self) -> None:
        self.gaps += 1


async def until(condition: Callable[[], bool], *, within: float = 30) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def pair(target: ConnectionTarget, **listener_options: float) -> AsyncIterator[tuple[Notifier, Listener, Seen]]:
    """A notifier and a listener of two processes, so to speak."""
    seen = Seen()
    notifier, listener = Notifier(target), Listener(target, **listener_options)
    listener.add("mailbox", seen.hint)
    listener.on_gap(seen.gap)
    await listener.start()
    await notifier.start()
    try:
        yield notifier, listener, seen
    finally:
        await notifier.stop()
        await listener.stop()


async def test_hints_arrive(db: Database) -> None:
    async with pair(db.target) as (notifier, _, seen):
        notifier.hint("mailbox", 17, 4711)
        notifier.hint("mailbox", "a name@example.com", 0)
        notifier.hint("other", 1, 1)
        await until(lambda: len(seen.hints) >= 2)
        assert sorted(seen.hints) == [("17", 4711), ("a name@example.com", 0)]
        assert seen.gaps == 0


async def test_hints_for_one_key_are_merged_to_the_highest(db: Database) -> None:
    async with pair(db.target) as (notifier, _, seen):
        for value in [*range(1000), 5]:
            notifier.hint("mailbox", 1, value)
        await until(lambda: bool(seen.hints))
        assert seen.hints == [("1", 999)]


async def test_many_hints_are_few_notifications(db: Database) -> None:
    async with pair(db.target) as (notifier, _, seen):
        for key in range(5000):
            notifier.hint("mailbox", key, key)
        await notifier.flush()
        await until(lambda: len(seen.hints) == 5000)
        assert dict(seen.hints) == {str(n): n for n in range(5000)}
    assert len(list(encode_hints((str(n), n) for n in range(5000)))) < 10


async def test_too_many_keys_become_everything(db: Database) -> None:
    seen = Seen()
    listener = Listener(db)
    listener.add("mailbox", seen.hint)
    listener.on_gap(seen.gap)
    await listener.start()
    notifier = Notifier(db, max_keys=100)
    for key in range(100_000):
        notifier.hint("mailbox", key, 1)
    assert notifier._pending == {"mailbox": None}
    await notifier.start()
    await until(lambda: seen.gaps > 0)
    assert seen.hints == []
    await notifier.stop()
    await listener.stop()


async def test_stop_sends_what_is_waiting(db: Database) -> None:
    async with pair(db.target) as (_, _, seen):
        last = Notifier(db)
        last.hint("mailbox", 1, 2)
        await last.start()
        await last.stop()
        await until(lambda: seen.hints == [("1", 2)])


async def terminate(target: ConnectionTarget, query_pattern: str) -> int:
    connection = await target.connect()
    try:
        rows = await connection.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE query LIKE $1 AND pid <> pg_backend_pid() AND datname = current_database()",
            query_pattern,
        )
        return len(rows)
    finally:
        await connection.close()


async def test_a_terminated_listener_comes_back_and_says_so(db: Database) -> None:
    async with pair(db.target) as (notifier, listener, seen):
        for round_ in (1, 2, 3):
            assert await terminate(db.target, "LISTEN %") == 1
            # No type is inferred for a default.
            await until(lambda round_=round_: seen.gaps == round_)  # type: ignore[misc]
            assert listener.listening
            notifier.hint("mailbox", 1, round_)
            # No type is inferred for a default.
            await until(lambda round_=round_: ("1", round_) in seen.hints)  # type: ignore[misc]


async def test_a_terminated_notifier_loses_nothing(db: Database) -> None:
    async with pair(db.target) as (notifier, _, seen):
        notifier.hint("mailbox", 1, 1)
        await until(lambda: ("1", 1) in seen.hints)
        assert await terminate(db.target, "%pg_notify%") == 1
        notifier.hint("mailbox", 2, 2)
        notifier.hint("mailbox", 3, 3)
        await until(lambda: {("2", 2), ("3", 3)} <= set(seen.hints))


async def test_a_silent_peer_is_noticed(db: Database, postgres_url: str) -> None:
    """The connection stays open but nobody answers: its backend is stopped."""
    connection = await db.connect()
    local = await connection.fetchval("SELECT inet_server_addr() IS NULL")
    async with pair(db.target, keepalive=0.05, keepalive_timeout=0.3) as (notifier, _, seen):
        pid = await connection.fetchval(
            "SELECT pid FROM pg_stat_activity WHERE (query LIKE 'LISTEN %' OR query = 'SELECT 1')"
            " AND pid <> pg_backend_pid() AND datname = current_database()"
        )
        if not local or not Path(f"/proc/{pid}").exists():
            pytest.skip("the server's processes are not on this machine")
        try:
            os.kill(pid, signal.SIGSTOP)
        except PermissionError:
            pytest.skip("the server's processes are another user's")
        try:
            await until(lambda: seen.gaps == 1)
            notifier.hint("mailbox", 1, 1)
            await until(lambda: ("1", 1) in seen.hints)
        finally:
            os.kill(pid, signal.SIGCONT)
    await connection.close()


async def test_one_bad_receiver_does_not_cut_off_the_others(db: Database) -> None:
    seen = Seen()
    listener, notifier = Listener(db), Notifier(db)

    def bad(key: str, value: int) -> None:
        raise ZeroDivisionError

    listener.add("mailbox", bad)
    listener.add("mailbox", seen.hint)
    await listener.start()
    await notifier.start()
    with pytest.raises(RuntimeError, match="before the listener starts"):
        listener.add("late", seen.hint)
    notifier.hint("mailbox", 1, 1)
    await until(lambda: bool(seen.hints))
    notifier.hint("mailbox", 1, 2)
    await until(lambda: ("1", 2) in seen.hints)
    await notifier.stop()
    await listener.stop()


async def test_survives_a_restart_of_the_server() -> None:
    top = Path(tempfile.mkdtemp(prefix="pr-"))
    server = LocalPostgres(top, settings={"shared_buffers": "16MB"}, watch=False)
    try:
        await server.start()
        async with pair(ConnectionTarget(server.dsn)) as (notifier, listener, seen):
            notifier.hint("mailbox", 1, 1)
            await until(lambda: ("1", 1) in seen.hints)
            await server.stop()
            await until(lambda: not listener.listening)
            notifier.hint("mailbox", 2, 2)  # while there is no server: kept
            await server.start()
            await until(lambda: listener.listening and seen.gaps == 1)
            await notifier.flush()
            notifier.hint("mailbox", 3, 3)
            await until(lambda: ("3", 3) in seen.hints)
            # The waiting hint was sent again too, unless that was before the listener was back: then the gap covers it.
    finally:
        await server.stop()
        shutil.rmtree(top, ignore_errors=True)


async def test_a_listener_without_a_server_says_so(tmp_path: Path) -> None:
    listener = Listener(ConnectionTarget(f"postgresql:///x?host={tmp_path}&user=x"))
    with pytest.raises(TimeoutError):
        await listener.start(timeout=0.1)
    await listener.stop()


async def test_hints_never_wait_for_the_database(tmp_path: Path) -> None:
    notifier = Notifier(ConnectionTarget(f"postgresql:///x?host={tmp_path}&user=x"), max_keys=10)
    await notifier.start()
    for n in range(1000):
        notifier.hint("mailbox", n, n)
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await notifier.flush(timeout=0.1)
    await notifier.stop(patience=0.05)


async def test_names_and_keys_are_checked(db: Database) -> None:
    notifier = Notifier(db)
    for channel in ("Mailbox", "a b", "", "x" * 64, "a;b"):
        with pytest.raises(ValueError):
            notifier.hint(channel, 1)
        with pytest.raises(ValueError):
            Listener(db).add(channel, Seen().hint)
    for key in ("", "x" * (MAX_KEY + 1)):
        with pytest.raises(ValueError):
            notifier.hint("mailbox", key)


async def test_foreign_payloads_are_passed_over(db: Database) -> None:
    async with pair(db.target) as (notifier, _, seen):
        connection = await asyncpg.connect(db.target.url)
        for payload in ("", "garbage", "=", "a=b", "a=" + "9" * 40, "a=١", "a=--1", "=5 x=6"):
            await connection.execute("SELECT pg_notify('mailbox', $1)", payload)
        await connection.close()
        notifier.hint("mailbox", 1, 1)
        await until(lambda: ("1", 1) in seen.hints)
        assert ("x", 6) in seen.hints
        assert seen.gaps == 0


@given(st.lists(st.tuples(st.text(min_size=1, max_size=MAX_KEY), st.integers(-(2**63), 2**63 - 1)), max_size=60))
def test_encoding_comes_back_within_the_limit(hints: list[tuple[str, int]]) -> None:
    payloads = list(encode_hints(hints))
    assert all(0 < len(payload.encode("ascii")) <= MAX_PAYLOAD for payload in payloads)
    assert [hint for payload in payloads for hint in decode_hints(payload)] == hints


def test_the_longest_key_fits() -> None:
    (payload,) = encode_hints([("\U0001f4ec" * MAX_KEY, -(2**63))])
    assert len(payload) <= MAX_PAYLOAD
