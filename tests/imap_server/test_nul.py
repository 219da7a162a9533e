"""U+0000 in messages: octets are shown as they are stored, and nothing that is made of them has it (decision 55)."""

from __future__ import annotations

import re
from typing import Any

import pytest

_HEAD = (
    b'From: =?utf-8?q?An=00n?= <ann@example.com>, "B\0b" <b@example.com>\r\nSubject: one\0two\r\n'
    b"Message-ID: <n\0ul@example.com>\r\nMIME-Version: 1.0\r\n"
    b"Content-Type: multipart/mixed; boundary=x\r\n\r\n"
)
_TEXT = b"before\0after \0\0\r\n"
_FILE = bytes(range(256)) * 3
_BODY = (
    b'--x\r\nContent-Type: text/plain; charset=utf-8; name="a\0b"\r\n\r\n' + _TEXT + b"\r\n"
    b"--x\r\nContent-Type: application/octet-stream\r\nContent-Transfer-Encoding: binary\r\n"
    b'Content-Disposition: attachment; filename="x\0y.bin"\r\n\r\n' + _FILE + b"\r\n--x--\r\n"
)
_RAW = _HEAD + _BODY


def _value(line: bytes, label: bytes) -> bytes:
    found = re.search(re.escape(label) + rb" ~?\{(\d+)\}\r\n", line)
    assert found, line[:200]
    return line[found.end() : found.end() + int(found[1])]


@pytest.mark.covers("mail-server:D6", "RFC 9051 §4.3", "RFC 3516 §4.3")
async def test_octets_are_what_they_are(office: Any) -> None:
    client = await office.client()
    assert (await client.append(_RAW)).startswith(b"OK")
    # As BINARYMIME, too: both forms of literal take it.
    assert (await client.ask(b"APPEND INBOX ~{%d+}\r\n%b" % (len(_RAW), _RAW)))[-1].startswith(b"OK")
    for number in (b"1", b"2"):
        items = b"RFC822.SIZE BODY.PEEK[] BODY.PEEK[HEADER] BODY.PEEK[TEXT] BODY.PEEK[1] BODY.PEEK[2]<0.5>"
        (line,) = await client.ok(b"FETCH %b (%b RFC822.HEADER BODY.PEEK[HEADER.FIELDS (Subject)])" % (number, items))
        assert b"RFC822.SIZE %d " % len(_RAW) in line
        assert _value(line, b"BODY[]") == _RAW
        assert _value(line, b"BODY[HEADER]") == _value(line, b"RFC822.HEADER") == _HEAD
        assert _value(line, b"BODY[TEXT]") == _BODY
        assert _value(line, b"BODY[1]") == _TEXT
        assert _value(line, b"BODY[2]<0>") == _FILE[:5]
        assert _value(line, b"BODY[HEADER.FIELDS (Subject)]") == b"Subject: one\0two\r\n\r\n"
        (line,) = await client.ok(b"FETCH %b (RFC822 RFC822.TEXT)" % number)
        assert _value(line, b"RFC822") == _RAW
        # Who wants to be told asks for BINARY.
        (line,) = await client.ok(b"FETCH %b (BINARY.PEEK[1] BINARY.PEEK[2] BINARY.SIZE[2])" % number)
        assert b"BINARY[1] ~{" in line
        assert b"BINARY[2] ~{" in line
        assert _value(line, b"BINARY[2]") == _FILE


@pytest.mark.covers("mail-server:D6", "RFC 9051 §9")
async def test_nothing_that_is_made_of_them_has_any(office: Any) -> None:
    """The strict grammar reads every line, which has no U+0000 outside of messages' octets."""
    client = await office.client()
    assert (await client.append(_RAW)).startswith(b"OK")
    await office.deliver(_RAW)
    for line in await client.ok(b"FETCH 1:* (ENVELOPE BODYSTRUCTURE BODY PREVIEW FLAGS UID EMAILID THREADID)"):
        assert b"\0" not in line
    for key in (b"SUBJECT one", b"TEXT before", b"BODY after", b"FROM ann"):
        assert await client.ok(b"SEARCH " + key) == [b"* SEARCH 1 2"], key
    assert await client.ok(b"SORT (SUBJECT FROM) UTF-8 ALL") == [b"* SORT 1 2"]
    assert (await client.ok(b"THREAD REFERENCES UTF-8 ALL"))[0].startswith(b"* THREAD ")
