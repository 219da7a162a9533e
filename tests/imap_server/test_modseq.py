"""What a client that follows modification sequences is told (RFC 7162, decisions C1)."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from postroom.imap.sequence import SequenceSet, compress_ranges, gaps, indices

NOTE = b"Subject: x\r\n\r\n"
_FETCH = re.compile(rb"\* (\d+) FETCH \((.*)\)")
_VANISHED = re.compile(rb"\* VANISHED (\(EARLIER\) )?([\d:,]+)")


def _modseq(lines: list[bytes]) -> int:
    return int(re.search(rb"HIGHESTMODSEQ (\d+)", b"\n".join(lines))[1])  # type: ignore[index]  # it is there


def _uids(words: bytes) -> set[int]:
    ends = (part.partition(b":") for part in words.split(b","))
    return {uid for low, colon, high in ends for uid in range(int(low), int(high if colon else low) + 1)}


@pytest.mark.covers("RFC 5161 §3.1", "RFC 7162 §3.2.3")
async def test_enable_tells_what_is_new(office: Any) -> None:
    client = await office.client(None)
    assert await client.ok(b"ENABLE X-OTHER CONDSTORE") == [b"* ENABLED CONDSTORE"]
    assert await client.ok(b"ENABLE QRESYNC CONDSTORE") == [b"* ENABLED QRESYNC"]
    assert await client.ok(b"ENABLE QRESYNC") == [b"* ENABLED"]


@pytest.mark.covers("RFC 7162 §3.1.2", "RFC 7162 §3.1.7")
async def test_select_and_status_tell_how_far_the_mailbox_is(office: Any) -> None:
    client = await office.client(None)
    before = _modseq(await client.ok(b"SELECT INBOX"))
    await client.append(NOTE)
    await client.ok(b"NOOP")
    (line,) = await client.ok(b"STATUS INBOX (HIGHESTMODSEQ)")
    assert int(re.search(rb"HIGHESTMODSEQ (\d+)", line)[1]) > before  # type: ignore[index]  # it is there


@pytest.mark.covers("RFC 7162 §3.1.4.2", "RFC 7162 §3.1.4.1", "RFC 7162 §3.1.5")
async def test_what_changed_since_a_point(office: Any) -> None:
    client = await office.client(None)
    for _ in range(4):
        await client.append(NOTE)
    start = _modseq(await client.ok(b"SELECT INBOX (CONDSTORE)"))
    await client.ok(b"STORE 2,3 +FLAGS (\\Flagged)")
    shown = await client.ok(b"FETCH 1:* (UID) (CHANGEDSINCE %d)" % start)
    assert [re.sub(rb"\(\d+\)\)$", b"(n))", line) for line in shown] == [
        b"* 2 FETCH (UID 2 MODSEQ (n))",
        b"* 3 FETCH (UID 3 MODSEQ (n))",
    ]
    modseq = int(re.search(rb"MODSEQ \((\d+)\)", shown[0])[1])  # type: ignore[index]  # it is there
    assert await client.ok(b"SEARCH MODSEQ %d" % modseq) == [b"* SEARCH 2 3 (MODSEQ %d)" % modseq]
    assert await client.ok(b'SEARCH MODSEQ "/flags/\\\\draft" all %d' % (modseq + 1)) == [b"* SEARCH"]
    (line,) = await client.ok(b"UID SEARCH RETURN (COUNT) OR MODSEQ %d UID 1" % modseq)
    assert line.endswith(b"COUNT 3 MODSEQ %d" % modseq)
    assert [line.rpartition(b" ")[0] for line in await client.ok(b"FETCH 1 (FLAGS MODSEQ)")] == [
        rb"* 1 FETCH (FLAGS (\Recent) MODSEQ"
    ]


@pytest.mark.covers("RFC 7162 §3.1.3", "RFC 7162 §3.1.3.1")
async def test_a_conditional_store_leaves_alone_what_others_changed(office: Any) -> None:
    client, other = await office.client(None), await office.client()
    for _ in range(3):
        await client.append(NOTE)
    point = _modseq(await client.ok(b"SELECT INBOX"))
    await other.ok(b"NOOP")
    await other.ok(b"STORE 2 +FLAGS (work)")
    lines = await client.ask(b"UID STORE 1:3 (UNCHANGEDSINCE %d) +FLAGS.SILENT (\\Deleted)" % point)
    assert lines[-1].startswith(b"OK [MODIFIED 2] ")
    told = b"\n".join(lines[:-1])
    assert re.search(rb"\* 1 FETCH \(UID 1 MODSEQ \(\d+\)\)", told)
    assert re.search(rb"\* 2 FETCH \(UID 2 FLAGS \(work[^)]*\) MODSEQ \(\d+\)\)", told)
    assert (await client.ok(b"SEARCH DELETED")) == [b"* SEARCH 1 3"]
    assert (await client.ask(b"STORE 1 (UNCHANGEDSINCE 0) FLAGS ()"))[-1].startswith(b"OK [MODIFIED 1] ")


@pytest.mark.covers("RFC 7162 §3.1")
async def test_changes_by_others_have_their_modseq_once_it_was_asked_for(office: Any) -> None:
    client, other = await office.client(), await office.client()
    await client.append(NOTE)
    await client.ok(b"NOOP")
    await other.ok(b"NOOP")
    await other.ok(b"STORE 1 +FLAGS (\\Seen)")
    assert not any(b"MODSEQ" in line for line in await client.ok(b"NOOP"))
    await client.ok(b"FETCH 1 MODSEQ")
    await other.ok(b"STORE 1 -FLAGS (\\Seen)")
    assert any(re.fullmatch(rb"\* 1 FETCH \(FLAGS \(.*\) UID 1 MODSEQ \(\d+\)\)", x) for x in await client.ok(b"NOOP"))
    seen = await client.ok(b"FETCH 1 BODY[]")
    assert b"MODSEQ (" in seen[0]
    assert rb"\Seen" in seen[0]


@pytest.mark.covers("RFC 7162 §3.2.10", "RFC 7162 §3.2.7", "RFC 7162 §3.2.11")
async def test_what_goes_is_told_by_uid(office: Any) -> None:
    client, other = await office.client(None), await office.client()
    await client.ok(b"ENABLE QRESYNC")
    for _ in range(5):
        await client.append(NOTE)
    start = _modseq(await client.ok(b"SELECT INBOX"))
    await other.ok(b"NOOP")
    await other.ok(b"STORE 2,3,5 +FLAGS.SILENT (\\Deleted)")
    await other.ok(b"EXPUNGE")
    # Not while numbers count (RFC 3501 §7.4.1).
    assert not any(b"VANISHED" in line for line in await client.ok(b"FETCH 1 (UID)"))
    assert b"* VANISHED 2:3,5" in await client.ok(b"NOOP")
    await client.ok(b"STORE 1 +FLAGS.SILENT (\\Deleted)")
    lines = await client.ask(b"EXPUNGE")
    assert lines[0] == b"* VANISHED 1"
    assert lines[-1].startswith(b"OK [HIGHESTMODSEQ ")
    assert _modseq(lines) > start
    assert not (await client.ask(b"EXPUNGE"))[-1].startswith(b"OK [")
    assert (await client.ok(b"SELECT Archive"))[0].startswith(b"* OK [CLOSED] ")
    assert b"* VANISHED (EARLIER) 2:3" not in await client.ok(b"SELECT INBOX")
    lines = await client.ok(b"UID FETCH 1:3,7:9 (FLAGS) (CHANGEDSINCE %d VANISHED)" % start)
    assert lines[0] == b"* VANISHED (EARLIER) 1:3"


@pytest.mark.covers("RFC 7162 §3.2.5", "RFC 7162 §3.2.6")
async def test_what_needs_qresync_is_refused_without_it(office: Any) -> None:
    client = await office.client(None)
    assert (await client.ask(b"SELECT INBOX (QRESYNC (1 1))"))[-1].startswith(b"BAD")
    await client.ok(b"SELECT INBOX")
    assert (await client.ask(b"UID FETCH 1:* (UID) (CHANGEDSINCE 1 VANISHED)"))[-1].startswith(b"BAD")
    await client.ok(b"ENABLE QRESYNC")
    for bad in (b"UID FETCH 1:* (UID) (VANISHED)", b"FETCH 1:* (UID) (CHANGEDSINCE 1 VANISHED)"):
        assert (await client.ask(bad))[-1].startswith(b"BAD")
    for bad in (
        b"(QRESYNC (1))",
        b"(QRESYNC (0 5))",
        b"(QRESYNC (1 5 1:*))",
        b"(QRESYNC (1 5 1:2 (1:2)))",
        b"(QRESYNC 5)",
    ):
        assert (await client.ask(b"SELECT INBOX " + bad))[-1].startswith(b"BAD")


@pytest.mark.covers("RFC 7162 §3.2.5")
async def test_another_uidvalidity_is_no_point_to_start_from(office: Any) -> None:
    client = await office.client(None)
    await client.ok(b"ENABLE QRESYNC")
    await client.append(NOTE)
    assert not any(b"FETCH" in line for line in await client.ok(b"SELECT INBOX (QRESYNC (1 1))"))


@pytest.mark.covers("RFC 7162 §3.2.5")
async def test_what_goes_while_a_client_catches_up(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another session brings on the view that both look at: numbers and flags are still of the same messages."""
    other, reader = await office.client(), await office.client(None)
    for _ in range(4):
        await other.append(NOTE)
    await reader.ok(b"ENABLE QRESYNC")
    lines = await reader.ok(b"SELECT INBOX")
    validity = int(re.search(rb"UIDVALIDITY (\d+)", b"\n".join(lines))[1])  # type: ignore[index]  # it is there
    await reader.ok(b"UNSELECT")
    for uid, words in ((2, b"\\Flagged"), (3, b"work"), (4, b"\\Seen"), (1, b"\\Deleted")):
        await other.ok(b"UID STORE %d +FLAGS (%b)" % (uid, words))
    reads = office.boxes.reads
    found = reads.removed_since

    async def late(*arguments: Any) -> Any:
        removed = await found(*arguments)
        await other.ok(b"EXPUNGE")
        return removed

    monkeypatch.setattr(type(reads), "removed_since", lambda _, *arguments: late(*arguments))
    told = await reader.ok(b"SELECT INBOX (QRESYNC (%d %d))" % (validity, _modseq(lines)))
    shown = [re.sub(rb" MODSEQ \(\d+\)", b"", line) for line in told if b"FETCH" in line]
    assert shown == [
        b"* 2 FETCH (UID 2 FLAGS (\\Flagged))",
        b"* 3 FETCH (UID 3 FLAGS (work))",
        b"* 4 FETCH (UID 4 FLAGS (\\Seen))",
    ]
    assert b"* VANISHED 1" in await reader.ok(b"NOOP")


class Cache:
    """What a client that keeps a copy of a mailbox knows of it: the flags of each UID, and how far it is."""

    def __init__(self) -> None:
        self.flags: dict[int, frozenset[bytes]] = {}
        self.validity = 0
        self.modseq = 0

    async def resync(self, client: Any, known: bool) -> None:
        if not self.modseq:
            lines = await client.ok(b"SELECT INBOX")
            lines += await client.ok(b"UID FETCH 1:* (FLAGS)")
        else:
            uids = b" " + SequenceSet.of(sorted(self.flags)).__bytes__() if known and self.flags else b""
            lines = await client.ok(b"SELECT INBOX (QRESYNC (%d %d%b))" % (self.validity, self.modseq, uids))
        self.take(lines)
        self.validity = int(re.search(rb"UIDVALIDITY (\d+)", b"\n".join(lines))[1])  # type: ignore[index]  # it is there
        self.modseq = _modseq(lines)

    def take(self, lines: list[bytes]) -> None:
        for line in lines:
            if gone := _VANISHED.fullmatch(line):
                for uid in _uids(gone[2]):
                    self.flags.pop(uid, None)
            elif (told := _FETCH.fullmatch(line)) and b"FLAGS" in told[2]:
                uid = int(re.search(rb"UID (\d+)", told[2])[1])  # type: ignore[index]  # it is there
                words = re.search(rb"FLAGS \(([^)]*)\)", told[2])[1].split()  # type: ignore[index]  # it is there
                self.flags[uid] = frozenset(words) - {rb"\Recent"}


async def _truth(client: Any) -> dict[int, frozenset[bytes]]:
    whole = Cache()
    whole.take(await client.ok(b"UID FETCH 1:* (FLAGS)"))
    return whole.flags


@pytest.mark.covers("RFC 7162 §3.2.5", "decisions:C1")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("pruned", [False, True])
async def test_a_copy_is_whole_after_any_absence(office: Any, seed: int, pruned: bool) -> None:
    rng = random.Random(seed)
    writer = await office.client()
    cache = Cache()
    for _ in range(6):
        reader = await office.client(None)
        await reader.ok(b"ENABLE QRESYNC")
        await cache.resync(reader, known=rng.random() < 0.5)
        new = await reader.ok(b"UID FETCH %d:* (FLAGS)" % (max(cache.flags, default=0) + 1))
        cache.take(new)
        assert cache.flags == await _truth(reader)
        for _ in range(rng.randrange(8)):
            await _anything(writer, rng)
            if rng.random() < 0.3:
                cache.take(await reader.ok(b"NOOP"))
                cache.take(await reader.ok(b"UID FETCH %d:* (FLAGS)" % (max(cache.flags, default=0) + 1)))
                cache.modseq = _modseq(await reader.ok(b"STATUS INBOX (HIGHESTMODSEQ)"))
                cache.take(await reader.ok(b"NOOP"))
        await reader.close()
        await _anything(writer, rng)
        if pruned:
            async with office.db.acquire() as conn:
                await conn.execute(
                    "UPDATE folders SET pruned_modseq = highest_modseq WHERE tenant_id = $1", office.ref.tenant_id
                )
                await conn.execute("DELETE FROM changes WHERE tenant_id = $1", office.ref.tenant_id)


async def _anything(client: Any, rng: random.Random) -> None:
    uids = sorted(await _truth(client))
    match rng.choice(("append", "append", "flag", "flag", "expunge", "move", "copy")):
        case "append":
            await client.append(NOTE)
        case "flag" if uids:
            words = rng.choice((b"+FLAGS (\\Seen)", b"-FLAGS (\\Seen)", b"FLAGS (work \\Flagged)"))
            await client.ok(b"UID STORE %d %b" % (rng.choice(uids), words))
        case "expunge" if uids:
            await client.ok(b"UID STORE %d +FLAGS (\\Deleted)" % rng.choice(uids))
            await client.ok(b"EXPUNGE")
        case "move" if uids:
            await client.ok(b"UID MOVE %d Archive" % rng.choice(uids))
        case "copy" if uids:
            await client.ok(b"UID COPY %d INBOX" % rng.choice(uids))


def test_gaps_and_overlaps() -> None:
    rng = random.Random(5)
    for _ in range(300):
        there = sorted(rng.sample(range(1, 30), rng.randrange(10)))
        missing = [uid for low, high in gaps(there, 25) for uid in range(low, high + 1)]
        assert missing == [uid for uid in range(1, 26) if uid not in there]
        wanted = SequenceSet(tuple(sorted((rng.randrange(1, 15), rng.randrange(15, 30))) for _ in range(2)))  # type: ignore[misc]  # pairs
        common = wanted.overlap(gaps(there, 25), 25)
        parts = list(common)
        assert sorted(uid for low, high in parts for uid in range(low, high + 1)) == [
            uid for uid in missing if wanted.contains(uid, 25)
        ]
        if parts:
            assert _uids(compress_ranges(parts)) == {uid for uid in missing if wanted.contains(uid, 25)}
    assert list(indices((range(2),))) == [0, 1]
