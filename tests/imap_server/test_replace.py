"""REPLACE: one message takes the place of another, or nothing happens (RFC 8508)."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

import pytest

from postroom.blobs import BlobMissing
from postroom.mailbox.ingest import Failure, IngestError
from tests.mailbox.letters import check_mailbox

DRAFT = b"From: carol@agents.example\r\nMessage-ID: <draft@agents.example>\r\nSubject: draft\r\n\r\none\r\n"
NEXT = DRAFT.replace(b"one", b"one, and more of it")


def _replace(target: bytes, raw: bytes, folder: bytes = b"Drafts", extra: bytes = rb"(\Draft \Seen) ") -> bytes:
    return b"REPLACE %b %b %b{%d+}\r\n%b" % (target, folder, extra, len(raw), raw)


async def _ready(office: Any, count: int = 3, **changes: Any) -> Any:
    client = await office.client(None, await office.listen(**changes))
    for n in range(1, count + 1):
        await client.append(DRAFT.replace(b"one", b"%d" % n), b"Drafts", rb"(\Draft) ")
    await client.ok(b"SELECT Drafts")
    return client


async def _check(office: Any) -> None:
    async with office.db.acquire() as conn:
        await check_mailbox(conn, office.ref)


async def _keys(office: Any) -> list[str]:
    async with office.db.acquire() as conn:
        return [row["blob_key"] for row in await conn.fetch("SELECT blob_key FROM messages ORDER BY id")]


@pytest.mark.covers("RFC 8508 §3.2", "RFC 8508 §3.4", "RFC 8508 §4.3", "decisions:C1")
async def test_replace_by_number(office: Any) -> None:
    client = await _ready(office)
    keys = await _keys(office)
    lines = await client.ask(_replace(b"2", NEXT))
    assert re.fullmatch(rb"\* OK \[APPENDUID \d+ 4\] Replacement message ready", lines[0])
    assert sorted(lines[1:-1]) == [b"* 2 EXPUNGE", b"* 3 EXISTS", b"* 3 RECENT"]
    assert lines[-1] == b"OK REPLACE completed"
    shown = await client.ok(b"FETCH 1:* (UID FLAGS)")
    assert [re.search(rb"UID (\d+)", line)[1] for line in shown] == [b"1", b"3", b"4"]  # type: ignore[index]  # it is there
    # Nothing is taken over from what was replaced, and no flag of it is told (RFC 8508 §1).
    assert rb"(\Draft \Seen \Recent)" in shown[2]
    await _check(office)
    # The bytes went with the message.
    (gone,) = set(keys) - set(await _keys(office))
    async with asyncio.timeout(20):
        while True:
            try:
                await office.blobs.get(gone)
            except BlobMissing:
                break
            await asyncio.sleep(0.005)


@pytest.mark.covers("RFC 8508 §3.3", "RFC 8508 §3.4")
async def test_uid_replace_into_another_folder(office: Any) -> None:
    client = await _ready(office)
    lines = await client.ask(b"UID " + _replace(b"1", NEXT, b"Sent", b""))
    assert re.fullmatch(rb"\* OK \[APPENDUID \d+ 1\] Replacement message ready", lines[0])
    assert lines[1:-1] == [b"* 1 EXPUNGE"]
    (line,) = await client.ok(b"STATUS Sent (MESSAGES UNSEEN)")
    assert line == b"* STATUS Sent (MESSAGES 1 UNSEEN 1)"
    await _check(office)


@pytest.mark.covers("RFC 8508 §3.4", "mail-server:E4")
async def test_only_the_net_use_counts_for_the_quota(office: Any) -> None:
    client = await _ready(office)
    async with office.db.acquire() as conn:
        await conn.execute("UPDATE mailboxes SET quota_bytes = used_bytes WHERE id = $1", office.box.id)
    assert (await client.append(DRAFT, b"Drafts")).startswith(b"NO [OVERQUOTA]")
    assert (await client.ask(_replace(b"1", NEXT)))[-1].startswith(b"NO [OVERQUOTA]")
    assert (await client.ask(_replace(b"1", DRAFT.replace(b"one", b"9"))))[-1].startswith(b"OK")
    # What stands elsewhere, too, frees nothing.
    async with office.db.acquire() as conn:
        await conn.execute("UPDATE mailboxes SET quota_bytes = NULL WHERE id = $1", office.box.id)
    await client.ok(b"COPY 1 Archive")
    async with office.db.acquire() as conn:
        await conn.execute("UPDATE mailboxes SET quota_bytes = used_bytes WHERE id = $1", office.box.id)
    assert (await client.ask(_replace(b"1", DRAFT.replace(b"one", b"9"))))[-1].startswith(b"NO [OVERQUOTA]")


@pytest.mark.covers("RFC 8508 §3.4")
async def test_nothing_goes_where_nothing_comes(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await _ready(office, max_append_size=1000)
    keys = await _keys(office)
    assert (await client.ask(_replace(b"1", NEXT, b"Missing")))[-1].startswith(b"NO [TRYCREATE]")
    assert (await client.ask(_replace(b"1", b"")))[-1].startswith(b"NO [CANNOT]")
    assert (await client.ask(_replace(b"1", b"x" * 1001)))[-1].startswith(b"NO [TOOBIG]")
    assert (await client.ask(b"UID " + _replace(b"99", NEXT)))[-1].startswith(b"NO [NONEXISTENT]")
    for bad in (b"9", b"1:2", b"0", b"x"):
        assert (await client.ask(_replace(bad, NEXT)))[-1].startswith(b"BAD")
    assert (await client.ask(_replace(b"1", NEXT) + b" {1+}\r\nx"))[-1].startswith(b"BAD")

    async def deliver(_: object) -> None:
        raise IngestError(Failure.DATABASE)

    monkeypatch.setattr(office.ingest, "deliver", deliver)
    assert (await client.ask(_replace(b"1", NEXT)))[-1].startswith(b"NO [UNAVAILABLE]")
    assert await _keys(office) == keys
    assert len(await client.ok(b"FETCH 1:* UID")) == 3


@pytest.mark.covers("RFC 8508 §4.1", "mail-server:D1")
async def test_who_may_not_remove_may_not_replace(office: Any) -> None:
    client = await _ready(office)
    await client.ok(b"EXAMINE Drafts")
    assert (await client.ask(_replace(b"1", NEXT)))[-1].startswith(b"NO [READ-ONLY]")
    await client.ok(b"UNSELECT")
    assert (await client.ask(_replace(b"1", NEXT)))[-1].startswith(b"BAD")
    agent = await office.connect()
    key = await office.new_key("messages:read", "messages:write", "identities:read")
    await agent.ok(b'LOGIN %b "%b"' % (office.agent.primary.address.encode(), key.encode()))
    await agent.append(DRAFT, b"Drafts")
    (line,) = await agent.ok(b"CAPABILITY")
    assert b"REPLACE" not in line.split()
    await agent.ok(b"SELECT Drafts")
    assert (await agent.ask(_replace(b"1", NEXT)))[-1].startswith(b"NO [NOPERM]")


@pytest.mark.covers("RFC 8508 §3.4", "edge:C4")
async def test_of_two_who_replace_the_same_one_does(office: Any) -> None:
    first = await _ready(office, 1)
    others = [await office.client(b"Drafts") for _ in range(4)]
    answers = await asyncio.gather(*(one.ask(b"UID " + _replace(b"1", NEXT)) for one in (first, *others)))
    kinds = sorted(lines[-1].split()[0] for lines in answers)
    assert kinds == [b"NO"] * 4 + [b"OK"]
    (line,) = await first.ok(b"STATUS Drafts (MESSAGES)")
    assert b"MESSAGES 1)" in line
    await _check(office)


@pytest.mark.covers("RFC 8508 §3.4", "mail-server:D3")
async def test_what_another_removed_is_not_replaced(office: Any) -> None:
    client, other = await _ready(office), await office.client(b"Drafts")
    await other.ok(rb"STORE 2 +FLAGS.SILENT (\Deleted)")
    await other.ok(b"EXPUNGE")
    lines = await client.ask(b"UID " + _replace(b"2", NEXT))
    assert lines[-1].startswith(b"NO [EXPUNGEISSUED]")
    (line,) = await client.ok(b"STATUS Drafts (MESSAGES)")
    assert b"MESSAGES 2)" in line


@pytest.mark.covers("RFC 8508 §4.5", "RFC 7162 §3.2.7")
async def test_those_who_follow_by_modseq(office: Any) -> None:
    client = await _ready(office)
    await client.ok(b"ENABLE QRESYNC")
    lines = await client.ok(b"SELECT Drafts")
    before = int(re.search(rb"HIGHESTMODSEQ (\d+)", b"\n".join(lines))[1])  # type: ignore[index]  # it is there
    lines = await client.ask(b"UID " + _replace(b"2", NEXT))
    assert b"APPENDUID" in lines[0]
    assert lines[1] == b"* VANISHED 2"
    after = int(re.fullmatch(rb"OK \[HIGHESTMODSEQ (\d+)\] REPLACE completed", lines[-1])[1])  # type: ignore[index]  # it is there
    # It came and the other went in one step.
    assert after == before + 1
    await client.ok(b"UNSELECT")
    (validity,) = await client.ok(b"STATUS Drafts (UIDVALIDITY)")
    number = re.search(rb"UIDVALIDITY (\d+)", validity)[1]  # type: ignore[index]  # it is there
    resync = await client.ok(b"SELECT Drafts (QRESYNC (%b %d))" % (number, before))
    assert b"* VANISHED (EARLIER) 2" in resync
    assert any(re.match(rb"\* 3 FETCH \(UID 4 .*MODSEQ \(%d\)\)" % after, line) for line in resync)


@pytest.mark.covers("RFC 8508 §4.2")
async def test_made_of_what_it_replaces(office: Any) -> None:
    client = await _ready(office, 1)
    command = b'UID REPLACE 1 Drafts CATENATE (TEXT {15+}\r\nX-New: header\r\n URL "/Drafts/;UID=1")'
    lines = await client.ask(command)
    assert lines[-1] == b"OK REPLACE completed", lines
    (shown,) = await client.ok(b"FETCH 1 BODY.PEEK[]")
    assert shown.endswith(b"X-New: header\r\n" + DRAFT.replace(b"one", b"1") + b")")
    await _check(office)


@pytest.mark.covers("mail-server:A3", "RFC 8508 §3.4")
async def test_a_draft_gives_way_to_the_copy_that_was_sent(office: Any) -> None:
    client = await _ready(office, 1)
    sent = await client.append(NEXT, b"Sent")
    uid = re.search(rb"APPENDUID \d+ (\d+)", sent)[1]  # type: ignore[index]  # it is there
    async with office.db.acquire() as conn:
        await conn.execute("UPDATE messages SET source = 'send' WHERE rfc_message_id = 'draft@agents.example'")
        await conn.execute("UPDATE placements SET saved_at = $1", office.clock.now() - timedelta(seconds=5))
    lines = await client.ask(_replace(b"1", NEXT, b"Sent"))
    assert re.fullmatch(rb"\* OK \[APPENDUID \d+ %b\] Replacement message ready" % uid, lines[0])
    assert lines[1:] == [b"* 1 EXPUNGE", b"OK REPLACE completed"]
    (line,) = await client.ok(b"STATUS Sent (MESSAGES)")
    assert b"MESSAGES 1)" in line


@pytest.mark.covers("mail-server:C3", "RFC 8508 §3.4")
async def test_what_is_still_to_be_sent_stays(office: Any) -> None:
    client = await _ready(office, 1)
    async with office.db.acquire() as conn:
        await conn.execute("UPDATE messages SET status = 'queued'")
    assert (await client.ask(_replace(b"1", NEXT)))[-1].startswith(b"NO [INUSE]")
    assert len(await _keys(office)) == 1
