"""`postroom demo` as people run it: up, tried out, down, up again; and the story that it plays against itself."""

from __future__ import annotations

import imaplib
import json
import re
import shutil
import signal
import smtplib
import ssl
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
            *("http", "smtp", "submission", "smtps", "imap", "domain", "tenant_id", "api_key", "person", "agent")
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
        text = banner(printed)
        told = (record["http"], record["person"]["password"], record["api_key"], record["agent"]["key"], str(data_dir))
        assert all(part in text for part in told)
        doors = ("smtp", "submission", "smtps", "imap")
        assert all(f" {record[door]['host']}:{record[door]['port']} " in text for door in doors)
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
        for noun, count in (("tenant", 1), ("person", 1), ("identity", 2), ("key", 2)):
            assert len(run_program(noun, "list", "--json", *at, env=env).document["data"]) == count


@pytest.mark.covers("quality:demo")
def test_what_the_banner_says_works_when_it_is_pasted(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    with demo(tmp_path / "the demo", free_base()) as (record, printed):
        lines = re.findall(r"^   (\S.*)$", banner(printed), re.MULTILINE)
        waiting, *others = lines
        assert "/wait?" in waiting
        assert len(others) >= 6
        wait = subprocess.Popen(["bash", "-c", waiting], env=clean_environment(), stdout=subprocess.PIPE)
        for line in others:
            if " mail reply " in line:
                wait_for(record, "agent", "Another table")
            done = paste(line)
            told = "".join(one for one in done.stderr.splitlines() if not one.startswith("Idempotency-Key: "))
            assert (done.returncode, told) == (0, ""), line
            assert '"error"' not in done.stdout, line
        heard, _ = wait.communicate(timeout=DEADLINE)
        assert json.loads(heard)["message"]["subject"] == "Hello"
        assert {"Hello", "A table", "Another table"} <= {one["subject"] for one in messages(record, "agent")}
        wait_for(record, "person", "Re: Another table")


@pytest.mark.covers("mail-server:A1", "mail-server:A4")
@pytest.mark.parametrize("door", ["submission", "smtps"])
@pytest.mark.parametrize(("who", "secret"), [("person", "password"), ("agent", "key")])
def test_both_can_submit(tried: dict[str, Any], door: str, who: str, secret: str) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = tried[door]["host"], tried[door]["port"]
    client: smtplib.SMTP = (
        smtplib.SMTP_SSL(host, port, timeout=30, context=context)
        if door == "smtps"
        else smtplib.SMTP(host, port, timeout=30)
    )
    with client:
        if door == "submission":
            client.starttls(context=context)
        client.login(tried[who]["address"], tried[who][secret])
        other = {"person": "agent", "agent": "person"}[who]
        write(client, tried[who]["address"], tried[other]["address"], door)
    wait_for(tried, other, door)


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the record says of a demo that runs."""
    with demo(tmp_path_factory.mktemp("tried") / "demo", free_base()) as (record, _):
        # An agent answers, or writes to whom it has written to.
        person = record["person"]
        with smtplib.SMTP(record["submission"]["host"], record["submission"]["port"], timeout=30) as client:
            client.login(person["address"], person["password"])
            write(client, person["address"], record["agent"]["address"], "Good morning")
        wait_for(record, "agent", "Good morning")
        yield record


def write(client: smtplib.SMTP, sender: str, recipient: str, subject: str) -> None:
    head = f"From: {sender}\r\nTo: {recipient}\r\nSubject: {subject}\r\n"
    morning = "<morning@example.com>"
    head += f"Message-ID: {morning}\r\n" if subject == "Good morning" else f"In-Reply-To: {morning}\r\n"
    client.sendmail(sender, recipient, f"{head}\r\nHello.\r\n")


def wait_for(record: dict[str, Any], who: str, subject: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not any(one["subject"] == subject and one["direction"] == "inbound" for one in messages(record, who)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def banner(printed: Path) -> str:
    """What a demo that is up has printed."""
    deadline = time.monotonic() + DEADLINE
    while "Ctrl-C ends it." not in (text := printed.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return text


def paste(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line as somebody's shell would, in another directory."""
    return subprocess.run(
        ["bash", "-c", line], env=clean_environment(), cwd="/", capture_output=True, text=True, timeout=60, check=False
    )


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
