"""Large folders: what is read, told and held goes in portions, whatever happens between them (B16; quality.md)."""

from __future__ import annotations

import asyncio
import re
from array import array
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.imap import render
from postroom.imap.turns import finish, in_order
from postroom.mailbox.models import Folder, FolderKey, MailboxRef
from postroom.mailbox.reads import Columns, FolderChanges, FolderReads, Snapshot, States
from postroom.mailbox.rules import Flags
from postroom.mailbox.service import Mailboxes
from postroom.servers.imap import selected as selected_module
from postroom.servers.imap.boxes import Box
from postroom.servers.imap.facts import FactCache
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Session
from postroom.servers.imap.views import FolderView
from tests.imap_server.conftest import mail

REF = MailboxRef(1, 1)
WORDS: Sequence[Flags] = ((), ("$seen",), ("$flagged",), ("$flagged", "$seen"))


def _folder(uid_next: int, modseq: int) -> Folder:
    return Folder(FolderKey(1), "fld_1", "INBOX", None, True, 1, uid_next, 0, modseq, 0, 0, 0, 0)


def _states(rows: Iterable[tuple[int, int, Flags]]) -> States:
    rows = sorted(rows)
    return States(array("I", (row[0] for row in rows)), array("Q", (row[1] for row in rows)), [row[2] for row in rows])


def _view(count: int) -> FolderView:
    states = _states((uid, 1, ()) for uid in range(1, count + 1))
    snapshot = Snapshot(_folder(count + 1, 1), 1, 0, states.uids, states.modseqs, states.flags)
    return FolderView(cast(Mailboxes, None), REF, snapshot)


def _change(
    view: FolderView, removed: Iterable[int], flags: Iterable[tuple[int, Flags]], placed: int, uid_next: int
) -> None:
    """The view reads of one transaction."""
    modseq = view.modseq + 1
    changes = FolderChanges(
        _folder(uid_next + placed, modseq),
        modseq,
        view.seq + 1,
        placed=_states((uid, modseq, ()) for uid in range(uid_next, uid_next + placed)),
        flags=_states((uid, modseq, words) for uid, words in flags),
        removed=array("I", removed),
    )
    asyncio.run(view._apply(changes))


BOX: Final = Box(MailboxRef(1, 1), "ten_x", "idn_x", may_write=True, rights=frozenset())


class _Model:
    """A client that believes what it is told."""

    def __init__(self, selected: Selected) -> None:
        self.selected = selected
        self.uids = list(selected.told_uids())
        self.flags: dict[int, bytes] = {}

    def read(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if found := re.fullmatch(rb"\* (\d+) EXPUNGE\r\n", line):
                del self.uids[int(found[1]) - 1]
            elif found := re.fullmatch(rb"\* VANISHED ([\d,:]+)\r\n", line):
                for part in found[1].split(b","):
                    low, _, high = part.partition(b":")
                    for uid in range(int(low), int(high or low) + 1):
                        self.uids.remove(uid)
            elif found := re.fullmatch(rb"\* (\d+) FETCH \(FLAGS (\(.*\)) UID (\d+)\)\r\n", line):
                assert self.uids[int(found[1]) - 1] == int(found[3])
                self.flags[int(found[3])] = found[2]
            elif found := re.fullmatch(rb"\* (\d+) EXISTS\r\n", line):
                assert int(found[1]) > len(self.uids)
                new = self.selected.told_uids()[len(self.uids) : int(found[1])]
                self.uids += new
                # Of what is new it asks itself.
                view = self.selected.view
                self.flags.update(
                    {uid: render.flags(view.flags[at]) for uid in new if (at := view.index(uid)) is not None}
                )
            else:
                raise AssertionError(line)
        assert self.uids == list(self.selected.told_uids())


@pytest.mark.covers("RFC 3501 §7.4.1", "RFC 7162 §3.2.10", "decisions:A7")
@pytest.mark.parametrize("journal", [4, 1000])
@given(data=st.data())
def test_numbers_stay_right_whatever_happens_between_portions(journal: int, data: st.DataObject) -> None:
    """Portions of two changes; the view moves on between them, and forgets what was long ago."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selected_module, "AT_ONCE", 2)
        patch.setattr("postroom.servers.imap.views.MAX_JOURNAL", journal)
        view = _view(data.draw(st.integers(0, 9), label="count"))
        selected = Selected(BOX, view, read_only=False, recent=None)
        model = _Model(selected)
        for step in data.draw(st.lists(st.sampled_from("ctttn"), max_size=25), label="steps"):
            if step == "c":
                uid_next, there = view.folder.uid_next, list(view.uids)
                removed = data.draw(st.sets(st.sampled_from(there))) if there else set()
                left = sorted(set(there) - removed)
                flags = data.draw(st.dictionaries(st.sampled_from(left), st.sampled_from(WORDS))) if left else {}
                _change(view, removed, flags.items(), data.draw(st.integers(0, 3)), uid_next)
            else:
                upto = data.draw(st.integers(selected._position, view.journal_end))
                model.read(
                    selected.updates(upto, expunge=step == "t", flags=data.draw(st.booleans()), vanished=step == "n")
                )
        end = view.journal_end
        while selected.is_behind(end, expunge=True, flags=True):
            model.read(selected.updates(end, expunge=True, vanished=data.draw(st.booleans())))
        model.read(selected.updates(expunge=True))
        assert selected.up_to_date
        assert model.uids == list(view.uids)
        assert {uid: model.flags.get(uid, b"()") for uid in model.uids} == {
            uid: render.flags(words) for uid, words in zip(view.uids, view.flags, strict=True)
        }


class _SlowWire:
    """Counts what is written between two times that the client has read."""

    def __init__(self) -> None:
        self.waiting = self.most = self.times = self.total = 0

    def send(self, buffers: Iterable[bytes | memoryview]) -> None:
        written = sum(map(len, buffers))
        self.waiting, self.total = self.waiting + written, self.total + written
        self.most = max(self.most, self.waiting)

    async def drained(self) -> None:
        self.times += 1
        self.waiting = 0
        await asyncio.sleep(0)


async def test_no_more_is_told_than_the_client_reads() -> None:
    """A hundred thousand messages go and others change while a session looks on: a thousand of each at a time."""
    count = 100_000
    view = await asyncio.to_thread(_view, count)
    wire = _SlowWire()
    services = SimpleNamespace(sharing=None)
    shared = SimpleNamespace(config=SimpleNamespace(max_append_size=1000), services=services)
    session = Session(cast(Any, shared), cast(Any, wire), {})
    session.selected = Selected(BOX, view, read_only=False, recent=None)
    flags = [(uid, WORDS[1]) for uid in range(1, count, 2)]
    await asyncio.to_thread(_change, view, range(2, count + 1, 2), flags, 1, count + 1)
    await session.tell_updates(expunge=True)
    session.flush()
    assert session.selected.up_to_date
    assert wire.total > 2_000_000
    assert wire.times >= 50
    assert wire.most < 150_000


@pytest.mark.covers("decisions:B16")
async def test_a_scattered_set_is_read_in_pages(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One statement for a page of messages, however the set is cut."""
    await office.fill(12)
    client = await office.client()
    asked: list[int] = []
    fetch = FolderReads._fetch

    async def counting(self: FolderReads, *arguments: Any) -> Any:
        rows = await fetch(self, *arguments)
        asked.append(len(rows))
        return rows

    monkeypatch.setattr(FolderReads, "_fetch", counting)
    lines = await client.ok(b"UID FETCH 1,3,5,7:8,11 (RFC822.SIZE)")
    assert [int(line.split()[1]) for line in lines] == [1, 3, 5, 7, 8, 11]
    assert len(asked) == 1
    await client.ok(b"FETCH 1,3,5,7,9,11 (BODY.PEEK[HEADER])")
    assert len(asked) == 2


@pytest.mark.covers("RFC 7162 §3.1.4.1")
async def test_scattered_changes(office: Any) -> None:
    await office.fill(9)
    client = await office.client()
    lines = await client.ok(b"STATUS INBOX (HIGHESTMODSEQ)")
    highest = int(lines[0].rpartition(b" ")[2].rstrip(b")"))
    await client.ok(rb"STORE 1,4:5,9 +FLAGS.SILENT (\Flagged)")
    lines = await client.ok(b"FETCH 1:* (FLAGS) (CHANGEDSINCE %d)" % highest)
    assert [int(line.split()[1]) for line in lines] == [1, 4, 5, 9]
    assert all(rb"\Flagged" in line and b"MODSEQ (" in line for line in lines)


async def test_whoever_goes_through_much_keeps_nothing(office: Any) -> None:
    await office.deliver(mail())
    folder = (await office.boxes.folder(office.ref, "INBOX")).id
    cache = FactCache(office.boxes.reads, 1_000_000)
    (found,) = await cache.load(office.ref, folder, [1], Columns.ENVELOPE, keep=False)
    assert found is not None
    assert found.uid == 1
    assert cache.weight == 0
    await cache.load(office.ref, folder, [1], Columns.ENVELOPE)
    assert cache.weight > 0


@pytest.mark.parametrize("count", [0, 499, 500, 4_001, 9_999])
def test_long_lists_are_sorted_as_by_sorted(count: int) -> None:
    items = [(n * 7919 % 13, n) for n in range(count)]
    assert finish(in_order(items)) == sorted(items)
    assert finish(in_order(items, key=lambda item: item[0])) == sorted(items, key=lambda item: item[0])


async def test_a_long_store_tells_as_it_goes(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silently or not, each message once, and what came meanwhile; nobody's numbers change on the way."""
    monkeypatch.setattr("postroom.servers.imap.store._CHUNK", 2)
    await office.fill(7)
    client, other = await office.client(), await office.client()
    held: list[int] = []
    meanwhile = Session.tell_meanwhile

    async def counting(self: Session) -> None:
        await meanwhile(self)
        assert self.selected is not None
        assert self.selected.up_to_date
        held.append(len(self.selected._silenced or ()))

    monkeypatch.setattr(Session, "tell_meanwhile", counting)
    await office.deliver(mail("Eighth"))
    lines = await client.ok(rb"STORE 1:7 +FLAGS (\Flagged)")
    assert [line for line in lines if b"FETCH" in line] == [
        rb"* %d FETCH (FLAGS (\Flagged \Recent))" % n for n in range(1, 8)
    ]
    assert b"* 8 EXISTS" in lines
    assert await client.ok(rb"STORE 1:8 -FLAGS.SILENT (\Flagged)") == []
    assert held == [0] * 6
    assert len([line for line in await other.ok(b"NOOP") if b"FETCH" in line]) == 7
