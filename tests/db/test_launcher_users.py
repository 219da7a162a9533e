"""The launcher of the bundled PostgreSQL (B17) as root, where another user runs the server, and as an ordinary user."""

# Blocking file and process calls are fine where nothing else runs in the loop; servers are polled for, with a deadline.
# ruff: noqa: ASYNC240

import contextlib
import json
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from postroom.db import PostgresLaunchError
from postroom.db.cluster import SOCKET_NAME
from tests.db.launching import (
    SOURCE,
    MakeServer,
    needs_root,
    query,
)

pytestmark = pytest.mark.covers("decisions:B17")


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
