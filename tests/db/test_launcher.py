"""The launcher of the bundled PostgreSQL (B17): started as whoever runs the tests, and as an ordinary user if that is
root.
"""

# Blocking file and process calls are fine where nothing else runs in the loop; servers are polled for, with a deadline.
# ruff: noqa: ASYNC110, ASYNC220, ASYNC240

import asyncio
import contextlib
import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

import postroom
from postroom.db import Database, LocalPostgres, PostgresLaunchError, is_transient
from postroom.db.cluster import MAX_SOCKET_PATH, SOCKET_NAME, Cluster

pytestmark = pytest.mark.covers("decisions:B17")

AS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not AS_ROOT, reason="another user's process needs root to be started")
FAST = {"shared_buffers": "16MB"}
SOURCE = Path(postroom.__file__).parent.parent

MakeServer = Callable[..., LocalPostgres]


async def until(condition: Callable[[], bool], *, within: float = 60) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.02)


async def query(server: LocalPostgres, sql: str) -> object:
    connection = await asyncpg.connect(server.dsn, timeout=10)
    try:
        return await connection.fetchval(sql, timeout=10)
    finally:
        await connection.close(timeout=10)


async def answers(server: LocalPostgres) -> None:
    """Wait until the server takes connections (again)."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError, asyncpg.PostgresError):
                if await query(server, "SELECT 1") == 1:
                    return
            await asyncio.sleep(0.02)


def kill_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} survived SIGKILL")


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data directory with a short path below a directory that only its owner may enter."""
    top = Path(tempfile.mkdtemp(prefix="pr-"))
    yield top / "data"
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture
async def make_server(data_dir: Path) -> AsyncIterator[MakeServer]:
    made: list[LocalPostgres] = []

    def make(**options: object) -> LocalPostgres:
        arguments: dict[str, object] = {"settings": FAST, "max_connections": 20, **options}
        # Each case has its own arguments.
        server = LocalPostgres(arguments.pop("data_dir", data_dir), **arguments)  # type: ignore[arg-type]
        made.append(server)
        return server

    yield make
    for server in made:
        pid = server.pid
        await server.stop()
        if pid is not None and server.socket_dir.parent != data_dir / "postgres":
            shutil.rmtree(server.socket_dir, ignore_errors=True)
    pid = Cluster(data_dir, {}).recorded_pid()
    if pid is not None and Cluster(data_dir, {}).is_our_postmaster(pid):
        os.kill(pid, signal.SIGQUIT)


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


CHILD = """
import asyncio, sys
from pathlib import Path
from postroom.db import LocalPostgres

async def main():
    settings = {"shared_buffers": "16MB"}
    server = LocalPostgres(Path(sys.argv[1]), settings=settings, max_connections=int(sys.argv[2]), watch=False)
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@contextlib.contextmanager
def postroom_process(
    data_dir: Path, max_connections: int = 20, **options: object
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process of its own that has started the server; yields it and the postmaster's pid."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(data_dir), str(max_connections)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path]), "PATH": os.environ["PATH"]},
        **options,  # type: ignore[call-overload] # of Popen
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line, "the process ended without having started a server"
        yield child, int(line)
    finally:
        child.kill()
        child.communicate()


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


# -- as root: another user runs the server -------------------------------------------------------------------------


@needs_root
@pytest.mark.covers("decisions:B17")
async def test_root_under_closed_parents_changes_no_mode(make_server: MakeServer) -> None:
    top = Path(tempfile.mkdtemp(prefix="pr-", dir="/root"))
    try:
        parents = [top / "a", top / "a/b"]
        for parent in parents:
            parent.mkdir()
            parent.chmod(0o700)
        before = {path: path.stat().st_mode for path in (Path("/root"), top, *parents)}
        server = make_server(data_dir=top / "a/b/data")
        await server.start()
        assert await query(server, "SELECT 1") == 1
        await query(server, "SELECT pg_reload_conf()")
        await query(server, "CREATE TABLE t AS SELECT generate_series(1, 1000) AS n")
        await query(server, "CHECKPOINT")
        assert {path: path.stat().st_mode for path in before} == before
        await server.stop()
        await server.start()
        assert await query(server, "SELECT count(*) FROM t") == 1000
        await server.stop()
    finally:
        shutil.rmtree(top, ignore_errors=True)


@needs_root
async def test_data_restored_by_root_are_given_back(make_server: MakeServer, data_dir: Path) -> None:
    server = make_server()
    await server.start()
    await query(server, "CREATE TABLE kept AS SELECT 42 AS n")
    await server.stop()
    for directory, names, files in os.walk(data_dir / "postgres/data"):
        for path in (directory, *(os.path.join(directory, name) for name in names + files)):
            os.chown(path, 0, 0)
    await server.start()
    assert await query(server, "SELECT n FROM kept") == 42
    assert (data_dir / "postgres/data").stat().st_uid != 0


@needs_root
async def test_planted_links_are_not_followed(make_server: MakeServer, data_dir: Path) -> None:
    """The server's user owns PGDATA; what it plants there must not make root overwrite somebody's file."""
    server = make_server()
    await server.start()
    await server.stop()
    victim = data_dir.parent / "victim"
    victim.write_text("precious")
    for name in ("postroom.conf", "pg_hba.conf", "pg_ident.conf"):
        path = data_dir / "postgres/data" / name
        path.unlink()
        path.symlink_to(victim)
    await server.start()
    assert victim.read_text() == "precious"
    assert victim.stat().st_uid == 0


# Imports first: the interpreter itself may lie where only root can read.
DROP = """
import os
os.setgroups([]), os.setgid(int(sys.argv[3])), os.setuid(int(sys.argv[2]))
"""
KNOCK = f"""
import encodings.idna, socket, struct, sys
{DROP}
s = socket.socket(socket.AF_UNIX)
s.settimeout(10)
try:
    s.connect(sys.argv[1])
except OSError as exc:
    print(type(exc).__name__)
    sys.exit()
body = struct.pack("!I", 196608) + b"user\\0postroom\\0database\\0postroom\\0\\0"
s.sendall(struct.pack("!I", len(body) + 4) + body)
print(s.recv(4096).decode("latin-1"))
"""


def knock_as(user: str, socket_path: Path) -> str:
    entry = pwd.getpwnam(user)
    done = subprocess.run(
        [sys.executable, "-c", KNOCK, str(socket_path), str(entry.pw_uid), str(entry.pw_gid)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        check=True,
    )
    return done.stdout.strip()


@needs_root
@pytest.mark.parametrize("user", ["nobody", "daemon"])
async def test_another_user_knocking_is_refused(make_server: MakeServer, data_dir: Path, user: str) -> None:
    server = make_server()
    await server.start()
    assert knock_as(user, server.socket_dir / SOCKET_NAME) == "PermissionError"
    # Even with every door on the way open, peer authentication refuses.
    for door in (data_dir.parent, data_dir, data_dir / "postgres", server.socket_dir):
        door.chmod(0o755)
    (server.socket_dir / SOCKET_NAME).chmod(0o777)
    assert "authentication failed" in knock_as(user, server.socket_dir / SOCKET_NAME)


# -- as an ordinary user -------------------------------------------------------------------------------------------


@pytest.fixture
def ordinary_user() -> str:
    for name in ("nobody", "daemon", "games"):
        with contextlib.suppress(KeyError):
            pwd.getpwnam(name)
            return name
    pytest.skip("no ordinary user on this machine")


ORDINARY = (
    """
import asyncio, concurrent.futures.thread, encodings.idna, getpass, importlib.util, json, os, ssl, sys
from pathlib import Path
import asyncpg
from postroom.db import LocalPostgres, PostgresLaunchError
"""
    + DROP
    + """
os.environ["HOME"] = "/nonexistent"

async def main():
    server = LocalPostgres(Path(sys.argv[1]), settings={"shared_buffers": "16MB"})
    try:
        await server.start()
    except PostgresLaunchError as exc:
        print(json.dumps({"error": str(exc)}))
        return
    connection = await asyncpg.connect(server.dsn)
    report = {"user": await connection.fetchval("SELECT current_user"),
              "data": await connection.fetchval("SHOW data_directory"),
              "uid": os.stat(f"/proc/{server.pid}").st_uid, "adopted": server.adopted}
    await connection.close()
    await server.stop()
    print(json.dumps(report))

asyncio.run(main())
"""
)


def run_as(uid: int, gid: int, data_dir: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", ORDINARY, str(data_dir), str(uid), str(gid)],
        env={"PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path]), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=100,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(report, dict)
    return report


@needs_root
async def test_ordinary_user_runs_its_own_server(ordinary_user: str, make_server: MakeServer) -> None:
    entry = pwd.getpwnam(ordinary_user)
    home = Path(f"/tmp/pr-{secrets.token_hex(4)}")
    home.mkdir(mode=0o700)
    try:
        shutil.chown(home, entry.pw_uid, entry.pw_gid)
        report = run_as(entry.pw_uid, entry.pw_gid, home / "data")
        assert report == {
            "user": "postroom",
            "data": f"{home}/data/postgres/data",
            "uid": entry.pw_uid,
            "adopted": False,
        }
        # Root may run on it afterwards, the owner stays; and so may the user again.
        server = make_server(data_dir=home / "data")
        await server.start()
        assert Path(f"/proc/{server.pid}").stat().st_uid == entry.pw_uid
        await server.stop()
        assert run_as(entry.pw_uid, entry.pw_gid, home / "data") == report
    finally:
        shutil.rmtree(home, ignore_errors=True)


@needs_root
async def test_ordinary_user_on_a_directory_of_another(
    ordinary_user: str, make_server: MakeServer, data_dir: Path
) -> None:
    server = make_server()
    await server.start()
    await server.stop()
    entry = pwd.getpwnam(ordinary_user)
    for door in (data_dir.parent, data_dir, data_dir / "postgres"):
        shutil.chown(door, entry.pw_uid)
    shutil.chown(data_dir / "postgres/lock", entry.pw_uid)
    report = run_as(entry.pw_uid, entry.pw_gid, data_dir)
    assert "belongs to user number" in str(report["error"])


@needs_root
async def test_user_without_a_name_is_told_so() -> None:
    home = Path(f"/tmp/pr-{secrets.token_hex(4)}")
    home.mkdir(mode=0o700)
    try:
        os.chown(home, 4_200_001, 4_200_001)
        report = run_as(4_200_001, 4_200_001, home / "data")
        assert "has no name in the user database" in str(report["error"])
    finally:
        shutil.rmtree(home, ignore_errors=True)


@needs_root
async def test_programs_that_only_root_can_reach_are_copied(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed below /root (pipx, uv tool): another user cannot execute them there."""
    from postroom.db import account

    closed = data_dir.parent / "closed"
    closed.mkdir(mode=0o700)
    caches = data_dir.parent / "caches"
    caches.mkdir()
    data_dir.parent.chmod(0o755)
    bundled = Path(shutil.which("true") or "/bin/true")
    install = closed / "pginstall"
    (install / "bin").mkdir(parents=True)
    for part in ("lib", "share"):
        (install / part).mkdir()
    shutil.copy(bundled, install / "bin" / "postgres")
    monkeypatch.setattr(account, "_PROGRAM_CACHES", (str(caches),))
    server_account = account.server_account(data_dir, data_dir / "postgres/data")
    copy = account.reachable_programs(install, server_account)
    assert copy.parent == caches
    assert copy.stat().st_uid == 0
    assert copy.stat().st_mode & 0o777 == 0o755
    assert account.reachable_programs(install, server_account) == copy
    copy.chmod(0o777)  # no longer to be trusted
    with pytest.raises(PostgresLaunchError, match="no other user can reach"):
        account.reachable_programs(install, server_account)
    assert closed.stat().st_mode & 0o777 == 0o700
