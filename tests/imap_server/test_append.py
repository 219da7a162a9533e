"""APPEND: stored verbatim, answered in order, refused with the right code (mail-server D8, E4)."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.inbound.receive import raw_key
from postroom.mailbox.ingest import Delivery, Failure, IngestError
from postroom.mailbox.models import Direction, NewMessage, Source
from postroom.servers.imap.views import MAX_JOURNAL

RAW = b"From: ann@example.com\r\nSubject: x\r\n\r\nbody\r\n"


async def _row(office: Any, statement: str) -> Any:
    async with office.db.acquire() as conn:
        return await conn.fetchrow(statement)


@pytest.mark.covers("mail-server:D8", "mail-server:D5")
async def test_flags_date_and_place(office: Any) -> None:
    client = await office.client(None)
    answer = await client.append(RAW, b"Sent", rb'(\Seen $Forwarded Work) "31-Dec-2001 23:59:59 +0200" ')
    (status,) = await client.ok(b"STATUS Sent (UIDVALIDITY MESSAGES UNSEEN)")
    validity = status.split(b"UIDVALIDITY ")[1].split()[0]
    assert answer.endswith(b"OK [APPENDUID %b 1] APPEND completed" % validity)
    assert b"MESSAGES 1" in status
    assert b"UNSEEN 0" in status
    await client.ok(b"EXAMINE Sent")
    assert await client.ok(b"FETCH 1 (FLAGS INTERNALDATE)") == [
        b'* 1 FETCH (FLAGS ($forwarded \\Seen work \\Recent) INTERNALDATE "31-Dec-2001 21:59:59 +0000")'
    ]
    row = await _row(office, "SELECT direction, source, status, raw_prefix_len FROM messages")
    assert tuple(row) == ("outbound", "append", "submitted", 0)
    assert (await _row(office, "SELECT count(*) FROM events"))[0] == 0
    await client.append(RAW, b"Archive")
    assert (await _row(office, "SELECT direction FROM messages ORDER BY id DESC LIMIT 1"))[0] == "inbound"


@pytest.mark.covers("mail-server:D8", "mail-server:E4")
async def test_refusals(office: Any) -> None:
    client = await office.client(None, await office.listen(max_append_size=1000))
    assert b"NO [TRYCREATE]" in await client.append(RAW, b"Missing")
    assert b"NO [TOOBIG]" in await client.append(b"x" * 1001)
    assert b"BAD " in await client.append(RAW, extra=rb"(\Nonsense) ")
    assert b"BAD " in await client.append(RAW, extra=b'"31-Feb-2001 00:00:00 +0000" ')
    assert b"NO " in await client.append(b"")
    async with office.db.acquire() as conn:
        await conn.execute("UPDATE mailboxes SET quota_bytes = used_bytes + $1 WHERE id = $2", len(RAW), office.box.id)
    assert b"OK [APPENDUID" in await client.append(RAW)
    assert b"NO [OVERQUOTA]" in await client.append(RAW)
    await client.ok(b"SELECT INBOX")
    assert (await client.ask(b"COPY 1 Archive"))[-1].startswith(b"OK ")
    async with office.db.acquire() as conn:
        await conn.execute("UPDATE mailboxes SET quota_bytes = 1 WHERE id = $1", office.box.id)
    assert (await client.ask(b"COPY 1 Archive"))[-1].startswith(b"NO [OVERQUOTA]")
    assert (await client.ask(b"MOVE 1 Archive"))[-1].startswith(b"OK ")
    await client.ok(b"SELECT Archive")
    assert (await client.ask(rb"STORE 1 +FLAGS (\Seen)"))[-1].startswith(b"OK ")


@pytest.mark.covers("mail-server:D8")
async def test_failures_of_ours_are_temporary(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await office.client(None)
    for failure, code in (
        (Failure.BUSY, b"INUSE"),
        (Failure.STORAGE, b"UNAVAILABLE"),
        (Failure.STORAGE_FULL, b"UNAVAILABLE"),
        (Failure.DATABASE, b"UNAVAILABLE"),
        (Failure.OVERLOADED, b"UNAVAILABLE"),
    ):

        async def deliver(_: object, failure: Failure = failure) -> None:
            raise IngestError(failure)

        monkeypatch.setattr(office.ingest, "deliver", deliver)
        assert b"NO [%b]" % code in await client.append(RAW)


@pytest.mark.covers("mail-server:D8", "mail-server:D3")
async def test_the_selected_folder_shows_it_at_once(office: Any) -> None:
    client = await office.client()
    lines = await client.ask(b"APPEND INBOX {%d+}\r\n%b" % (len(RAW), RAW))
    assert lines[:2] == [b"* 1 EXISTS", b"* 1 RECENT"]
    assert lines[2].startswith(b"OK [APPENDUID ")


@pytest.mark.covers("mail-server:D8")
async def test_pipelined_appends_are_answered_in_order_and_before_what_follows(office: Any) -> None:
    client = await office.client()
    count = 150
    for n in range(count):
        raw = b"Subject: %d\r\n\r\n%b" % (n, b"z" * (n % 7) * 1000)
        folder = b"Missing" if n % 50 == 49 else b"INBOX"
        client.send(b"p%d APPEND %b {%d+}\r\n%b\r\n" % (n, folder, len(raw), raw))
    client.send(b"last STATUS INBOX (MESSAGES)\r\n")
    lines = await client.until(b"last")
    tagged = [line for line in lines if line[:1] in b"pl"]
    assert [line.split()[0] for line in tagged] == [*(b"p%d" % n for n in range(count)), b"last"]
    assert [line.split()[1] for line in tagged[:-1]] == [b"NO" if n % 50 == 49 else b"OK" for n in range(count)]
    assert b"* STATUS INBOX (MESSAGES %d)" % (count - 3) in lines
    uids = [int(line.split(b"]")[0].split()[-1]) for line in tagged if b"APPENDUID" in line]
    assert uids == list(range(1, count - 2))
    # Each is where its answer says.
    places = {uid: line.split()[0] for uid, line in zip(uids, (t for t in tagged if b"APPENDUID" in t), strict=True)}
    for uid in (1, 40, 77, count - 3):
        (line,) = await client.ok(b"UID FETCH %d BODY.PEEK[HEADER.FIELDS (SUBJECT)]" % uid)
        assert b"Subject: %b\r\n" % places[uid][1:] in line


@pytest.mark.covers("mail-server:D8")
async def test_a_client_that_goes_loses_nothing_that_it_sent(office: Any, until: Any) -> None:
    client = await office.client(None)
    for n in range(20):
        client.send(b"p%d APPEND INBOX {%d+}\r\n%b\r\n" % (n, len(RAW), RAW))
    await client.writer.drain()
    await client.line()
    client.writer.transport.abort()
    await until(lambda: office.listeners[0].connection_count == 0)
    await until(lambda: office.ingest.pending == 0)
    other = await office.client(None)
    (line,) = await other.ok(b"STATUS INBOX (MESSAGES)")
    assert int(line.rstrip(b")").split()[-1]) >= 1


_MESSAGES = st.one_of(
    st.binary(min_size=1, max_size=400),
    st.binary(max_size=200).map(lambda tail: b"Subject: x\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n" + tail),
    st.text(max_size=100).map(lambda text: f"From: {text}\r\nSubject: {text}\r\n\r\n{text}".encode("utf-8", "replace")),
)


@pytest.mark.covers("mail-server:D6", "mail-server:D8")
async def test_any_octets_come_back_as_they_were(office: Any) -> None:
    client = await office.client()
    loop = asyncio.get_running_loop()

    async def once(raw: bytes) -> None:
        answer = await client.append(raw)
        assert b" OK [APPENDUID " in b" " + answer, answer
        uid = int(answer.split(b"]")[0].split()[-1])
        lines = await client.ok(b"UID FETCH %d (ENVELOPE BODYSTRUCTURE BODY.PEEK[])" % uid)
        assert any(line.endswith(b" BODY[] {%d}\r\n%b)" % (len(raw), raw)) for line in lines), lines

    @settings(max_examples=60, deadline=None)
    @given(_MESSAGES)
    def check(raw: bytes) -> None:
        asyncio.run_coroutine_threadsafe(once(raw), loop).result(20)

    await asyncio.to_thread(check)


@pytest.mark.covers("mail-server:D5")
async def test_a_session_that_lags_behind_the_journal(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.servers.imap.views.MAX_JOURNAL", 4)
    assert MAX_JOURNAL > 4
    for n in range(12):
        await office.deliver(b"Subject: %d\r\n\r\n" % n)
    mine, other = await office.client(), await office.client()
    for n in range(1, 9):
        await other.ok(rb"STORE %d +FLAGS.SILENT (\Seen)" % n)
    await other.ok(rb"STORE 9:10 +FLAGS.SILENT (\Deleted)")
    await other.ok(b"EXPUNGE")
    lines = await mine.ok(b"NOOP")
    assert lines == [
        *(rb"* %d FETCH (FLAGS (\Seen \Recent) UID %d)" % (n, n) for n in range(1, 9)),
        b"* 9 EXPUNGE",
        b"* 9 EXPUNGE",
    ]


@pytest.mark.covers("mail-server:D8")
async def test_what_is_not_yet_stored_bounds_what_is_read(
    office: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends APPENDs for ever while the store hangs is made to wait, and answered when it goes on."""
    going = asyncio.Event()
    deliver = office.ingest.deliver

    async def slow(delivery: Any) -> Any:
        await going.wait()
        return await deliver(delivery)

    monkeypatch.setattr(office.ingest, "deliver", slow)
    client = await office.client(None)
    raw = b"Subject: x\r\n\r\n" + b"z" * 20_000
    for n in range(400):
        client.send(b"p%d APPEND INBOX {%d+}\r\n%b\r\n" % (n, len(raw), raw))
    client.writer.write_eof()
    connection = next(iter(office.listeners[0]._context.connections))
    await until(lambda: bool(connection._pauses))
    assert connection._session.reader.buffered < 2_000_000
    going.set()
    lines = (await client.rest()).split(b"\r\n")
    assert len([line for line in lines if b" OK [APPENDUID" in line]) == 400


@pytest.mark.covers("mail-server:A7", "mail-server:D8")
async def test_messages_coming_in_share_a_memory_budget(office: Any, until: Any) -> None:
    listener = await office.listen(memory_budget=200_000, lead_timeout=3600)
    budget = listener._context.budget
    first, second = await office.client(listener=listener), await office.client(listener=listener)
    raw = RAW + b"Hello there, how are you?\r\n" * 12_000
    assert len(raw) > 300_000
    first.send(b"a APPEND INBOX {%d+}\r\n%b" % (len(raw), raw[:250_000]))
    await until(lambda: budget.total >= 250_000)
    second.send(b"b APPEND INBOX {%d+}\r\n%b" % (len(raw), raw))
    await until(lambda: budget.waiting == 1)
    # The first one leads, and its end lets the other go on.
    first.send(raw[250_000:] + b"\r\n")
    assert (await first.until(b"a"))[-1].startswith(b"a OK")
    second.send(b"\r\n")
    assert (await second.until(b"b"))[-1].startswith(b"b OK")
    await until(lambda: budget.total == 0)
    assert budget.waiting == 0


@pytest.mark.covers("mail-server:A7", "mail-server:D8")
async def test_who_keeps_the_others_waiting_is_cut_off(office: Any, until: Any) -> None:
    listener = await office.listen(memory_budget=100_000, lead_timeout=0.2)
    budget = listener._context.budget
    first, second = await office.client(listener=listener), await office.client(listener=listener)
    raw = RAW + b"Hello there, how are you?\r\n" * 8_000
    first.send(b"a APPEND INBOX {%d+}\r\n%b" % (len(raw), raw[:150_000]))
    await until(lambda: budget.total >= 150_000)
    second.send(b"b APPEND INBOX {%d+}\r\n%b\r\n" % (len(raw), raw))
    assert (await first.rest()).startswith(b"* BYE ")
    assert (await second.until(b"b"))[-1].startswith(b"b OK")
    await until(lambda: budget.total == 0)


SENT = b"From: carol@agents.example\r\nMessage-ID: <one@laptop.example>\r\nSubject: x\r\n\r\nbody\r\n"


async def _submitted(office: Any) -> Any:
    """A message in Sent as sending puts it there; its UID and the folder's UIDVALIDITY."""
    content = await office.services.parser.describe(b"Received: by us\r\n", SENT, office.clock.now())
    message_id = office.ids.new("msg")
    message = NewMessage(
        id=message_id,
        mailbox=office.ref,
        source=Source.SEND,
        direction=Direction.OUTBOUND,
        status="queued",
        blob_key=raw_key(office.box.tenant_public_id, office.box.public_id, message_id),
        content=content,
        thread_id=office.ids.new("thr"),
        event_id=office.ids.new("evt"),
        attachment_ids=(),
        received_at=office.clock.now(),
        internal_date=office.clock.now(),
        folder=(await office.boxes.folder(office.ref, "Sent")).id,
        flags=("$seen",),
    )
    outcome = await office.ingest.deliver(Delivery((b"Received: by us\r\n", SENT), (message,)))
    assert isinstance(outcome, tuple)
    return outcome[0]


@pytest.mark.covers("mail-server:A3", "RFC 4315 §3")
async def test_the_copy_of_what_was_submitted_a_moment_ago_is_there_already(office: Any) -> None:
    stored = await _submitted(office)
    client = await office.client(None)
    known = b"OK [APPENDUID %d %d] APPEND completed" % (stored.uid_validity, stored.uid)
    office.clock.advance(599)
    assert (await client.append(SENT, b"Sent", rb"(\Seen) ")).endswith(known)
    # Another mail program may come with its own.
    assert (await client.append(SENT.replace(b"body", b"body, changed"), b"Sent")).endswith(known)
    # Answered in order among others.
    client.send(b"".join(b"b%d APPEND Sent {%d+}\r\n%b\r\n" % (n, len(raw), raw) for n, raw in enumerate((RAW, SENT))))
    assert b"OK [APPENDUID %d %d]" % (stored.uid_validity, stored.uid + 1) in (await client.until(b"b0"))[-1]
    assert known in (await client.until(b"b1"))[-1]
    (status,) = await client.ok(b"STATUS Sent (MESSAGES)")
    assert b"MESSAGES 2" in status
    # Elsewhere, or later, it is a message like any other.
    assert not (await client.append(SENT, b"Archive")).endswith(known)
    office.clock.advance(2)
    assert b"OK [APPENDUID" in await client.append(SENT, b"Sent")
    (status,) = await client.ok(b"STATUS Sent (MESSAGES)")
    assert b"MESSAGES 3" in status


@pytest.mark.covers("mail-server:A3")
async def test_what_a_client_appends_twice_is_two(office: Any) -> None:
    client = await office.client(None)
    first, second = [await client.append(SENT, b"Sent") for _ in range(2)]
    assert first != second
