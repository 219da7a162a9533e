"""Imports that are interrupted, repeated, run twice at a time, or have no room: each message once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar

import asyncpg
import pytest

from postroom.mailbox.models import Direction, Source, SpecialUse
from postroom.migration.maildir import MaildirSource
from postroom.migration.models import AnotherImport, Item, Letter, SourceFolder, Uids
from tests.mailbox.letters import TRACE, Pen, raw_mail
from tests.migration.moving import House, digests, letter, make_maildir

LIMIT = 1 << 20
COUNT = 150


def many(root: Path, count: int = COUNT) -> Path:
    """A Maildir with UIDs; two of its files hold the same bytes."""
    files = {f"cur/{n:04}.x:2,": letter(n) for n in range(1, count)}
    files[f"cur/{count:04}.x:2,"] = letter(1)
    entries = "".join(f"{n} :{n:04}.x\n" for n in range(1, count + 1))
    return make_maildir(root, files, dovecot_uidlist=f"3 V1400000000 N{count + 50}\n{entries}")


def source(root: Path) -> MaildirSource:
    return MaildirSource(root, max_bytes=LIMIT)


@pytest.mark.covers("decisions:C7", "edge:B14")
async def test_interrupted_anywhere(home: House, tmp_path: Path) -> None:
    """Cancelled at whatever it waits for, again and again; what was brought stays, and nothing is there twice."""
    root = many(tmp_path / "m")
    box = await home.box()
    dice = random.Random(7)
    for _ in range(12):
        run = asyncio.create_task(home.importer(box).run(source(root)))
        await asyncio.wait([run], timeout=dice.uniform(0, 0.25))
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    report = await home.bring(box, source(root))
    (inbox,) = (one for one in report.folders if one.folder == "INBOX")
    assert inbox.uids is Uids.KEPT
    validity, following, uids = await home.uids(box.ref, "INBOX")
    assert (validity, following) == (1_400_000_000, COUNT + 50)
    assert uids == list(range(1, COUNT))
    found = digests((await home.seen(box.ref))["INBOX"])
    assert len(found) == len(set(found)) == COUNT - 1
    again = await home.bring(box, source(root))
    assert [(one.imported, one.duplicates) for one in again.folders] == [(0, 0)]


@pytest.mark.covers("decisions:B15", "decisions:C7")
async def test_the_answer_to_commit_is_lost(home: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = many(tmp_path / "m", 20)
    box = await home.box()
    lost: list[str] = []
    execute = asyncpg.Connection.execute

    async def losing(self: Any, query: str, *args: Any, **options: Any) -> Any:
        answer = await execute(self, query, *args, **options)
        if query == "COMMIT" and not lost:
            lost.append(query)
            raise asyncpg.ConnectionDoesNotExistError("gone")
        return answer

    monkeypatch.setattr(asyncpg.Connection, "execute", losing)
    report = await home.bring(box, source(root))
    assert lost
    assert [(one.imported, one.duplicates) for one in report.folders] == [(19, 1)]
    assert len((await home.seen(box.ref))["INBOX"]) == 19


@pytest.mark.covers("decisions:C7")
async def test_two_runs_at_a_time(home: House, tmp_path: Path) -> None:
    root = many(tmp_path / "m")
    box = await home.box()
    runs = await asyncio.gather(*(home.importer(box).run(source(root)) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(one, AnotherImport) for one in runs if isinstance(one, BaseException)), runs
    await home.bring(box, source(root))
    found = digests((await home.seen(box.ref))["INBOX"])
    assert len(found) == len(set(found)) == COUNT - 1


@pytest.mark.covers("mail-server:E4", "decisions:D9")
async def test_a_mailbox_that_is_full(home: House, tmp_path: Path) -> None:
    root = many(tmp_path / "m", 40)
    room = sum(len(letter(n)) for n in range(1, 11))
    box = await home.box(quota_bytes=room)
    report = await home.bring(box, source(root))
    assert report.full
    assert not report.is_whole
    async with home.db.acquire() as conn:
        used = await conn.fetchval("SELECT used_bytes FROM mailboxes WHERE id = $1", box.ref.mailbox_id)
        assert room - 400 < used <= room
        await conn.execute("UPDATE mailboxes SET quota_bytes = NULL WHERE id = $1", box.ref.mailbox_id)
    report = await home.bring(box, source(root))
    assert report.is_whole
    assert len((await home.seen(box.ref))["INBOX"]) == 39
    keys = await home.blobs.list("", limit=1000)
    assert len(keys) == 39, "bytes of what had no room are gone"


@pytest.mark.covers("edge:B14", "mail-server:D8")
async def test_what_came_by_mail_is_known(home: House, tmp_path: Path) -> None:
    """The other server kept our own copy with its trace lines, or the message as it was sent."""
    box = await home.box()
    raw, other = raw_mail(message_id="a@example.com"), raw_mail(message_id="b@example.com")
    pen = Pen(home.ids, home.clock)
    async with home.db.acquire() as conn:
        for one in (raw, other):
            copy = pen.copy(box, one)
            await home.blobs.put(copy.blob_key, TRACE + one)
            await pen.store(conn, [copy])
    root = make_maildir(tmp_path / "m", {"cur/1.a": TRACE + raw, "cur/2.b": other, "cur/3.c": b"X: y\r\n" + raw})
    report = await home.bring(box, source(root))
    assert [(one.imported, one.duplicates) for one in report.folders] == [(1, 2)]


@pytest.mark.covers("mail-server:D8")
async def test_no_events_and_the_time_it_came(home: House, tmp_path: Path) -> None:
    box = await home.box()
    await home.bring(box, source(make_maildir(tmp_path / "m", {"cur/1.a": letter(1), "cur/2.b": letter(2)})))
    async with home.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM events") == 0
        rows = await conn.fetch("SELECT * FROM messages WHERE mailbox_id = $1", box.ref.mailbox_id)
    assert {(row["source"], row["direction"], row["verdict"]) for row in rows} == {
        (Source.APPEND.value, Direction.INBOUND.value, "unverified")
    }
    assert {int(row["received_at"].timestamp()) for row in rows} == {1_500_000_000}


async def test_a_message_that_the_database_refuses_is_kept_by_its_headers(home: House, tmp_path: Path) -> None:
    """Something in the description cannot be stored: that message loses it, its neighbours lose nothing (B15)."""
    box = await home.box()
    files = {f"cur/{n}.x": letter(n) for n in range(1, 8)}
    root = make_maildir(tmp_path / "m", files)
    describe = home.parser.describe

    async def broken(prefix: bytes, original: bytes, *args: Any, **options: Any) -> Any:
        from dataclasses import replace

        content = await describe(prefix, original, *args, **options)
        return replace(content, text="a\0b") if original == letter(4) else content

    home.parser.describe = broken  # type: ignore[method-assign] # stands for a fault in parsing
    report = await home.bring(box, source(root))
    assert report.is_whole
    assert [one[0] for one in (await home.seen(box.ref))["INBOX"]] == [letter(n) for n in range(1, 8)]
    async with home.db.acquire() as conn:
        degraded = await conn.fetch(
            "SELECT subject FROM messages WHERE mailbox_id = $1 AND 'parse_degraded' = ANY (facts)", box.ref.mailbox_id
        )
    assert [row["subject"] for row in degraded] == ["Letter 4"]


@pytest.mark.covers("decisions:B12")
async def test_another_mailbox_remembers_nothing_of_it(home: House, tmp_path: Path) -> None:
    root = many(tmp_path / "m", 10)
    one, other = await home.box(), await home.box()
    await home.bring(one, source(root))
    report = await home.bring(other, source(root))
    assert report.folders[0].imported == 9
    assert await home.remembered(one.ref) == await home.remembered(other.ref)
    await home.bring(one, source(root), forget=True)
    assert await home.remembered(other.ref) > 0


class Gmail:
    """Folders with roles; what is in `All Mail` is, mostly, in others too."""

    label = b"gmail"
    _mail: ClassVar[dict[str, list[int]]] = {
        "Alle": [1, 2, 3, 4],
        "INBOX": [1, 2],
        "Wichtig": [1],
        "Gesendet": [3],
        "Markiert": [2],
    }
    _roles: ClassVar[dict[str, SpecialUse]] = {
        "Wichtig": SpecialUse.FLAGGED,
        "Markiert": SpecialUse.FLAGGED,
        "Gesendet": SpecialUse.SENT,
        "Alle": SpecialUse.ALL,
    }

    def folders(self) -> list[SourceFolder]:
        return [SourceFolder(name.encode(), (name,), self._roles.get(name)) for name in self._mail]

    def pages(self, folder: SourceFolder) -> Iterator[list[Item]]:
        yield [Item(b"%d" % n) for n in self._mail[folder.path[0]]]

    def read(self, folder: SourceFolder, items: Sequence[Item]) -> Iterator[Letter]:
        for item in items:
            yield Letter(item, letter(int(item.key)))

    def close(self) -> None:
        pass


@pytest.mark.covers("RFC 6154", "decisions:C7")
async def test_folders_that_show_mail_of_others(home: House) -> None:
    box = await home.box()
    report = await home.bring(box, Gmail())
    seen = await home.seen(box.ref)
    assert {name: [one[0] for one in messages] for name, messages in seen.items() if messages} == {
        "INBOX": [letter(1), letter(2)],
        "Sent": [letter(3)],
        "Alle": [letter(4)],
    }
    assert report.left_out == ["Wichtig", "Markiert"]


class Odd:
    """One folder of a source that says what it likes."""

    label = b"odd"

    def __init__(
        self, uids: Sequence[int] = (), following: int = 0, *, validity: int = 0, date: datetime | None = None
    ) -> None:
        self._uids, self._following, self._validity, self._date = uids, following, validity, date

    def folders(self) -> list[SourceFolder]:
        return [SourceFolder(b"INBOX", ("INBOX",), None, self._validity, self._following)]

    def pages(self, folder: SourceFolder) -> Iterator[list[Item]]:
        yield [Item(b"%d" % uid, uid) for uid in self._uids]

    def read(self, folder: SourceFolder, items: Sequence[Item]) -> Iterator[Letter]:
        for item in items:
            yield Letter(item, letter(item.uid), (), self._date)

    def close(self) -> None:
        pass


@pytest.mark.covers("decisions:C7")
@pytest.mark.parametrize(
    ("uids", "following", "validity"),
    [
        ([2**32 - 6], 2**32 - 5, 1_400_000_000),
        ([2**32 - 6], 7, 1_400_000_000),
        ([], 2**32 - 1, 1_400_000_000),
        ([10**10 - 1], 7, 1_400_000_000),
        ([5], 10**10 - 1, 1_400_000_000),
        ([5], 6, 10**10 - 1),
    ],
)
async def test_uids_that_would_leave_none_for_mail_to_come(
    home: House, uids: list[int], following: int, validity: int
) -> None:
    box = await home.box()
    report = await home.bring(box, Odd(uids, following, validity=validity))
    assert [(one.imported, one.uids) for one in report.folders] == [(len(uids), Uids.NEW)]
    report = await home.bring(box, Odd([1, 2, 3]))
    assert [one.imported for one in report.folders] == [3]
    assert (await home.uids(box.ref, "INBOX"))[1] < 100


@pytest.mark.covers("decisions:C7")
@pytest.mark.parametrize(
    "date", [datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=timezone(-timedelta(1) / 2))]
)
async def test_dates_at_the_ends_of_the_calendar(home: House, date: datetime) -> None:
    box = await home.box()
    report = await home.bring(box, Odd([1], date=date))
    assert report.is_whole
    assert (await home.seen(box.ref))["INBOX"] == [(letter(1), (), home.clock.now().replace(microsecond=0))]


@pytest.mark.covers("decisions:B14")
async def test_a_mailbox_that_is_held_for_a_while(home: House, tmp_path: Path) -> None:
    box = await home.box()
    async with home.db.transaction() as conn:
        await conn.execute("SELECT FROM mailboxes WHERE id = $1 FOR UPDATE", box.ref.mailbox_id)
        run = asyncio.create_task(home.bring(box, source(many(tmp_path / "m", 5))))
        await asyncio.sleep(0.5)
        assert not run.done()
    assert (await run).folders[0].imported == 4
