"""The launcher of the bundled PostgreSQL (B17): starting, stopping, what it makes and what it refuses."""

# Blocking file and process calls are fine where nothing else runs in the loop; servers are polled for, with a deadline.
# ruff: noqa: ASYNC240

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import asyncpg
import pytest

from postroom.db import LocalPostgres, PostgresLaunchError
from postroom.db.cluster import MAX_SOCKET_PATH, SOCKET_NAME, Cluster
from tests.db.launching import (
    AS_ROOT,
    MakeServer,
    postroom_process,
    query,
    until,
)

pytestmark = pytest.mark.covers("decisions:B17")


async def test_starts_makes_the_database_and_stops(make_server: MakeServer, data_dir: Path) -> None:
    server = make_server()
    await server.start()
    assert await query(server, "SELECT current_user || ' ' || current_database()") == "postroom postroom"
    assert await query(server, "SHOW listen_addresses") == ""
    assert await query(server, "SHOW server_encoding") == "UTF8"
    assert (
        await query(server, "SELECT datlocprovider::text || datlocale FROM pg_database WHERE datname = 'postroom'")
        == "bC.UTF-8"
    )
    assert await query(server, "SHOW fsync") == "on"
    assert await query(server, "SHOW synchronous_commit") == "on"
    assert await query(server, "SHOW shared_buffers") == "16MB"
    assert (
        await query(
            server, "SELECT count(*) FROM pg_available_extensions WHERE name IN ('vector', 'pg_trgm', 'unaccent')"
        )
        == 3
    )
    assert not server.adopted
    pid = server.pid
    assert pid is not None
    await server.stop()
    assert not Path(f"/proc/{pid}").exists()
    assert not (data_dir / "postgres/data/postmaster.pid").exists()
    await server.stop()  # nothing left to do


async def test_data_survive_a_restart(make_server: MakeServer) -> None:
    server = make_server()
    await server.start()
    await query(server, "CREATE TABLE kept AS SELECT 42 AS n")
    await server.stop()
    await server.start()
    assert await query(server, "SELECT n FROM kept") == 42


async def test_socket_and_directories_are_private(make_server: MakeServer, data_dir: Path) -> None:
    server = make_server()
    await server.start()
    home = data_dir / "postgres"
    for private in (data_dir, home, home / "data", home / "run"):
        assert private.stat().st_mode & 0o777 == 0o700, private
    assert server.socket_dir == home / "run"
    assert (home / "run" / SOCKET_NAME).stat().st_mode & 0o777 == 0o700
    if AS_ROOT:
        owner = (home / "data").stat().st_uid
        assert owner != 0
        assert home.stat().st_uid == 0
        assert Path(f"/proc/{server.pid}").stat().st_uid == owner


async def test_log_has_no_statements_and_no_values(make_server: MakeServer, data_dir: Path) -> None:
    server = make_server()
    await server.start()
    await query(server, "CREATE TABLE kept (address text UNIQUE)")
    await query(server, "INSERT INTO kept VALUES ('secret-value')")
    with pytest.raises(asyncpg.UniqueViolationError):
        await query(server, "INSERT INTO kept VALUES ('secret-value')")
    await server.stop()
    logs = "".join(path.read_text() for path in (data_dir / "postgres/data/log").iterdir())
    assert "duplicate key" in logs
    assert "secret-value" not in logs
    assert "INSERT" not in logs


async def test_another_major_version_is_refused_untouched(make_server: MakeServer, data_dir: Path) -> None:
    server = make_server()
    await server.start()
    await server.stop()
    version = data_dir / "postgres/data/PG_VERSION"
    version.write_text("16\n")
    with pytest.raises(PostgresLaunchError, match=r"made by PostgreSQL 16.*brings PostgreSQL 18.*Dump it"):
        await server.start()
    assert version.read_text() == "16\n"
    version.write_text("18\n")
    await server.start()


async def test_a_directory_with_other_files_is_not_taken_over(make_server: MakeServer, data_dir: Path) -> None:
    foreign = data_dir / "postgres/data"
    foreign.mkdir(parents=True, mode=0o700)
    (foreign / "letter.txt").write_text("mine")
    with pytest.raises(PostgresLaunchError, match="not a PostgreSQL data directory"):
        await make_server().start()
    assert (foreign / "letter.txt").read_text() == "mine"


async def test_interrupted_initdb_is_made_anew(make_server: MakeServer, data_dir: Path) -> None:
    half = data_dir / "postgres/data.new"
    half.mkdir(parents=True, mode=0o700)
    (half / "PG_VERSION").write_text("18\n")
    server = make_server()
    await server.start()
    assert await query(server, "SELECT 1") == 1
    assert not half.exists()


async def test_second_start_on_one_directory_is_refused(make_server: MakeServer) -> None:
    first, second = make_server(), make_server()
    await first.start()
    with pytest.raises(PostgresLaunchError, match=rf"another Postroom \(process {os.getpid()}\) is running"):
        await second.start()
    with pytest.raises(PostgresLaunchError, match="already started"):
        await first.start()
    assert await query(first, "SELECT 1") == 1
    await first.stop()
    await second.start()


@pytest.mark.parametrize("length", [100, 180])
async def test_long_paths_get_a_short_private_socket(make_server: MakeServer, data_dir: Path, length: int) -> None:
    long = data_dir / ("d" * (length - len(str(data_dir))))
    server = make_server(data_dir=long)
    await server.start()
    assert len(os.fsencode(server.socket_dir / SOCKET_NAME)) <= MAX_SOCKET_PATH
    assert not server.socket_dir.is_relative_to(data_dir)
    assert server.socket_dir.stat().st_mode & 0o777 == 0o700
    assert server.socket_dir.stat().st_uid == (long / "postgres/data").stat().st_uid
    assert await query(server, "SELECT 1") == 1


async def test_two_long_paths_do_not_share_a_socket(data_dir: Path) -> None:
    assert Cluster(data_dir / ("a" * 120), {}).socket_dir != Cluster(data_dir / ("b" * 120), {}).socket_dir


async def test_a_taken_short_socket_directory_is_refused(make_server: MakeServer, data_dir: Path) -> None:
    server = make_server(data_dir=data_dir / ("d" * 120))
    elsewhere = data_dir.parent / "elsewhere"
    elsewhere.mkdir()
    server.socket_dir.symlink_to(elsewhere)
    try:
        with pytest.raises(PostgresLaunchError, match="somebody else's"):
            await server.start()
        assert not any(elsewhere.iterdir())
    finally:
        server.socket_dir.unlink()


@pytest.mark.parametrize("name", ["with space", "with,comma", "quote\"s'", "per%cent", "ünï"])
async def test_odd_paths(make_server: MakeServer, data_dir: Path, name: str) -> None:
    server = make_server(data_dir=data_dir / name)
    await server.start()
    assert await query(server, "SELECT 1") == 1


async def test_a_server_that_cannot_start_says_why(make_server: MakeServer) -> None:
    with pytest.raises(PostgresLaunchError, match=r"(?s)ended while starting.*shared_buffers"):
        await make_server(settings={"shared_buffers": "many"}).start()


async def test_an_interrupted_start_leaves_no_server(
    make_server: MakeServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()

    async def never() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(server, "_create_database", never)
    starting = asyncio.create_task(server.start())
    await until(lambda: server.pid is not None)
    pid = server.pid
    assert pid is not None
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: not server.is_running())
    await make_server().start()


async def test_an_interrupted_start_leaves_no_server_that_ignores_interrupts_yet(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below `nohup`, or in the background of a script, everything ignores SIGINT until it has a handler of its own."""
    server = make_server()
    await server.start()
    await server.stop()

    def without_handlers() -> subprocess.Popen[bytes]:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return subprocess.Popen(["sleep", "120"], start_new_session=True)
        finally:
            signal.signal(signal.SIGINT, before)

    # Only the main thread may say what is ignored.
    waiting = without_handlers()
    monkeypatch.setattr(server._cluster, "spawn", lambda: waiting)
    try:
        starting = asyncio.create_task(server.start())
        await until(lambda: server._child is waiting)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await until(lambda: waiting.poll() is not None, within=20)
    finally:
        waiting.kill()
        waiting.wait()


async def test_a_restored_copy_with_open_modes_is_closed_again(make_server: MakeServer, data_dir: Path) -> None:
    server = make_server()
    await server.start()
    await server.stop()
    (data_dir / "postgres/data").chmod(0o755)
    (data_dir / "postgres/run").chmod(0o755)
    await server.start()
    assert (data_dir / "postgres/data").stat().st_mode & 0o777 == 0o700
    assert (data_dir / "postgres/run").stat().st_mode & 0o777 == 0o700


async def test_files_that_cannot_be_made_are_a_launch_error(make_server: MakeServer, data_dir: Path) -> None:
    data_dir.write_text("a file where the directory should be")
    with pytest.raises(PostgresLaunchError, match="cannot be set up"):
        await make_server().start()


async def test_a_server_that_is_no_process_here_is_not_adopted(
    make_server: MakeServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another container shares the directory: it could be neither watched nor stopped."""
    with postroom_process(data_dir) as (child, pid):
        child.kill()
        child.wait()
        with monkeypatch.context() as patch:
            patch.setattr(Cluster, "is_our_postmaster", lambda self, pid: False)
            with pytest.raises(PostgresLaunchError, match="not a process of this machine or container"):
                await make_server().start()
        assert Cluster(data_dir, {}).is_our_postmaster(pid)


@pytest.mark.parametrize("name", ["listen_addresses", "unix_socket_permissions", "hba_file", "Bad-Name", "a\nb"])
def test_settings_that_would_open_the_server_are_refused(data_dir: Path, name: str) -> None:
    with pytest.raises(ValueError, match="may be given"):
        LocalPostgres(data_dir, settings={name: "*"})
