"""Commands as programs, beside a running server and beside one another, on the bundled PostgreSQL (B17)."""

from __future__ import annotations

import contextlib
import imaplib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.driver import DEADLINE, PASSWORD, clean_environment, free_base, run_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bundled PostgreSQL needs Linux")


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, int]:
    """A data directory with its configuration, and the first of its ports."""
    base = free_base()
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    (data_dir / "postroom.toml").write_text(
        f'env = "local"\nplatform_domain = "agents.example"\n[smtp]\nhost = "127.0.0.1"\nport = {base + 1}\n'
        f'submission_port = {base + 3}\nsmtps_port = {base + 4}\n[lmtp]\nlisten = "{tmp_path / "lmtp"}"\n'
        f'[imap]\nhost = "127.0.0.1"\nport = {base + 2}\n[api]\nhost = "127.0.0.1"\nport = {base}\n'
        f'[dns]\nresolvers = ["127.0.0.1:9"]\n[metrics]\nlisten = "127.0.0.1:{base + 5}"\n'
    )
    return data_dir, base


@contextmanager
def serving(data_dir: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server on *data_dir*, ended with SIGTERM."""
    argv = [sys.executable, "-m", "postroom", "serve", "--data-dir", str(data_dir), *options]
    with (data_dir.parent / "serve.log").open("wb") as log:
        server = subprocess.Popen(argv, env=clean_environment(), stdout=log, stderr=log)
    try:
        yield server
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(DEADLINE)


def wait_until_healthy(base: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while run_program("healthcheck", "--url", f"http://127.0.0.1:{base}", env=clean_environment()).code:
        assert time.monotonic() < deadline, "the server does not come up"


@pytest.mark.covers("cli-config-ops:A5", "mail-server:H4", "decisions:B17")
def test_commands_beside_a_server(place: tuple[Path, int]) -> None:
    data_dir, base = place
    env = clean_environment()
    at = ("--data-dir", str(data_dir))
    with serving(data_dir) as server:
        # At once: the command waits for the server that is starting.
        made = run_program("person", "create", "ada", "--password-stdin", "--json", *at, env=env, stdin=f"{PASSWORD}\n")
        assert made.document["addresses"] == ["ada@agents.example"]
        wait_until_healthy(base)
        key = run_program("key", "create", "--name", "k", "--permissions", "all", "--quiet", *at, env=env)
        assert key.out.startswith("pmk_live_")
        checked = run_program("doctor", "--json", *at, env=env)
        found = {check["name"]: check for check in checked.document["checks"]}
        assert checked.code == 0
        doors = ("smtp", "submission", "smtps", "lmtp", "imap", "http")
        assert {found[f"port.{name}"]["detail"].partition(": ")[2] for name in doors} == {"this Postroom listens"}
        second = run_program("serve", *at, env=env)
        assert second.code == 10
        assert "another Postroom" in second.err
        assert server.poll() is None
    assert server.returncode == 0
    # And without it: the database is started for the command.
    assert len(run_program("person", "list", "--json", *at, env=env).document["data"]) == 1
    assert not (data_dir / "postgres" / "data" / "postmaster.pid").exists()


@pytest.mark.covers("mail-server:F1", "mail-server:F5")
def test_people_sign_in_and_are_signed_out(place: tuple[Path, int]) -> None:
    data_dir, base = place
    env = clean_environment()
    at, ada = ("--data-dir", str(data_dir)), "ada@agents.example"
    with serving(data_dir):
        made = run_program("person", "create", "ada", "--password-stdin", "--json", *at, env=env, stdin=f"{PASSWORD}\n")
        made = run_program("person", "app-password", "create", ada, "--label", "Phone", "--quiet", *at, env=env)
        wait_until_healthy(base)
        answer = httpx.post(
            f"http://127.0.0.1:{base}/v1/auth/session", json={"email": ada, "password": PASSWORD}, timeout=DEADLINE
        )
        headers = {"authorization": f"Bearer {answer.json()['token']}"}
        account = f"http://127.0.0.1:{base}/v1/account"
        assert httpx.get(account, headers=headers, timeout=DEADLINE).json()["person"]["display_name"] == "ada"
        client = imaplib.IMAP4("127.0.0.1", base + 2, timeout=DEADLINE)
        client.login(ada, made.out.strip())
        run_program("person", "set-password", ada, "--password-stdin", *at, env=env, stdin="another horse\n")
        assert client.readline() == b"* BYE Signed out; sign in again\r\n"
        client.shutdown()
        assert httpx.get(account, headers=headers, timeout=DEADLINE).status_code == 401


@pytest.mark.covers("decisions:B19")
def test_several_processes_under_one_supervisor(place: tuple[Path, int]) -> None:
    data_dir, base = place
    with serving(data_dir, "--processes", "2", "--roles", "http,worker") as server:
        wait_until_healthy(base)
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", base + 1), timeout=5):
            pass
        # What each of them counts is read from it alone.
        pages = [until_it_answers(f"http://127.0.0.1:{base + 5 + number}/metrics") for number in range(2)]
        assert all("postroom_database_up 1.0" in page for page in pages)
    assert server.returncode == 0


def until_it_answers(url: str) -> str:
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            return httpx.get(url, timeout=DEADLINE).text
        except httpx.ConnectError:
            assert time.monotonic() < deadline, "nobody listens"
            time.sleep(0.05)


@pytest.mark.covers("decisions:B19", "cli-config-ops:A3")
@pytest.mark.parametrize("processes", ["1", "3"])
def test_a_port_that_is_taken_ends_the_start_at_once(place: tuple[Path, int], processes: str) -> None:
    data_dir, base = place
    with socket.socket() as other:
        other.bind(("127.0.0.1", base))
        other.listen()
        argv = ("serve", "--processes", processes, "--json", "--data-dir", str(data_dir))
        done = run_program(*argv, env=clean_environment())
    assert done.code == 10
    # Told once, however many processes there were to be.
    assert json.loads(done.out)["error"]["code"] == "cli_infrastructure"
    assert not (data_dir / "postgres" / "data" / "postmaster.pid").exists()


def until_it_catches(pid: int) -> None:
    """Python takes a moment until it runs anything of ours."""
    mask = 1 << (signal.SIGTERM - 1)
    deadline = time.monotonic() + DEADLINE
    while True:
        line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("SigCgt"))
        if int(line.split()[1], 16) & mask:
            return
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.covers("cli-config-ops:A5", "mail-server:H4")
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_server_that_is_stopped_while_it_starts_ends_in_order(place: tuple[Path, int], processes: str) -> None:
    data_dir, _ = place
    argv = [sys.executable, "-m", "postroom", "serve", "--processes", processes, "--data-dir", str(data_dir)]
    for at, number in enumerate((signal.SIGTERM, signal.SIGINT, signal.SIGTERM) * 4):
        server = subprocess.Popen(argv, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        until_it_catches(server.pid)
        time.sleep(at * 0.15)
        server.send_signal(number)
        out, err = server.communicate(timeout=DEADLINE)
        assert (server.returncode, out) == (0, b""), (at, err)
        assert b"Traceback" not in err
        assert b"error:" not in err
        assert not (data_dir / "postgres" / "data" / "postmaster.pid").exists()


@pytest.mark.covers("decisions:B17")
def test_commands_without_a_server_take_turns(place: tuple[Path, int]) -> None:
    data_dir, _ = place
    at = ("--data-dir", str(data_dir))

    def create(name: str) -> str:
        result = run_program("identity", "create", name, "--quiet", *at, env=clean_environment())
        assert result.code == 0, result.err
        return result.out

    run_program("tenant", "create", "main", "--default", *at, env=clean_environment())
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(create, ("one", "two", "three")))
    listed = run_program("identity", "list", "--json", *at, env=clean_environment()).document["data"]
    assert {one["id"] for one in listed} == {text.strip() for text in made}


@pytest.mark.covers("cli-config-ops:A3")
def test_an_interrupted_command_stops_what_it_started(place: tuple[Path, int]) -> None:
    data_dir, _ = place
    argv = [sys.executable, "-m", "postroom", "migrate", "--json", "--data-dir", str(data_dir)]
    command = subprocess.Popen(argv, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + DEADLINE
    while not (data_dir / "postgres" / "data" / "postmaster.pid").exists() and time.monotonic() < deadline:
        assert command.poll() is None
        time.sleep(0.01)
    command.send_signal(signal.SIGTERM)
    out, err = command.communicate(timeout=DEADLINE)
    assert (command.returncode, err) == (130, b"")
    assert json.loads(out)["error"]["code"] == "cli_interrupted"


def test_a_reader_that_goes_away_is_no_failure() -> None:
    argv = f"{sys.executable} -m postroom --help | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", argv], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.covers("cli-config-ops:A3")
def test_a_person_is_asked_for_the_password_twice(database_url: str, tmp_path: Path) -> None:
    env = clean_environment(
        POSTROOM_ENV="local",
        POSTROOM_PLATFORM_DOMAIN="agents.example",
        POSTROOM_DATABASE_URL=database_url,
        POSTROOM_DATA_DIR=str(tmp_path),
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "postroom", "person", "create", "ada", "--quiet"], env)
    shown = b""
    for answer in ("one password", "another password", PASSWORD, PASSWORD):
        asked = b""
        while not asked.endswith(b": "):
            asked += os.read(terminal, 1024)
        shown += asked
        os.write(terminal, f"{answer}\n".encode())
    # A child that cannot print cannot end: read all it has to say.
    with contextlib.suppress(OSError):
        while more := os.read(terminal, 1024):
            shown += more
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert PASSWORD.encode() not in shown
    assert len(run_program("person", "list", "--json", env=env).document["data"]) == 1


@pytest.mark.covers("edge:O8", "security-privacy:A6.3")
def test_a_new_master_key_under_a_running_server(place: tuple[Path, int]) -> None:
    """Both processes take it up, and nobody who is paging through a list, or signs in, notices."""
    data_dir, base = place

    def run(*argv: str) -> Any:
        result = run_program(*argv, "--data-dir", str(data_dir), "--json", env=clean_environment())
        assert result.code == 0, result.out
        return json.loads(result.out)

    with serving(data_dir, "--processes", "2"):
        wait_until_healthy(base)
        for name in ("one", "two", "three"):
            run("tenant", "create", name)
        key = run("key", "create", "--name", "k", "--level", "platform", "--permissions", "all")["key"]
        with httpx.Client(
            base_url=f"http://127.0.0.1:{base}", headers={"Authorization": f"Bearer {key}"}, timeout=30
        ) as api:
            first = api.get("/v1/tenants", params={"limit": 1}).json()
            deadline = time.monotonic() + DEADLINE
            while len(run("secrets", "status")["processes"]) < 2:
                assert time.monotonic() < deadline, "the second process says nothing"
            done = run("secrets", "rotate-master", "--yes")
            assert (done["active_slot"], done["remaining"]) == ("b", 0)
            new = next(one["kid"] for one in done["slots"] if one["slot"] == "b")
            assert {one["active"] for one in done["processes"]} == {new}
            cursor, seen = first["next_cursor"], [one["slug"] for one in first["data"]]
            while cursor is not None:
                page = api.get("/v1/tenants", params={"limit": 1, "cursor": cursor}).json()
                cursor, seen = page["next_cursor"], seen + [one["slug"] for one in page["data"]]
            assert set(seen) >= {"one", "two", "three"}
    assert run("secrets", "status")["processes"] == [], "who ended does not hold a rotation up"
