"""`postroom demo` as people run it: up, tried out, down, up again; and the story that it plays against itself."""

from __future__ import annotations

import imaplib
import json
import signal
import smtplib
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.driver import DEADLINE, clean_environment, free_base, run_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bundled PostgreSQL needs Linux")


@contextmanager
def demo(data_dir: Path, base: int, *, how: signal.Signals = signal.SIGINT) -> Iterator[tuple[dict[str, Any], Path]]:
    """A demo that runs; what its record says, and the file with what it printed."""
    before = (data_dir / "demo.json").stat().st_mtime_ns if (data_dir / "demo.json").exists() else 0
    printed = data_dir.parent / f"printed-{time.monotonic_ns()}"
    argv = [sys.executable, "-m", "postroom", "demo", "--data-dir", str(data_dir), "--port-base", str(base)]
    with printed.open("wb") as out:
        process = subprocess.Popen(argv, env=clean_environment(), stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + DEADLINE
        while not (data_dir / "demo.json").exists() or (data_dir / "demo.json").stat().st_mtime_ns == before:
            assert process.poll() is None, printed.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield json.loads((data_dir / "demo.json").read_text()), printed
    finally:
        process.send_signal(how)
        code = process.wait(DEADLINE)
    assert code == 0, printed.read_text()
    assert "Traceback" not in printed.read_text()


def messages(record: dict[str, Any], who: str) -> list[dict[str, Any]]:
    url = f"{record['http']}/v1/identities/{record[who]['identity_id']}/messages?limit=100"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {record['api_key']}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return list(json.load(answer)["data"])


def inbox(record: dict[str, Any]) -> int:
    client = imaplib.IMAP4(record["imap"]["host"], record["imap"]["port"], timeout=30)
    client.login(record["person"]["address"], record["person"]["password"])
    count = int(client.select("INBOX", readonly=True)[1][0] or 0)
    client.logout()
    return count


@pytest.mark.covers("quality:demo")
def test_a_demo_that_is_kept(tmp_path: Path) -> None:
    data_dir, base, env = tmp_path / "demo", free_base(), clean_environment()
    at = ("--data-dir", str(data_dir))
    with demo(data_dir, base) as (record, printed):
        assert set(record) == {
            *("http", "smtp", "submission", "imap", "domain", "tenant_id", "api_key", "person", "agent")
        }
        assert record["http"] == f"http://127.0.0.1:{base}"
        assert stat.S_IMODE((data_dir / "demo.json").stat().st_mode) == 0o600
        agents_mail, persons_mail = messages(record, "agent"), messages(record, "person")
        assert len(agents_mail) >= 4
        assert len({one["thread_id"] for one in agents_mail}) >= 3
        assert inbox(record) == len(persons_mail) >= 4
        with smtplib.SMTP(record["smtp"]["host"], record["smtp"]["port"], timeout=30) as client:
            client.sendmail("you@example.com", record["agent"]["address"], "Subject: Hello\r\n\r\nHello, agent.")
        assert messages(record, "agent")[0]["subject"] == "Hello"
        deadline = time.monotonic() + DEADLINE
        while "Ctrl-C ends it." not in (text := printed.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        told = (record["http"], record["person"]["password"], record["api_key"], "Three things to try", str(data_dir))
        assert all(part in text for part in told)
        # Commands work on its data directory, through the server that runs.
        people = run_program("person", "list", "--json", *at, env=env).document["data"]
        assert [one["addresses"] for one in people] == [[record["person"]["address"]]]
        assert run_program("doctor", "--quiet", *at, env=env).out == "warn\n"
        other = run_program("demo", *at, "--port-base", str(base), env=env)
        assert other.code == 10
    # Somebody changes what the record says; the next run makes it true again.
    changed = run_program(
        *("person", "set-password", record["person"]["address"], "--password-stdin", *at),
        env=env,
        stdin="something else\n",
    )
    assert changed.code == 0
    with demo(data_dir, base, how=signal.SIGTERM) as (again, _):
        assert again == record
        assert len(messages(again, "agent")) == len(agents_mail) + 1
        assert inbox(again) == len(persons_mail)
        for noun, count in (("tenant", 1), ("person", 1), ("identity", 2), ("key", 1)):
            assert len(run_program(noun, "list", "--json", *at, env=env).document["data"]) == count


@pytest.mark.covers("quality:story")
def test_the_story(tmp_path: Path) -> None:
    done = run_program("demo", "--check", "--json", "--port-base", str(free_base()), env=clean_environment())
    outcome = done.document
    assert [step for step in outcome["steps"] if not step["ok"]] == []
    assert (done.code, outcome["ok"]) == (0, True)
    assert len(outcome["steps"]) >= 15


def test_a_deployment_of_its_own_is_left_alone(tmp_path: Path) -> None:
    config = tmp_path / "postroom.toml"
    config.write_text('platform_domain = "mail.example.com"\n')
    done = run_program("demo", "--data-dir", str(tmp_path), "--port-base", str(free_base()), env=clean_environment())
    assert done.code == 2
    assert "deployment of its own" in done.err
    assert config.read_text() == 'platform_domain = "mail.example.com"\n'
    assert not (tmp_path / "postgres").exists()
