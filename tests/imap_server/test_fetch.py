"""FETCH beside the standard library's reading of the same bytes, and what else FETCH does (mail-server D5, D6; B16)."""

import asyncio
import email
import email.policy
import random
import re
from email.message import EmailMessage
from typing import Any

import imapclient
import pytest

from postroom.servers.imap.fetch import STREAM_BYTES

PASSWORD = "correct horse battery"


def _nested() -> bytes:
    inner = EmailMessage()
    inner["From"], inner["To"], inner["Subject"] = "Inner <inner@example.com>", "x@example.com", "The inner one"
    inner["Date"] = "Sun, 30 Dec 2029 08:00:00 +0000"
    inner.set_content("Inner text\n")
    inner.add_attachment(b"\x00\x01" * 50, maintype="application", subtype="octet-stream", filename="in.bin")
    outer = EmailMessage()
    outer["From"], outer["To"] = "Outer <outer@example.com>", "carol@agents.example, Dan <dan@example.com>"
    outer["Cc"], outer["Reply-To"] = "eve@example.com", "answers@example.com"
    outer["Subject"], outer["Message-ID"] = "Grüße", "<outer@example.com>"
    outer["Date"] = "Mon, 31 Dec 2029 10:00:00 +0100"
    outer["In-Reply-To"], outer["X-Mark"] = "<first@example.com>", "a\tlong folded value " * 8
    outer.set_content("Plain text\n")
    outer.add_alternative("<p>HTML text</p>\n", subtype="html")
    outer.add_attachment(inner)
    outer.add_attachment(b"%PDF" * 30, maintype="application", subtype="pdf", filename="ä.pdf")
    return outer.as_bytes(policy=email.policy.SMTP)


def _literal(line: bytes) -> bytes:
    """The one literal of a response."""
    found = re.search(rb"\{(\d+)\}\r\n", line)
    assert found, line
    return line[found.end() : found.end() + int(found[1])]


def _parts(message: Any, path: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], Any]]:
    """IMAP part numbers and what they name (RFC 3501 §6.4.5)."""
    if message.get_content_maintype() == "multipart":
        return [
            found for number, child in enumerate(message.get_payload(), 1) for found in _parts(child, (*path, number))
        ]
    own = path or (1,)
    if message.get_content_type() == "message/rfc822":
        (inner,) = message.get_payload()
        return [(own, message), *_parts(inner, own)]
    return [(own, message)]


@pytest.mark.covers("mail-server:D6")
async def test_sections_are_the_stored_bytes(office: Any) -> None:
    raw = _nested()
    client = await office.client(None)
    await client.append(raw)
    await client.ok(b"SELECT INBOX")

    async def section(text: bytes) -> bytes:
        (line,) = await client.ok(b"FETCH 1 BODY.PEEK[%b]" % text)
        assert line.startswith(b"* 1 FETCH (BODY[%b]" % text), line
        return _literal(line)

    head, _, body = raw.partition(b"\r\n\r\n")
    assert await section(b"") == raw
    assert await section(b"HEADER") == head + b"\r\n\r\n"
    assert await section(b"TEXT") == body
    for word, expected in ((b"RFC822", raw), (b"RFC822.HEADER", head + b"\r\n\r\n"), (b"RFC822.TEXT", body)):
        (line,) = [line for line in await client.ok(b"FETCH 1 " + word) if b"{" in line]
        assert b"%b {" % word in line
        assert _literal(line) == expected
    parsed = email.message_from_bytes(raw, policy=email.policy.compat32)
    seen = 0
    for path, part in _parts(parsed):
        number = b".".join(b"%d" % n for n in path)
        octets = await section(number)
        if part.get_content_type() != "message/rfc822":
            text = part.get_payload()
            assert octets.replace(b"\r\n", b"\n").rstrip(b"\n") == str(text).replace("\r\n", "\n").rstrip("\n").encode()
            mime = email.message_from_bytes(await section(number + b".MIME"))
            assert mime.items() == part.items() or len(path) == 3  # those of a nested single part are its message's
        else:
            inner = email.message_from_bytes(octets)
            assert inner["Subject"] == "The inner one"
            assert octets.startswith(await section(number + b".HEADER"))
            assert octets.endswith(await section(number + b".TEXT"))
            fields = await section(number + b".HEADER.FIELDS (SUBJECT)")
            assert fields == b"Subject: The inner one\r\n\r\n"
        seen += 1
    assert seen >= 6
    (line,) = await client.ok(b"FETCH 1 BODY.PEEK[9]")
    assert line == b"* 1 FETCH (BODY[9] NIL)"


@pytest.mark.covers("mail-server:D6")
async def test_header_fields(office: Any) -> None:
    raw = _nested()
    client = await office.client(None)
    await client.append(raw)
    await client.ok(b"SELECT INBOX")
    (line,) = await client.ok(b'FETCH 1 BODY.PEEK[HEADER.FIELDS (subject "X-MARK" nothing)]')
    assert line.startswith(b"* 1 FETCH (BODY[HEADER.FIELDS (subject X-MARK nothing)] {")
    fields = email.message_from_bytes(_literal(line))
    assert fields.keys() == ["Subject", "X-Mark"]
    (line,) = await client.ok(b"FETCH 1 BODY.PEEK[HEADER.FIELDS.NOT (Subject X-Mark)]")
    assert email.message_from_bytes(_literal(line)).keys() == [
        name for name, _ in email.message_from_bytes(raw).items() if name not in ("Subject", "X-Mark")
    ]


@pytest.mark.covers("mail-server:D6")
async def test_partial_sections(office: Any) -> None:
    raw = _nested()
    client = await office.client(None)
    await client.append(raw)
    await client.ok(b"SELECT INBOX")
    rng = random.Random(7)
    for _ in range(40):
        offset, count = rng.randint(0, len(raw) + 50), rng.randint(1, len(raw))
        (line,) = await client.ok(b"FETCH 1 BODY.PEEK[]<%d.%d>" % (offset, count))
        assert line.startswith(b"* 1 FETCH (BODY[]<%d> {" % offset)
        assert _literal(line) == raw[offset : offset + count]
    (line,) = await client.ok(b"FETCH 1 BODY.PEEK[HEADER.FIELDS (SUBJECT)]<3.5>")
    (whole,) = await client.ok(b"FETCH 1 BODY.PEEK[HEADER.FIELDS (SUBJECT)]")
    assert _literal(line) == _literal(whole)[3:8]


@pytest.mark.covers("mail-server:D6")
async def test_envelope_and_structure_as_another_client_reads_them(office: Any) -> None:
    raw = _nested()
    client = await office.client(None)
    await client.append(raw)
    port = office.listeners[0].port

    def session() -> dict[Any, Any]:
        with imapclient.IMAPClient("127.0.0.1", port, ssl=False, timeout=20) as box:
            box.login(office.address, PASSWORD)
            box.select_folder("INBOX", readonly=True)
            return dict(box.fetch([1], ["ENVELOPE", "BODYSTRUCTURE", "BODY", "RFC822.SIZE"])[1])

    found = await asyncio.to_thread(session)
    expected = email.message_from_bytes(raw, policy=email.policy.default)
    envelope = found[b"ENVELOPE"]
    assert [str(address) for address in envelope.to] == ["carol@agents.example", "Dan <dan@example.com>"]
    assert [str(address) for address in envelope.from_] == ["Outer <outer@example.com>"]
    assert envelope.sender == envelope.from_
    assert [str(address) for address in envelope.reply_to] == ["answers@example.com"]
    assert envelope.message_id == b"<outer@example.com>"
    assert envelope.in_reply_to == b"<first@example.com>"
    assert str(email.header.make_header(email.header.decode_header(envelope.subject.decode()))) == expected["Subject"]
    assert found[b"RFC822.SIZE"] == len(raw)
    structure = found[b"BODYSTRUCTURE"]
    assert structure.is_multipart
    (alternative, attached, pdf), kind = structure[0], structure[1]
    assert kind == b"mixed"
    assert [part[1] for part in alternative[0]] == [b"plain", b"html"]
    assert attached[:2] == (b"message", b"rfc822")
    assert attached[7][1] == b"The inner one"
    assert pdf[:2] == (b"application", b"pdf")
    assert found[b"BODY"].is_multipart


@pytest.mark.covers("mail-server:D5", "mail-server:D6")
async def test_reading_marks_seen_and_says_so(office: Any) -> None:
    for n in range(3):
        await office.deliver(b"Subject: %d\r\n\r\n%d\r\n" % (n, n))
    client, other = await office.client(), await office.client()
    assert await client.ok(b"FETCH 1 (BODY[TEXT])") == [b"* 1 FETCH (FLAGS (\\Seen \\Recent) BODY[TEXT] {3}\r\n0\r\n)"]
    assert await client.ok(b"FETCH 1 (BODY[TEXT])") == [b"* 1 FETCH (BODY[TEXT] {3}\r\n0\r\n)"]
    assert await client.ok(b"UID FETCH 2 (BODY.PEEK[TEXT] RFC822.HEADER)") == [
        b"* 2 FETCH (UID 2 BODY[TEXT] {3}\r\n1\r\n RFC822.HEADER {%d}\r\n%b)"
        % (len(head := (await _raw(office, 2)).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"), head)
    ]
    (line,) = await client.ok(b"FETCH 3 (FLAGS RFC822.TEXT)")
    assert line == b"* 3 FETCH (FLAGS (\\Seen \\Recent) RFC822.TEXT {3}\r\n2\r\n)"
    assert await client.ok(b"SEARCH UNSEEN") == [b"* SEARCH 2"]
    assert await other.ok(b"NOOP") == [b"* 1 FETCH (FLAGS (\\Seen) UID 1)", b"* 3 FETCH (FLAGS (\\Seen) UID 3)"]


async def _raw(office: Any, uid: int) -> bytes:
    async with office.db.acquire() as conn:
        key = await conn.fetchval(
            "SELECT m.blob_key FROM placements p JOIN messages m ON m.id = p.message_id WHERE p.uid = $1", uid
        )
    return bytes(await office.blobs.get(key))


@pytest.mark.covers("mail-server:D6")
async def test_our_trace_lines_are_part_of_the_message(office: Any) -> None:
    await office.deliver(b"Subject: x\r\n\r\ny\r\n")
    client = await office.client()
    (line,) = await client.ok(b"FETCH 1 (RFC822.SIZE BODY.PEEK[])")
    raw = _literal(line)
    assert raw.startswith(b"Return-Path: <anna@example.com>\r\nReceived: ")
    assert b"RFC822.SIZE %d " % len(raw) in line


@pytest.mark.covers("mail-server:D6")
async def test_missing_bytes_do_not_stop_the_others(office: Any) -> None:
    for n in range(3):
        await office.deliver(b"Subject: %d\r\n\r\n%d\r\n" % (n, n))
    client = await office.client()
    async with office.db.acquire() as conn:
        key = await conn.fetchval("SELECT blob_key FROM messages ORDER BY id OFFSET 1 LIMIT 1")
    await office.blobs.delete([key])
    lines = await client.ask(b"FETCH 1:3 (UID BODY.PEEK[TEXT])")
    assert lines == [
        b"* 1 FETCH (UID 1 BODY[TEXT] {3}\r\n0\r\n)",
        b"* 3 FETCH (UID 3 BODY[TEXT] {3}\r\n2\r\n)",
        b"NO [SERVERBUG] message body missing",
    ]
    assert len(await client.ok(b"FETCH 1:3 (ENVELOPE)")) == 3


@pytest.mark.covers("mail-server:D6", "decisions:D21", "decisions:B16")
async def test_a_slow_reader_holds_neither_database_nor_memory(office: Any, until: Any) -> None:
    """Megabytes are asked for and not read: no connection of the pool stays taken, others work, nothing is lost."""
    large = b"Subject: large\r\n\r\n" + (b"z" * 76 + b"\r\n") * (2 * STREAM_BYTES // 78)
    client = await office.client(None)
    for _ in range(4):
        assert (await client.append(large)).startswith(b"OK [APPENDUID ")
    for n in range(300):
        await office.deliver(b"Subject: small %d\r\n\r\n" % n + b"y" * 20_000 + b"\r\n")
    await client.ok(b"SELECT INBOX")
    client.reader._transport.pause_reading()
    client.send(b"x FETCH 1:* (UID BODY.PEEK[])\r\n")
    connection = next(iter(office.listeners[0]._context.connections))
    await until(lambda: connection._writable is not None)
    await until(lambda: office.db.stats()["idle"] == office.db.stats()["size"])
    held = sum(map(len, connection._session._out)) + connection._transport.get_write_buffer_size()
    assert held < 2 * STREAM_BYTES
    other = await office.client()
    await other.ok(rb"STORE 1 +FLAGS (\Flagged)")
    client.reader._transport.resume_reading()
    lines = await client.until(b"x")
    assert lines[-1] == b"x OK FETCH completed"
    assert [_literal(line) for line in lines[:4]] == [large] * 4
    assert len([line for line in lines if b"BODY[]" in line]) == 304


@pytest.mark.covers("mail-server:D6")
async def test_a_client_that_goes_in_the_middle(office: Any, until: Any) -> None:
    for n in range(200):
        await office.deliver(b"Subject: small %d\r\n\r\n" % n + b"y" * 20_000 + b"\r\n")
    client = await office.client()
    client.send(b"x FETCH 1:* (UID BODY.PEEK[])\r\n")
    await client.line()
    client.writer.transport.abort()
    await until(lambda: office.listeners[0].connection_count == 0)
    (view,) = office.listeners[0]._context.shared.views._views.values()
    await until(lambda: view.users == 0)


@pytest.mark.covers("mail-server:D6")
async def test_fetch_of_every_item(office: Any) -> None:
    await office.deliver(b"From: ann@example.com\r\nSubject: x\r\n\r\ny\r\n")
    client = await office.client()
    for macro, words in ((b"FAST", 3), (b"ALL", 4), (b"FULL", 5)):
        (line,) = await client.ok(b"FETCH 1 " + macro)
        names = re.findall(rb"(?:\(| )(FLAGS|INTERNALDATE|RFC822\.SIZE|ENVELOPE|BODY) ", line)
        assert len(names) == words, line
    (line,) = await client.ok(b"FETCH 1 (EMAILID THREADID SAVEDATE BODYSTRUCTURE INTERNALDATE)")
    assert re.match(
        rb'\* 1 FETCH \(EMAILID \(msg_\w+\) THREADID \(thr_\w+\) SAVEDATE "[ 0-9]\d-\w{3}-\d{4} [0-9:]{8} \+0000" '
        rb'BODYSTRUCTURE \("text" "plain" .*\) INTERNALDATE " 1-Jan-2030 00:00:00 \+0000"\)$',
        line,
    ), line


@pytest.mark.covers("mail-server:D6", "decisions:D21")
async def test_a_client_that_never_reads_is_cut_off(office: Any, until: Any) -> None:
    listener = await office.listen(write_timeout=0.2)
    for n in range(300):
        await office.deliver(b"Subject: small %d\r\n\r\n" % n + b"y" * 40_000 + b"\r\n")
    client = await office.client(b"INBOX", listener)
    transport: Any = client.writer.transport
    transport.pause_reading()
    client.send(b"x FETCH 1:* (UID BODY.PEEK[])\r\n")
    await until(lambda: listener.connection_count == 0)
    (view,) = listener._context.shared.views._views.values()
    await until(lambda: view.users == 0)
