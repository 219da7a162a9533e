"""Messages made of parts of others on the server (RFC 4469)."""

from __future__ import annotations

import asyncio
import email
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

MIXED = (
    b"From: ann@example.com\r\nSubject: mixed\r\nMIME-Version: 1.0\r\n"
    b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n'
    b"--b\r\nContent-Type: text/plain\r\n\r\nhello\r\n"
    b"--b\r\nContent-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n\r\nAAEC\r\n--b--\r\n"
)


def _text(octets: bytes) -> bytes:
    return b"TEXT {%d+}\r\n%b" % (len(octets), octets)


def _url(url: bytes) -> bytes:
    return b'URL "%b"' % url


def _made(*parts: bytes, folder: bytes = b"Drafts", flags: bytes = b"") -> bytes:
    return b"APPEND %b %bCATENATE (%b)" % (folder, flags, b" ".join(parts))


async def _body(client: Any, folder: bytes, uid: bytes) -> bytes:
    await client.ok(b"EXAMINE " + folder)
    (line,) = await client.ok(b"UID FETCH %b BODY.PEEK[]" % uid)
    return bytes(re.search(rb"BODY\[\] \{\d+\}\r\n(.*)\)$", line, re.S)[1])  # type: ignore[index]  # it is there


async def _validity(client: Any, folder: bytes) -> bytes:
    (line,) = await client.ok(b"STATUS %b (UIDVALIDITY)" % folder)
    return bytes(re.search(rb"UIDVALIDITY (\d+)", line)[1])  # type: ignore[index]  # it is there


@pytest.mark.covers("RFC 4469 §3", "RFC 5092 §7.2", "decisions:C1")
async def test_text_and_parts(office: Any) -> None:
    client = await office.client(None)
    await client.append(MIXED, b"Drafts")
    base = b"/Drafts;UIDVALIDITY=%b/;UID=1" % await _validity(client, b"Drafts")
    lines = await client.ask(
        _made(
            _url(base + b"/;section=HEADER"),
            _text(b"--b\r\n"),
            _url(base + b"/;section=2.MIME"),
            _url(base + b"/;section=2"),
            _text(b"\r\n--b\r\n"),
            _url(base + b"/;section=1.MIME"),
            _url(base + b"/;section=1/;partial=1.3"),
            _text(b"\r\n--b--\r\n"),
            flags=rb"(\Seen \Draft) ",
        )
    )
    assert re.fullmatch(rb"OK \[APPENDUID \d+ 2\] APPEND completed", lines[-1])
    made = email.message_from_bytes(await _body(client, b"Drafts", b"2"))
    assert made["subject"] == "mixed"
    parts: Any = made.get_payload()
    assert [one.get_payload(decode=True) for one in parts] == [b"\0\1\2", b"ell"]
    assert b"\\Draft \\Seen" in (await client.ok(b"UID FETCH 2 FLAGS"))[0]
    # What was copied from is not marked as read (RFC 4469 §3).
    assert b"\\Seen" not in (await client.ok(b"UID FETCH 1 FLAGS"))[0]


@pytest.mark.covers("RFC 4469 §3", "RFC 3502 §6.3.11")
async def test_relative_to_the_selected_folder_and_among_several(office: Any) -> None:
    client = await office.client(b"INBOX")
    await client.append(MIXED)
    command = (
        b'APPEND Archive CATENATE (URL ";UID=1") (\\Flagged) {3+}\r\nx\r\n CATENATE (%b URL "INBOX/;UID=1")'
        % _text(b"X-New: 1\r\n")
    )
    assert b" 1:3]" in (await client.ask(command))[-1]
    assert await _body(client, b"Archive", b"1") == MIXED
    assert await _body(client, b"Archive", b"2") == b"x\r\n"
    assert await _body(client, b"Archive", b"3") == b"X-New: 1\r\n" + MIXED


@pytest.mark.covers("RFC 4469 §4.1")
async def test_bad_urls(office: Any) -> None:
    client = await office.client(None)
    await client.append(MIXED, b"Drafts")
    await client.append(MIXED, b"Drafts", rb"(\Deleted) ")
    await client.ok(b"SELECT Drafts")
    # Known to the server's memory, and gone.
    await client.ok(b"UID FETCH 2 BODY.PEEK[1]")
    await client.ok(b"EXPUNGE")
    good = b"/Drafts/;UID=1"
    for bad in (
        b"/Drafts/;UID=2",
        b"/Drafts/;UID=99",
        b"/Missing/;UID=1",
        b"/Drafts;UIDVALIDITY=1/;UID=1",
        b"/Drafts/;UID=1/;SECTION=7",
        b"/Drafts/;UID=1/;SECTION=1.HEADER",
        b"imap://other@example.com/Drafts/;UID=1",
        b"http://example.com/",
    ):
        lines = await client.ask(_made(_url(good), _url(bad), _url(b"worse")))
        assert lines[-1].startswith(b"NO [BADURL %b]" % bad), lines
    assert (await client.ask(b"APPEND Drafts CATENATE (URL {9+}\r\na ]\xff\r\nb%)"))[-1].startswith(b"BAD")
    lines = await client.ask(b"APPEND Drafts CATENATE (URL {8+}\r\na ]\xff\r\nb% )")
    assert lines[-1].startswith(b"NO [BADURL a%20%5D%FF%0D%0Ab%] ")
    (line,) = await client.ok(b"STATUS Drafts (MESSAGES)")
    assert b"MESSAGES 1)" in line


@pytest.mark.covers("RFC 4469 §4.1", "decisions:A6")
async def test_an_agent_cannot_copy_what_it_cannot_see(office: Any) -> None:
    listener = await office.listen()
    owner = await office.client(None)
    await owner.append(MIXED, b"INBOX")
    stranger = await office.connect(listener)
    key = await office.new_key("messages:read", "messages:write", "identities:read")
    await stranger.ok(b'LOGIN %b "%b"' % (office.agent.primary.address.encode(), key.encode()))
    assert (await stranger.ask(_made(_url(b"/INBOX/;UID=1"), folder=b"INBOX")))[-1].startswith(b"NO [BADURL")


@pytest.mark.covers("RFC 4469 §4.2", "mail-server:A7")
async def test_too_big_is_said_before_anything_is_read(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await office.client(None, await office.listen(max_append_size=10_000))
    await client.append(b"Subject: x\r\n\r\n" + b"y" * 4000)
    one = _url(b"/INBOX/;UID=1")
    assert (await client.ask(_made(one, one)))[-1].startswith(b"OK")

    async def never(_: object) -> Any:
        raise AssertionError("read")

    monkeypatch.setattr(office.blobs, "get_many", never)
    assert (await client.ask(_made(one, one, one)))[-1].startswith(b"NO [TOOBIG]")
    connection = next(iter(office.listeners[0]._context.connections))
    object.__setattr__(connection._session.reader.limits, "max_append_total", 12_000)
    made = b" CATENATE (%b %b)" % (one, one)
    assert (await client.ask(b"APPEND Drafts" + made + made))[-1].startswith(b"NO [TOOBIG]")
    assert connection._session.gathered == 0


@pytest.mark.covers("RFC 4469 §3")
async def test_any_cut_is_what_fetch_gives(office: Any) -> None:
    client = await office.client(b"INBOX")
    await client.append(MIXED)
    loop = asyncio.get_running_loop()
    sections = st.sampled_from([b"", b"HEADER", b"TEXT", b"1", b"1.MIME", b"2", b"2.MIME", b"HEADER.FIELDS (SUBJECT)"])

    async def once(section: bytes, offset: int, count: int) -> None:
        url = b";UID=1"
        if section:
            url += b"/;SECTION=" + section.replace(b" ", b"%20")
        url += b"/;PARTIAL=%d.%d" % (offset, count)
        lines = await client.ask(_made(_text(b">"), _url(url), folder=b"INBOX"))
        uid = int(re.search(rb"APPENDUID \d+ (\d+)", lines[-1])[1])  # type: ignore[index]  # it is there
        (part,) = await client.ok(b"UID FETCH 1 BODY.PEEK[%b]<%d.%d>" % (section, offset, count))
        (whole,) = [line for line in await client.ok(b"UID FETCH %d BODY.PEEK[]" % uid) if b"BODY[]" in line]
        expected = part.split(b"}\r\n", 1)[1][:-1]
        assert whole.split(b"}\r\n", 1)[1][:-1] == b">" + expected

    @settings(max_examples=40, deadline=None)
    @given(sections, st.integers(0, 400), st.integers(1, 400))
    def check(section: bytes, offset: int, count: int) -> None:
        asyncio.run_coroutine_threadsafe(once(section, offset, count), loop).result(20)

    await asyncio.to_thread(check)


@pytest.mark.covers("mail-server:A7", "RFC 4469 §3", "RFC 8508 §4.2")
@pytest.mark.parametrize("command", [b"APPEND", b"UID REPLACE 1"])
async def test_what_is_read_counts_as_held(
    office: Any, until: Any, monkeypatch: pytest.MonkeyPatch, command: bytes
) -> None:
    client = await office.client(b"INBOX")
    await client.append(MIXED + b"x" * 300_000)
    budget = office.listeners[0]._context.budget
    going, deliver = asyncio.Event(), office.ingest.deliver

    async def slow(delivery: Any) -> Any:
        await going.wait()
        return await deliver(delivery)

    monkeypatch.setattr(office.ingest, "deliver", slow)
    client.send(b'a %b Drafts CATENATE (URL ";UID=1")\r\n' % command)
    await until(lambda: budget.total >= 300_000)
    going.set()
    assert (await client.until(b"a"))[-1].startswith(b"a OK")
    await until(lambda: budget.total == 0)
