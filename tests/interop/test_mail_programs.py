"""Programs that keep a copy of a mailbox, and one that people read with: isync, OfflineIMAP and mutt over IMAP."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import imaplib
import os
import pty
import random
import shutil
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.interop.office import ADA, IMAP_PORT, PASSWORD, Office, blocking, letter
from tests.interop.place import PLACE, Missing, libraries, our_address, skip_or_fail, unpacked

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = 2000
SYNC_SECONDS = 240.0
FLAGS = {"S": b"\\Seen", "F": b"\\Flagged", "R": b"\\Answered", "T": b"\\Deleted", "D": b"\\Draft"}

Content = Counter[tuple[str, frozenset[str]]]
"""Digest and Maildir letters of the flags of each message."""


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def emptied(office: Office) -> AsyncIterator[None]:
    """A mailbox with nothing in it, for each test."""
    yield

    def work() -> None:
        with _signed_in() as client:
            for folder in ("INBOX", "Archive"):
                client.select(folder)
                client.store("1:*", "+FLAGS.SILENT", "\\Deleted")
                client.expunge()

    await blocking(work)


@contextlib.contextmanager
def _signed_in() -> Iterator[imaplib.IMAP4]:
    with imaplib.IMAP4(our_address(), IMAP_PORT, timeout=60) as client:
        client.login(ADA, PASSWORD)
        yield client


def note(number: int) -> bytes:
    """A message of its own in wire form."""
    text = f"Note number {number}.\r\n" * (1 + number % 7)
    return letter(f"note-{number}@client.example", text.encode(), subject=f"Note {number}")


async def fill(folder: str, numbers: Sequence[int]) -> None:
    """Append notes, all on their way at a time."""

    def work() -> None:
        with socket.create_connection((our_address(), IMAP_PORT), timeout=120) as connection:
            file = connection.makefile("rwb")
            file.readline()
            file.write(f'a LOGIN {ADA} "{PASSWORD}"\r\n'.encode())
            for number in numbers:
                raw = note(number)
                flags = b"(\\Seen)" if number % 3 == 0 else b"()"
                file.write(b"b APPEND %b %b {%d+}\r\n%b\r\n" % (folder.encode(), flags, len(raw), raw))
            file.write(b"c LOGOUT\r\n")
            file.flush()
            answers = [line for line in file if line.startswith((b"b ", b"c "))]
            assert len(answers) == len(numbers) + 1
            assert all(line[2:].startswith(b"OK") for line in answers)

    await blocking(work)


async def on_server(folder: str = "INBOX") -> Content:
    """What is in a folder."""

    def work() -> Content:
        with _signed_in() as client:
            client.select(folder, readonly=True)
            found: Content = Counter()
            for part in client.fetch("1:*", "(FLAGS BODY.PEEK[])")[1]:
                if isinstance(part, tuple):
                    letters = frozenset(letter for letter, flag in FLAGS.items() if flag in part[0])
                    found[_digest(part[1]), letters] += 1
            return found

    return await blocking(work)


def _digest(raw: bytes) -> str:
    """Of the note in it: programs add header fields of their own."""
    head, _, body = raw.replace(b"\r\n", b"\n").partition(b"\n\n")
    names = (b"message-id:", b"subject:", b"from:", b"to:")
    kept = sorted(line for line in head.split(b"\n") if line.lower().startswith(names))
    return hashlib.sha256(b"\n".join([*kept, body])).hexdigest()


def in_files(maildir: Path) -> Content:
    """What is in a Maildir."""
    found: Content = Counter()
    for path in (*(maildir / "cur").iterdir(), *(maildir / "new").iterdir()):
        found[_digest(path.read_bytes()), frozenset(FLAGS.keys() & set(_letters(path)))] += 1
    return found


def _letters(path: Path) -> str:
    return path.name.partition(":2,")[2]


@dataclass
class Program:
    """A program that keeps a copy, and where."""

    command: list[str]
    environment: dict[str, str]
    inbox: Path

    async def start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self.command,
            env=self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def sync(self) -> None:
        process = await self.start()
        output, _ = await asyncio.wait_for(process.communicate(), SYNC_SECONDS)
        assert process.returncode == 0, output.decode("utf-8", "replace")[-3000:]


def _isync(place: Path) -> Program:
    (program,) = unpacked("isync", "usr/bin/mbsync")
    inbox = place / "mail" / "INBOX"
    inbox.parent.mkdir(parents=True)
    rules = place / "mbsyncrc"
    rules.write_text(
        f"""IMAPAccount ours
Host {our_address()}
Port {IMAP_PORT}
User {ADA}
Pass "{PASSWORD}"
SSLType None

IMAPStore far
Account ours

MaildirStore near
Path {place}/mail/
Inbox {inbox}
SubFolders Verbatim

Channel all
Far :far:
Near :near:
Patterns INBOX Archive
Create Both
Expunge Both
SyncState *
"""
    )
    return Program(
        [str(program), "-c", str(rules), "-a"], {"LD_LIBRARY_PATH": str(libraries()), "HOME": str(place)}, inbox
    )


def _offlineimap(place: Path) -> Program:
    home, packages = unpacked("OfflineIMAP", "usr/share/offlineimap3", "usr/lib/python3/dist-packages")
    python = shutil.which("python3.11", path="/usr/bin")
    if python is None:
        raise Missing("OfflineIMAP wants Debian's own python3.11, which is not installed")
    rules = place / "offlineimaprc"
    rules.write_text(
        f"""[general]
accounts = ours
metadata = {place}/state
ui = quiet

[Account ours]
localrepository = near
remoterepository = far

[Repository near]
type = Maildir
localfolders = {place}/mail

[Repository far]
type = IMAP
remotehost = {our_address()}
remoteport = {IMAP_PORT}
remoteuser = {ADA}
remotepass = {PASSWORD}
ssl = no
starttls = no
folderfilter = lambda name: name in ("INBOX", "Archive")
"""
    )
    (place / "mail").mkdir()
    command = [python, str(home / "run"), "-o", "-c", str(rules)]
    return Program(command, {"PYTHONPATH": f"{home}:{packages}", "HOME": str(place)}, place / "mail" / "INBOX")


@pytest.fixture(params=[_isync, _offlineimap], ids=["isync", "offlineimap"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Program:
    try:
        made: Program = request.param(tmp_path)
    except Missing as error:
        skip_or_fail(error)
    return made


@pytest.mark.timeout(600)
@pytest.mark.covers("mail-server:D4", "mail-server:D5", "mail-server:D8", "RFC 4315 §3", "decisions:C1")
async def test_a_copy_is_kept_equal_both_ways(office: Office, program: Program) -> None:
    rng = random.Random(7)
    await fill("INBOX", range(MESSAGES))
    await fill("Archive", range(MESSAGES, MESSAGES + 30))

    # Interrupted on the way, as with the lid of a notebook; then to the end.
    process = await program.start()
    for _ in range(2000):
        if program.inbox.exists() and sum(1 for _ in program.inbox.rglob("*")) > 300:
            break
        assert process.returncode is None, (await process.communicate())[0][-3000:]
        await asyncio.sleep(0.01)
    process.kill()
    await process.communicate()
    await program.sync()
    assert in_files(program.inbox) == await on_server()
    assert sum(in_files(program.inbox).values()) == MESSAGES

    # Changes here: new notes, flags, removals.
    for number in range(10_000, 10_050):
        (program.inbox / "new" / f"{number}.here").write_bytes(note(number).replace(b"\r\n", b"\n"))
    files = sorted((program.inbox / "cur").iterdir()) + sorted((program.inbox / "new").glob("*,*"))
    for path in rng.sample(files, 60):
        kept, letters = path.name.partition(":2,")[0], set(_letters(path))
        letters ^= {rng.choice("SF")}
        path.rename(program.inbox / "cur" / f"{kept}:2,{''.join(sorted(letters))}")
    for path in rng.sample(sorted((program.inbox / "cur").iterdir()), 25):
        path.unlink()
    await program.sync()
    assert in_files(program.inbox) == await on_server()

    # Changes there.
    def work() -> None:
        with _signed_in() as client:
            client.select("INBOX")
            client.store("5:60", "+FLAGS.SILENT", "\\Flagged")
            client.store("70:90", "-FLAGS.SILENT", "\\Seen")
            client.store("100:130", "+FLAGS.SILENT", "\\Deleted")
            client.expunge()
            client.uid("MOVE", "200:220", "Archive")

    await blocking(work)
    await fill("INBOX", range(20_000, 20_040))
    await program.sync()
    assert in_files(program.inbox) == await on_server()
    assert in_files(program.inbox.parent / "Archive") == await on_server("Archive")

    # And nothing more to do.
    before = await on_server()
    await program.sync()
    assert in_files(program.inbox) == await on_server() == before


@pytest.mark.timeout(120)
@pytest.mark.covers("mail-server:D6", "mail-server:D5")
async def test_mutt_reads_and_flags(office: Office, tmp_path: Path) -> None:
    try:
        (program,) = unpacked("mutt", "usr/bin/mutt")
    except Missing as error:
        skip_or_fail(error)
    await fill("INBOX", range(1, 40))
    rules = tmp_path / "muttrc"
    rules.write_text(
        f"""set imap_user="{ADA}" imap_pass="{PASSWORD}" ssl_starttls=no ssl_force_tls=no folder="imap://{our_address()}"
set header_cache="" move=no delete=yes confirmappend=no wait_key=no imap_check_subscribed=no tmpdir="{tmp_path}"
set quit=yes
push "<tag-pattern>~s 'Note 7$'<enter><tag-prefix><flag-message><jump>5<enter><display-message><exit><jump>9<enter>\
<delete-message><sync-mailbox><quit>"
"""
    )
    environment = {"LD_LIBRARY_PATH": str(libraries()), "TERM": "vt100", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    environment["TERMINFO_DIRS"] = f"{PLACE}/lib/terminfo:/lib/terminfo:/usr/share/terminfo"
    leader, follower = pty.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            str(program),
            *("-n", "-F", str(rules), "-f", f"imap://{our_address()}:{IMAP_PORT}/INBOX"),
            env=environment,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
        )
        os.close(follower)
        shown = await asyncio.to_thread(_everything, leader)
        assert await asyncio.wait_for(process.wait(), 60) == 0, shown[-3000:]
    finally:
        os.close(leader)
    found = await on_server()
    assert sum(found.values()) == 38
    assert [letters for (digest, letters), _ in found.items() if digest == _digest(note(7))] == [frozenset("F")]
    assert [letters for (digest, letters), _ in found.items() if digest == _digest(note(5))] == [frozenset("S")]
    assert not [digest for digest, _ in found if digest == _digest(note(9))]


def _everything(terminal: int) -> bytes:
    """What a program writes to a terminal, to its end."""
    shown = b""
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 65_536):
            shown += data
    return shown
