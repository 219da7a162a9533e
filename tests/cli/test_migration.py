"""`postroom import` and `postroom export`: what people see, exit codes, passwords; and a program that is killed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.driver import Cli, clean_environment
from tests.cli.test_mail import rows
from tests.migration.moving import letter, make_maildir

ADA = "ada@agents.example"


@pytest.fixture
def ada(cli: Cli) -> Cli:
    """A deployment in which Ada has a mailbox."""
    cli.json("identity", "create", "ada", "--kind", "person", "--name", "Ada")
    return cli


@pytest.mark.covers("decisions:C7", "cli-config-ops:A3")
def test_maildir_in_and_out(ada: Cli, tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "m", {"cur/1.a:2,S": letter(1), "cur/2.b:2,": letter(2)})
    make_maildir(root / ".Work:x", {"cur/1.c:2,F": letter(3)})
    done = ada("import", "maildir", str(root), "--into", ADA)
    assert done.code == 0
    assert "INBOX: 2 of 2" in done.err
    assert "Work:x is Work_x here." in done.out
    assert done.out.endswith("3 imported, 0 by earlier runs, 0 were there.\n")
    again = ada.json("import", "maildir", str(root), "--into", ADA)
    assert (again["imported"], again["earlier"], again["problems"]) == (0, 3, [])
    assert ada("import", "maildir", str(root), "--into", ADA, "--quiet").out == "0\n"

    target = tmp_path / "export"
    exported = ada.json("export", "maildir", str(target), "--from", ADA)
    assert exported["exported"] == 3
    assert sorted(path.name.rpartition(":2,")[2] for path in (target / "cur").iterdir()) == ["S"]
    assert len(list((target / "new").iterdir())) == 1
    refused = ada("export", "maildir", str(target), "--from", ADA)
    assert (refused.code, "complete" in refused.err) == (2, True)
    shown = ada("export", "mbox", str(tmp_path / "mbox"), "--from", ADA)
    assert shown.code == 0
    assert "3 exported, 0 by an earlier run." in shown.out
    assert (tmp_path / "mbox" / "INBOX.mbox").read_bytes().count(b"\nSubject: Letter") == 2
    back = ada.json("import", "mbox", str(tmp_path / "mbox"), "--into", ADA)
    assert (back["imported"], back["duplicates"]) == (0, 3)


@pytest.mark.covers("cli-config-ops:A3", "decisions:C7")
def test_what_stays_behind_is_told_with_an_exit_code(ada: Cli, tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "m", {"cur/1.a": letter(1), "cur/2.\x1bevil": b""})
    done = ada("import", "maildir", str(root), "--into", ADA)
    assert done.code == 7
    assert "left behind in INBOX: 2.\ufffdevil: empty" in done.out
    assert "1 imported" in done.out
    as_json = ada("import", "maildir", str(root), "--into", ADA, "--json")
    assert as_json.code == 7
    assert as_json.document["left_behind"] == {"empty": 1}


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("import", "maildir", "nowhere", "--into", ADA), 2, "no such directory"),
        (("import", "mbox", "nowhere", "--into", ADA), 2, "No such file"),
        (("import", "maildir", ".", "--into", ADA), 2, "no Maildir"),
        (("import", "maildir", ".", "--into", "nobody@agents.example"), 5, "address_not_found"),
        (("import", "imap", "192.0.2.1", "--user", "a", "--into", ADA, "--tls", "none"), 2, "readable"),
        (("import", "imap", "127.0.0.1", "--user", "a", "--into", ADA), 2, "nobody to ask"),
        (("import", "imap", "h", "--user", "a", "--into", ADA, "--password-env", "NOT_THERE"), 2, "not set"),
        (("import", "imap", "h", "--user", "a", "--into", ADA, "--password-file", "none"), 2, "No such file"),
        (("import", "imap", "h", "--user", "a", "--into", ADA, "--ca-file", "none"), 2, "nobody to ask"),
    ],
)
def test_refusals(ada: Cli, argv: tuple[str, ...], code: int, words: str) -> None:
    done = ada(*argv)
    assert (done.code, words in done.err) == (code, True), done.err


@pytest.mark.covers("cli-config-ops:A3")
def test_a_server_that_is_not_there(ada: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.migration.imap_source.PAUSE", 0)
    monkeypatch.setenv("THE_PASSWORD", "secret")
    done = ada(
        "import", "imap", "127.0.0.1", "--port", "1", "--user", "a", "--into", ADA, "--password-env", "THE_PASSWORD"
    )
    assert done.code == 9
    assert "cannot be reached" in done.err
    assert "secret" not in done.err


@pytest.mark.covers("decisions:C7", "decisions:B15", "NFR-REL-1")
def test_killed_again_and_again(ada: Cli, tmp_path: Path, database_url: str) -> None:
    """kill -9 wherever it is: run to its end afterwards, each message is there once, with its UID."""
    count = 600
    entries = "".join(f"{n} :{n:04}.x\n" for n in range(1, count + 1))
    root = make_maildir(
        tmp_path / "m",
        {f"cur/{n:04}.x:2,S": letter(n, "x" * 200) for n in range(1, count + 1)},
        dovecot_uidlist=f"3 V1400000000 N{count + 1}\n{entries}",
    )
    settings = {name: value for name, value in os.environ.items() if name.startswith("POSTROOM_")}
    argv = [sys.executable, "-m", "postroom", "import", "maildir", str(root), "--into", ADA]
    stored = "SELECT count(*) AS n FROM placements"
    deadline = time.monotonic() + 60
    seen: list[int] = []
    for wanted in (1, 150, 320):
        child = subprocess.Popen(
            argv, env=clean_environment(**settings), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while child.poll() is None and rows(database_url, stored)[0]["n"] < wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        child.kill()
        child.wait()
        seen.append(rows(database_url, stored)[0]["n"])
    assert 0 < seen[0] < count, seen
    report = ada.json("import", "maildir", str(root), "--into", ADA)
    assert report["imported"] + report["earlier"] == count
    assert (report["duplicates"], report["folders"][0]["uids"]) == (0, "kept")
    found = rows(
        database_url, "SELECT p.uid, m.raw_sha256 FROM placements p JOIN messages m ON m.id = p.message_id ORDER BY uid"
    )
    assert [row["uid"] for row in found] == list(range(1, count + 1))
    assert [row["raw_sha256"] for row in found] == [
        hashlib.sha256(letter(n, "x" * 200)).digest() for n in range(1, count + 1)
    ]
