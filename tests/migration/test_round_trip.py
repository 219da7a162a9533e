"""What is exported and imported again is the same; and others read it: the standard library and Dovecot."""

from __future__ import annotations

import itertools
import mailbox
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.mailbox.models import SpecialUse
from postroom.migration.export_models import ExportRefused
from postroom.migration.maildir import MaildirSource
from postroom.migration.mbox import MboxSource
from postroom.migration.models import Item, Letter, Source, SourceFolder
from tests.mailbox.letters import Box
from tests.migration.moving import House, Seen, letter

LIMIT = 1 << 20
_NAMES = st.sampled_from(
    [
        "INBOX",
        "Sent",
        "Work",
        "Work/2026",
        "Entwürfe",
        "a.b",
        "a_b",
        ".hidden",
        "& co",
        "INBOX/Sub",
        "n" * 250,
        "日本/東京",
    ]
)
_WORDS = st.sampled_from(
    ["$seen", "$answered", "$flagged", "$deleted", "$draft", "urgent", "$label1", "x-1", "$forwarded"]
)
_DATES = st.integers(1, 1_700_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
_BODIES = st.sampled_from(["Hello.", "", "From me\r\n>From you", "x" * 3000, "Grüße\r\n\r\n\r\n", ".", "\0"])
_MESSAGES = st.lists(st.tuples(_BODIES, st.sets(_WORDS, max_size=5), _DATES), max_size=4)
_MAILBOXES = st.dictionaries(_NAMES, _MESSAGES, min_size=1, max_size=5)
_numbers = itertools.count(1)


class Given:
    """A source that is made up. `folders_given`: name → bodies, flags and dates."""

    label = b"given"

    def __init__(self, folders_given: dict[str, list[tuple[str, set[str], datetime]]]) -> None:
        self._letters: dict[str, list[Letter]] = {}
        for name, messages in folders_given.items():
            items = self._letters[name] = []
            for body, flags, date in messages:
                number = next(_numbers)
                item = Item(b"%d" % number)
                items.append(Letter(item, letter(number, body), tuple(flags), date))

    def folders(self) -> list[SourceFolder]:
        return [SourceFolder(name.encode(), tuple(name.split("/"))) for name in self._letters]

    def pages(self, folder: SourceFolder):  # type: ignore[no-untyped-def] # as the protocol has it
        yield [one.item for one in self._letters[folder.key.decode()]]

    def read(self, folder: SourceFolder, items):  # type: ignore[no-untyped-def] # as the protocol has it
        yield from (one for one in self._letters[folder.key.decode()] if one.item in items)

    def close(self) -> None:
        pass


async def filled(home: House, folders: dict[str, list[tuple[str, set[str], datetime]]]) -> tuple[Box, Seen]:
    box = await home.box()
    source: Source = Given(folders)
    await home.bring(box, source)
    return box, await home.seen(box.ref)


@pytest.mark.covers("decisions:B5", "decisions:C7", "mail-server:E1", "mail-server:D5")
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(_MAILBOXES)
async def test_maildir(home: House, tmp_path: Path, folders: dict[str, list[tuple[str, set[str], datetime]]]) -> None:
    box, before = await filled(home, folders)
    root = tmp_path / f"export-{next(_numbers)}"
    exported = await home.write_maildir(box, root)
    assert exported.is_whole
    home.clock.advance(100)
    other = await home.box()
    report = await home.bring(other, MaildirSource(root, max_bytes=LIMIT))
    assert report.is_whole
    assert await home.seen(other.ref) == before
    assert {one.folder: one.uids.value for one in report.folders} == dict.fromkeys(before, "kept")
    for name in before:
        assert await home.uids(other.ref, name) == await home.uids(box.ref, name)
    _check_with_stdlib(root, before)


def _check_with_stdlib(root: Path, before: Seen) -> None:
    theirs = mailbox.Maildir(root, create=False)
    found = sorted((one.as_bytes(), "".join(sorted(set(one.get_flags()) & set("DFRST")))) for one in theirs)
    assert len(found) == len(before["INBOX"])
    letters = {"$draft": "D", "$flagged": "F", "$answered": "R", "$seen": "S", "$deleted": "T"}
    assert sorted(flags for _, flags in found) == sorted(
        "".join(sorted(letters[word] for word in flags if word in letters)) for _, flags, _ in before["INBOX"]
    )
    assert sorted(int(one.get_date()) for one in theirs) == sorted(
        int(date.timestamp()) for _, _, date in before["INBOX"]
    )


@pytest.mark.covers("decisions:C7", "RFC 4155")
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(_MAILBOXES)
async def test_mbox(home: House, tmp_path: Path, folders: dict[str, list[tuple[str, set[str], datetime]]]) -> None:
    box, before = await filled(home, folders)
    root = tmp_path / f"export-{next(_numbers)}"
    assert (await home.write_mbox(box, root)).is_whole
    other = await home.box()
    report = await home.bring(other, MboxSource(root, max_bytes=LIMIT))
    assert report.is_whole
    assert await home.seen(other.ref) == before


async def test_folders_called_as_files_are(home: House, tmp_path: Path) -> None:
    date = datetime(2019, 5, 1, 12, tzinfo=UTC)
    names = ["A", "A.mbox/B", "A.mbox.part/B", "A.mbox_/B"]
    box, before = await filled(home, {name: [(name, set(), date)] for name in names})
    assert (await home.write_mbox(box, tmp_path / "x")).is_whole
    other = await home.box()
    await home.bring(other, MboxSource(tmp_path / "x", max_bytes=LIMIT))
    after = await home.seen(other.ref)
    assert {name: after[name] for name in names} == {name: before[name] for name in names}


async def an_export(home: House, root: Path) -> tuple[Box, Seen]:
    date = datetime(2019, 5, 1, 12, tzinfo=UTC)
    box, before = await filled(
        home,
        {
            "INBOX": [(f"Body {n}", {"$seen"} if n % 2 else set(), date + timedelta(days=n)) for n in range(6)],
            "Work/2026": [("Hello", {"$flagged", "urgent", "$label1"}, date), ("From me", set(), date)],
            "Entwürfe": [("Hi", {"$draft", "$seen"}, date)],
            "Archive": [],
        },
    )
    work = await home.boxes.folder(box.ref, "Entwürfe")
    await home.boxes.subscribe(box.ref, work.id, False)
    await home.write_maildir(box, root)
    return box, before


@pytest.mark.covers("decisions:B5", "mail-server:E1")
async def test_an_interrupted_export_is_gone_on_with(home: House, tmp_path: Path) -> None:
    root = tmp_path / "m"
    box, before = await an_export(home, root)
    with pytest.raises(ExportRefused):
        await home.write_maildir(box, root)
    marker = root / "postroom-export.json"
    marker.write_text(marker.read_text().replace('"complete": true', '"complete": false'))
    kept, *lost = sorted((root / "cur").iterdir())
    for path in lost:
        path.unlink()
    kept.rename(kept.with_name(kept.name.replace(":2,S", ":2,F")))
    (root / "cur" / "1.V9U9.msg_gone,S=1:2,S").write_bytes(b"x")
    (root / "tmp" / "half").write_bytes(b"x")
    report = await home.write_maildir(box, root)
    assert report.folders[0].exported == len(lost)
    assert report.folders[0].earlier == 6 - len(lost)
    home.clock.advance(100)
    other = await home.box()
    await home.bring(other, MaildirSource(root, max_bytes=LIMIT))
    assert await home.seen(other.ref) == before


async def test_a_directory_of_somebody_else_is_left_alone(home: House, tmp_path: Path) -> None:
    root = tmp_path / "m"
    root.mkdir()
    (root / "precious").write_text("x")
    box = await home.box()
    with pytest.raises(ExportRefused):
        await home.write_maildir(box, root)
    with pytest.raises(ExportRefused):
        await home.write_mbox(box, root)
    assert [path.name for path in root.iterdir()] == ["precious"]


async def test_bytes_that_are_missing_are_told(home: House, tmp_path: Path) -> None:
    box, _ = await an_export(home, tmp_path / "m")
    async with home.db.acquire() as conn:
        key = await conn.fetchval("SELECT blob_key FROM messages WHERE mailbox_id = $1 LIMIT 1", box.ref.mailbox_id)
    await home.blobs.delete([key])
    report = await home.write_maildir(box, tmp_path / "n")
    assert not report.is_whole
    assert sum(one.missing for one in report.folders) == 1


async def test_what_was_exported_and_comes_back_is_known(home: House, tmp_path: Path) -> None:
    box, before = await an_export(home, tmp_path / "m")
    report = await home.bring(box, MaildirSource(tmp_path / "m", max_bytes=LIMIT))
    assert sum(one.imported for one in report.folders) == 0
    assert await home.seen(box.ref) == before


# -- Dovecot -----------------------------------------------------------------------------------------------------------

needs_dovecot = pytest.mark.skipif(shutil.which("doveadm") is None, reason="Dovecot is not installed")


@dataclass
class Dovecot:
    """doveadm on a copy of the Maildir that belongs to somebody: it does not work for root."""

    home: Path
    user: str

    @property
    def maildir(self) -> Path:
        return self.home / "Maildir"

    def take(self, root: Path) -> None:
        shutil.copytree(root, self.maildir)
        if os.geteuid() == 0:
            for path in (self.home, *self.home.rglob("*")):
                shutil.chown(path, self.user)

    def __call__(self, *arguments: str) -> list[str]:
        own = os.geteuid() == 0
        done = subprocess.run(
            ["doveadm", "-c", str(self.home / "dovecot.conf"), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            user=self.user if own else None,
            group=pwd.getpwnam(self.user).pw_gid if own else None,
            extra_groups=[] if own else None,
            cwd=self.home,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.home), "USER": self.user},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture
def doveadm() -> Iterator[Dovecot]:
    user = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    home = Path(tempfile.mkdtemp(prefix="postroom-dovecot-"))
    home.chmod(0o755)
    (home / "dovecot.conf").write_text(
        f"mail_location = maildir:{home}/Maildir\nbase_dir = {home}/run\nfirst_valid_uid = 1\nmail_uid = {user}\n"
        f"mail_gid = {pwd.getpwnam(user).pw_gid}\nfirst_valid_gid = 0\nlog_path = /dev/stderr\nssl = no\n"
        "namespace inbox {\n  inbox = yes\n  separator = /\n}\n"
    )
    yield Dovecot(home, user)
    shutil.rmtree(home)


@needs_dovecot
@pytest.mark.covers("decisions:B5", "mail-server:E1")
async def test_dovecot_reads_it(home: House, tmp_path: Path, doveadm: Dovecot) -> None:
    box, before = await an_export(home, tmp_path / "m")
    doveadm.take(tmp_path / "m")
    assert sorted(doveadm("mailbox", "list", "-8")) == sorted(before)
    assert sorted(doveadm("mailbox", "list", "-8", "-s")) == sorted(set(before) - {"Entwürfe"})
    for name in ("INBOX", "Work/2026", "Entwürfe"):
        validity, following, uids = await home.uids(box.ref, name)
        (status,) = doveadm("mailbox", "status", "uidvalidity uidnext messages", name)
        assert status.endswith(f"messages={len(uids)} uidnext={following} uidvalidity={validity}"), status
        fetched = doveadm("-f", "tab", "fetch", "uid flags size.physical", "mailbox", name)[1:]
        assert [int(line.split("\t")[0]) for line in fetched] == uids
        flags = [
            {word.lower().replace("\\", "$") for word in line.split("\t")[1].split()} - {"$recent"} for line in fetched
        ]
        assert flags == [set(words) for _, words, _ in before[name]]
        assert [int(line.split("\t")[2]) for line in fetched] == [len(raw) for raw, _, _ in before[name]]


@needs_dovecot
@pytest.mark.covers("decisions:C7", "mail-server:D4")
async def test_after_dovecot_has_worked_on_it(home: House, tmp_path: Path, doveadm: Dovecot) -> None:
    """Dovecot changes flags, files mail elsewhere and takes new mail; what it wrote is read back with its UIDs."""
    _, before = await an_export(home, tmp_path / "m")
    doveadm.take(tmp_path / "m")
    doveadm("flags", "add", "\\Flagged $Later", "mailbox", "INBOX", "uid", "2")
    doveadm("expunge", "mailbox", "INBOX", "uid", "4")
    doveadm("mailbox", "create", "New")
    doveadm("copy", "New", "mailbox", "INBOX", "uid", "1")
    home.clock.advance(100)
    box = await home.box()
    report = await home.bring(box, MaildirSource(doveadm.maildir, max_bytes=LIMIT))
    assert {one.uids.value for one in report.folders if one.folder in ("INBOX", "Work/2026", "Entwürfe")} == {"kept"}
    _, _, uids = await home.uids(box.ref, "INBOX")
    assert uids == [1, 2, 3, 5, 6]
    seen = await home.seen(box.ref)
    assert set(seen["INBOX"][1][1]) == {"$seen", "$flagged", "$later"}
    assert seen["New"][0][0] == before["INBOX"][0][0]
    assert (await home.boxes.folder(box.ref, "Sent")).special_use is SpecialUse.SENT
