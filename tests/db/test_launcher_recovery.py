"""The launcher of the bundled PostgreSQL (B17) after crashes: stale pids, servers that were left behind, lost data."""

# Blocking file and process calls are fine where nothing else runs in the loop; servers are polled for, with a deadline.
# ruff: noqa: ASYNC220

import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path

import asyncpg
import pytest

from postroom.db import Database, LocalPostgres, PostgresLaunchError, is_transient
from postroom.db.cluster import SOCKET_NAME, Cluster
from tests.db.launching import (
    MakeServer,
    answers,
    kill_and_wait,
    needs_root,
    postroom_process,
    query,
    until,
)

pytestmark = pytest.mark.covers("decisions:B17")


@pytest.mark.parametrize("pid", ["our own", "a dead one", "nonsense", "nothing"])
async def test_stale_pid_is_neither_adopted_nor_killed(make_server: MakeServer, data_dir: Path, pid: str) -> None:
    server = make_server()
    await server.start()
    pid_file = data_dir / "postgres/data/postmaster.pid"
    lines = pid_file.read_text().splitlines()
    await server.stop()
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        first = {"our own": str(bystander.pid), "a dead one": str(2**22 - 1), "nonsense": "x", "nothing": ""}[pid]
        pid_file.write_text("\n".join([first, *lines[1:]]) + "\n" if first else "")
        shutil.chown(pid_file, (data_dir / "postgres/data").stat().st_uid)
        (server.socket_dir / SOCKET_NAME).touch()
        (server.socket_dir / f"{SOCKET_NAME}.lock").write_text(f"{first}\n")
        await server.start()
        assert not server.adopted
        assert server.pid != bystander.pid
        assert bystander.poll() is None
        assert await query(server, "SELECT 1") == 1
    finally:
        bystander.kill()
        bystander.wait()


@needs_root
async def test_stale_pid_of_a_process_of_the_server_user(make_server: MakeServer, data_dir: Path) -> None:
    """The hard case: PostgreSQL itself would believe this pid, for it may signal the process."""
    server = make_server()
    await server.start()
    pid_file = data_dir / "postgres/data/postmaster.pid"
    lines = pid_file.read_text().splitlines()
    await server.stop()
    uid = (data_dir / "postgres/data").stat().st_uid
    bystander = subprocess.Popen(["sleep", "600"], user=uid)
    try:
        pid_file.write_text("\n".join([str(bystander.pid), *lines[1:]]) + "\n")
        await server.start()
        assert server.pid != bystander.pid
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


async def test_leftover_of_a_killed_postroom_is_adopted(make_server: MakeServer, data_dir: Path) -> None:
    with postroom_process(data_dir) as (child, pid):
        child.kill()
        child.wait()
        server = make_server()
        await server.start()
        assert server.adopted
        assert server.pid == pid
        assert await query(server, "SELECT 1") == 1
        await server.stop()
        assert not Cluster(data_dir, {}).is_our_postmaster(pid)


async def test_adopted_server_takes_changed_settings(make_server: MakeServer, data_dir: Path) -> None:
    with postroom_process(data_dir, 20) as (child, pid):
        child.kill()
        child.wait()
        server = make_server(max_connections=33)
        await server.start()
        assert await query(server, "SHOW max_connections") == "33"
        assert server.pid != pid


async def test_living_postroom_is_not_disturbed(make_server: MakeServer, data_dir: Path) -> None:
    with postroom_process(data_dir) as (child, pid):
        with pytest.raises(PostgresLaunchError, match=rf"another Postroom \(process {child.pid}\)"):
            await make_server().start()
        assert Cluster(data_dir, {}).is_our_postmaster(pid)


async def test_server_of_another_directory_on_our_socket_is_not_adopted(
    make_server: MakeServer, data_dir: Path
) -> None:
    ours, other = make_server(), make_server(data_dir=data_dir.parent / "other")
    await ours.start()
    await ours.stop()
    await other.start()
    # The path of our socket leads to the other server.
    shutil.rmtree(ours.socket_dir)
    ours.socket_dir.mkdir(mode=0o700)
    os.link(other.socket_dir / SOCKET_NAME, ours.socket_dir / SOCKET_NAME)
    with pytest.raises(PostgresLaunchError, match="another data directory"):
        await ours.start()
    assert await query(other, "SELECT 1") == 1


async def test_recovers_after_everything_was_killed(make_server: MakeServer, data_dir: Path) -> None:
    with postroom_process(data_dir) as (child, pid):
        server = make_server()
        await query(server, "CREATE TABLE kept (n int)")
        await query(server, "INSERT INTO kept SELECT generate_series(1, 5000)")
        kill_and_wait(pid)
        child.kill()
        child.wait()
        await server.start()
        assert not server.adopted
        assert await query(server, "SELECT count(*) FROM kept") == 5000


async def test_watch_starts_a_killed_server_again(make_server: MakeServer) -> None:
    server = make_server(watch=True)
    await server.start()
    await query(server, "CREATE TABLE kept AS SELECT 42 AS n")
    for _ in range(2):
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        # No type is inferred for a default.
        await until(lambda pid=pid: server.pid not in (None, pid))  # type: ignore[misc]
        await answers(server)
        assert await query(server, "SELECT n FROM kept") == 42


@pytest.mark.covers("decisions:B15", "NFR-REL-1")
async def test_acknowledged_commits_survive_kills_under_load(make_server: MakeServer) -> None:
    server = make_server(watch=True)
    await server.start()
    acknowledged: set[int] = set()
    ended = asyncio.Event()
    async with Database(server, min_size=1, max_size=4, acquire_timeout=5) as database:
        async with database.acquire() as connection:
            await connection.execute("CREATE TABLE kept (n int PRIMARY KEY)")

        async def load(n: int) -> None:
            while not ended.is_set():
                try:
                    async with database.transaction() as connection:
                        await connection.execute("INSERT INTO kept VALUES ($1)", n)
                except Exception as exc:
                    if not is_transient(exc):
                        raise
                    await asyncio.sleep(0.01)
                else:
                    acknowledged.add(n)
                n += 4

        workers = [asyncio.create_task(load(n)) for n in range(4)]
        for _ in range(3):
            enough = len(acknowledged) + 200
            # No type is inferred for a default.
            await until(lambda enough=enough: len(acknowledged) >= enough)  # type: ignore[misc]
            pid = server.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            # No type is inferred for a default.
            await until(lambda pid=pid: server.pid not in (None, pid))  # type: ignore[misc]
            await answers(server)
        ended.set()
        await asyncio.gather(*workers)
        async with database.acquire() as connection:
            found = {row["n"] for row in await connection.fetch("SELECT n FROM kept")}
    assert acknowledged <= found


async def test_waits_for_a_server_that_is_slow_to_come_up(make_server: MakeServer, data_dir: Path) -> None:
    """A leftover that takes no connections yet is waited for, neither refused nor doubled."""
    with postroom_process(data_dir) as (child, pid):
        child.kill()
        child.wait()
        os.kill(pid, signal.SIGSTOP)
        server = make_server()
        starting = asyncio.create_task(server.start())
        try:
            done, _ = await asyncio.wait([starting], timeout=0.3)
            assert not done
        finally:
            os.kill(pid, signal.SIGCONT)
        await starting
        assert server.pid == pid


async def test_patience_ends_with_a_reason(make_server: MakeServer, data_dir: Path) -> None:
    with postroom_process(data_dir) as (child, pid):
        child.kill()
        child.wait()
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(PostgresLaunchError, match=rf"process {pid}\).*takes no connections"):
                await make_server(start_patience=0.2).start()
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_waits_for_orphans_of_a_killed_postmaster(make_server: MakeServer, data_dir: Path) -> None:
    server = make_server()
    await server.start()
    connection = await asyncpg.connect(server.dsn, timeout=10)
    orphan = connection.get_server_pid()
    assert server.pid is not None
    os.kill(orphan, signal.SIGSTOP)
    kill_and_wait(server.pid)
    starting = asyncio.create_task(make_server_again(server))
    try:
        done, _ = await asyncio.wait([starting], timeout=0.5)
        assert not done
    finally:
        os.kill(orphan, signal.SIGKILL)
        connection.terminate()
    await starting
    assert await query(server, "SELECT 1") == 1


async def make_server_again(server: LocalPostgres) -> None:
    await server.stop()
    await server.start()
