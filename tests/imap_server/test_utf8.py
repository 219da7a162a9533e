"""UTF8=ACCEPT: names and headers in UTF-8, and what those see who did not ask for it (RFC 6855, RFC 9755)."""

from __future__ import annotations

import asyncio
import imaplib
import re
from typing import Any

import imapclient
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

PASSWORD = "correct horse battery"
HEADERS = (
    "From: Grüße <zoë@exämple.com>\r\nTo: 用户@例子.广告\r\nSubject: Ünïcode 試\r\n"
    'MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8; name="naïve.txt"\r\n\r\nbody\r\n'
).encode()
_LITERAL = re.compile(rb"\{(\d+)\}\r\n")


def _beside_literals(line: bytes) -> bytes:
    out, at = [], 0
    while found := _LITERAL.search(line, at):
        out.append(line[at : found.end()])
        at = found.end() + int(found[1])
    return b"".join((*out, line[at:]))


@pytest.mark.covers("RFC 6855 §3", "RFC 5161 §3.1", "decisions:C1")
async def test_names_of_folders(office: Any) -> None:
    client = await office.client(None)
    await client.ok(b"CREATE Entw&APw-rfe")
    # Names in quotes are understood by whoever sends them; what is answered depends on what was asked for.
    await client.ok('CREATE "Entwürfe/試 & more"'.encode())
    assert rb'* LIST (\HasChildren) "/" Entw&APw-rfe' in await client.ok(b'LIST "" *')
    assert len(await client.ok('LIST "" "Entwü*"'.encode())) == 2
    assert await client.ok(b"ENABLE UTF8=ACCEPT") == [b"* ENABLED UTF8=ACCEPT"]
    listed = await client.ok('LIST "" "Entwü*" RETURN (STATUS (MESSAGES))'.encode())
    assert listed == [
        '* LIST (\\HasChildren) "/" "Entwürfe"'.encode(),
        '* STATUS "Entwürfe" (MESSAGES 0)'.encode(),
        '* LIST (\\HasNoChildren) "/" "Entwürfe/試 & more"'.encode(),
        '* STATUS "Entwürfe/試 & more" (MESSAGES 0)'.encode(),
    ]
    assert await client.ok('LSUB "" "Entwürfe"'.encode()) == ['* LSUB (\\HasChildren) "/" "Entwürfe"'.encode()]
    assert await client.ok('STATUS "Entwürfe" (UIDNEXT)'.encode()) == ['* STATUS "Entwürfe" (UIDNEXT 1)'.encode()]
    # `&` has no meaning any more.
    assert (await client.ask(b"SELECT Entw&APw-rfe"))[-1].startswith(b"NO [NONEXISTENT]")
    await client.ok('SELECT "Entwürfe/試 & more"'.encode())
    assert (await client.ask(b'SELECT "\xe9"'))[-1].startswith(b"BAD")
    assert (await client.ask(b'LIST "" "\xe9"'))[-1].startswith(b"BAD")
    for separator in ("\u2028", "\u0085", "\u007f"):
        assert not (await client.ask(f'CREATE "a{separator}b"'.encode()))[-1].startswith(b"OK")
    other = await office.client(None)
    assert rb'* LIST (\HasChildren) "/" Entw&APw-rfe' in await other.ok(b'LIST "" *')


@pytest.mark.covers("RFC 6855 §4", "mail-server:D8")
async def test_headers_that_are_appended(office: Any) -> None:
    client = await office.client()
    append = b"APPEND INBOX (\\Seen) UTF8 (~{%d+}\r\n%b)" % (len(HEADERS), HEADERS)
    assert (await client.ask(append))[-1].startswith(b"BAD")
    await client.ok(b"ENABLE UTF8=ACCEPT")
    assert (await client.ask(append))[-1].startswith(b"OK [APPENDUID")
    catenated = b"APPEND INBOX CATENATE (UTF8 (~{%d+}\r\n%b) TEXT {1+}\r\n!)" % (len(HEADERS), HEADERS)
    assert (await client.ask(catenated))[-1].startswith(b"OK [APPENDUID")
    multi = b"APPEND INBOX UTF8 (~{%d+}\r\n%b) UTF8 (~{%d+}\r\n%b)" % ((len(HEADERS), HEADERS) * 2)
    assert b" 3:4]" in (await client.ask(multi))[-1]
    lines = await client.ok(b"FETCH 1:4 BODY.PEEK[]")
    assert [line.split(b"}\r\n", 1)[1] for line in lines] == [HEADERS + b")", HEADERS + b"!)", *[HEADERS + b")"] * 2]


@pytest.mark.covers("RFC 6855 §3")
async def test_search_has_no_charset_then(office: Any) -> None:
    client = await office.client()
    await client.append(HEADERS)
    assert await client.ok('SEARCH CHARSET UTF-8 SUBJECT "Ünïcode"'.encode()) == [b"* SEARCH 1"]
    await client.ok(b"ENABLE UTF8=ACCEPT")
    assert (await client.ask('SEARCH CHARSET UTF-8 SUBJECT "Ünïcode"'.encode()))[-1].startswith(b"BAD")
    assert await client.ok('SEARCH SUBJECT "Ünïcode"'.encode()) == [b"* SEARCH 1"]


@pytest.mark.covers("RFC 6855 §3", "RFC 6855 §7", "mail-server:D6")
async def test_who_did_not_ask_gets_no_utf8_in_quotes(office: Any) -> None:
    client = await office.client()
    await client.append(HEADERS)
    lines = await client.ok(b"FETCH 1 (ENVELOPE BODYSTRUCTURE BODY PREVIEW)")
    (line,) = [one for one in lines if b"ENVELOPE" in one]
    assert _beside_literals(line).isascii()
    # Text is in encoded words, what cannot be encoded is a literal; the octets of the message are what they are.
    assert b"=?UTF-8?B?" in line
    assert "zoë".encode() in line
    (line,) = await client.ok(b"FETCH 1 BODY.PEEK[HEADER.FIELDS (SUBJECT)]")
    assert "Subject: Ünïcode 試\r\n".encode() in line
    (line,) = await client.ok(b"FETCH 1 (RFC822.SIZE BODY.PEEK[])")
    assert b"RFC822.SIZE %d " % len(HEADERS) in line
    assert line.endswith(HEADERS + b")")


@pytest.mark.covers("RFC 6855 §3")
async def test_any_name_comes_back(office: Any) -> None:
    plain, modern = await office.client(None), await office.client(None)
    await modern.ok(b"ENABLE UTF8=ACCEPT")
    loop = asyncio.get_running_loop()
    names = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cf", "Zl", "Zp")), min_size=1, max_size=12)

    async def once(name: str) -> None:
        quoted = name.replace("\\", "\\\\").replace('"', '\\"')
        if not (await modern.ask(f'CREATE "{quoted}"'.encode()))[-1].startswith(b"OK"):
            return
        (line,) = [one for one in await modern.ok(b'LIST "" * RETURN (SPECIAL-USE)') if b"&&&" in one or _is_new(one)]
        shown = line.split(b'"/" ', 1)[1]
        lines = await modern.ask(b"STATUS %b (MESSAGES)" % shown)
        assert lines == [b"* STATUS %b (MESSAGES 0)" % shown, b"OK STATUS completed"]
        old = [one for one in await plain.ok(b'LIST "" *') if _is_new(one)]
        assert len(old) == 1
        assert old[0].isascii()
        await plain.ok(b"DELETE " + old[0].split(b'"/" ', 1)[1])

    standard = {b"INBOX", b"Sent", b"Drafts", b"Trash", b"Junk", b"Archive"}

    def _is_new(line: bytes) -> bool:
        return line.split(b'"/" ', 1)[1] not in standard

    @settings(max_examples=40, deadline=None)
    @given(names.filter(lambda name: "/" not in name))
    def check(name: str) -> None:
        asyncio.run_coroutine_threadsafe(once(name), loop).result(20)

    await asyncio.to_thread(check)


@pytest.mark.covers("RFC 6855 §3")
async def test_real_clients(office: Any) -> None:
    listener = await office.listen()

    def session() -> None:
        with imaplib.IMAP4("127.0.0.1", listener.port, timeout=20) as box:
            box.login(office.address, PASSWORD)
            assert box.enable("UTF8=ACCEPT")[0] == "OK"
            assert box.create('"Entwürfe"')[0] == "OK"
            assert any("Entwürfe".encode() in one for one in box.list()[1] if isinstance(one, bytes))
            assert box.select('"Entwürfe"')[0] == "OK"
            assert box.search(None, "SUBJECT", '"Grüße"') == ("OK", [b""])
            assert box.status('"Entwürfe"', "(MESSAGES)")[1] == ['"Entwürfe" (MESSAGES 0)'.encode()]
        with imapclient.IMAPClient("127.0.0.1", listener.port, ssl=False, timeout=20) as other:
            other.login(office.address, PASSWORD)
            assert "Entwürfe" in {name for _, _, name in other.list_folders()}
            other.append("Entwürfe", HEADERS)
            other.select_folder("Entwürfe")
            found = other.fetch([1], ["ENVELOPE", "BODY[]", "PREVIEW"])[1]
            assert found[b"BODY[]"] == HEADERS
            assert found[b"PREVIEW"] == b"body"
            assert found[b"ENVELOPE"].from_[0].mailbox == "zoë".encode()

    await asyncio.to_thread(session)
