"""PREVIEW: the beginning of a message's text (RFC 8970)."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.covers("RFC 8970 §3.2", "RFC 8970 §4.1", "decisions:C1")
async def test_preview(office: Any) -> None:
    client = await office.client()
    await client.append(b'Subject: a\r\n\r\nHello  there,\r\n\r\nthis is "it".\r\n')
    await client.append("Subject: b\r\nContent-Type: text/plain; charset=utf-8\r\n\r\ncafé\r\n".encode())
    await client.append(b"Subject: c\r\nContent-Type: text/html\r\n\r\n<p>Hi <b>you</b></p><script>no()</script>\r\n")
    await client.append(b"Subject: d\r\n\r\n")
    await client.ok(b"NOOP")
    shown = await client.ok(b"FETCH 1:* (PREVIEW)")
    assert shown == [
        rb'* 1 FETCH (PREVIEW "Hello there, this is \"it\".")',
        b"* 2 FETCH (PREVIEW {5}\r\ncaf\xc3\xa9)",
        b'* 3 FETCH (PREVIEW "Hi you")',
        b'* 4 FETCH (PREVIEW "")',
    ]
    # It was made when the message came, so there is nothing to be lazy about, and nothing is marked as read.
    assert await client.ok(b"FETCH 1:* (PREVIEW (LAZY))") == shown
    assert await client.ok(b"FETCH 1:* PREVIEW (LAZY)") == shown
    assert await client.ok(b"UID FETCH 4 (PREVIEW FLAGS)") == [rb'* 4 FETCH (UID 4 PREVIEW "" FLAGS (\Recent))']
    (line,) = await client.ok(b"FETCH 4 PREVIEW (CHANGEDSINCE 1)")
    assert line.startswith(b'* 4 FETCH (PREVIEW "" MODSEQ ')
    assert (await client.ask(b"FETCH 1 (PREVIEW (EAGER))"))[-1].startswith(b"BAD")


@pytest.mark.covers("RFC 8970 §3.3")
@pytest.mark.parametrize("letter", ["a", "é", "試", "🙂"])
async def test_it_has_at_most_200_characters(office: Any, letter: str) -> None:
    client = await office.client()
    text = letter * 70
    head = b"Subject: x\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"
    await client.append(head + "\r\n".join([text] * 5).encode())
    (line,) = [one for one in await client.ok(b"FETCH 1 PREVIEW") if b"PREVIEW" in one]
    expected = " ".join([text] * 5)[:200].encode()
    assert expected in line
    assert len(line) - len(expected) < 40


@pytest.mark.covers("RFC 8970 §3.2", "RFC 8970 §4.1")
async def test_with_octets(office: Any) -> None:
    client = await office.client()
    await client.append(b"Subject: a\r\n\r\nHello\r\n")
    (line,) = [one for one in await client.ok(b"FETCH 1 (PREVIEW (LAZY) BODY.PEEK[TEXT])") if b"PREVIEW" in one]
    assert line == b'* 1 FETCH (PREVIEW "Hello" BODY[TEXT] {7}\r\nHello\r\n)'
