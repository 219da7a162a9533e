"""Several messages in one APPEND, all or none; how large one may be (RFC 3502, RFC 7889)."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import imapclient
import pytest

from postroom.blobs import StorageError

PASSWORD = "correct horse battery"
ONE = b"Subject: one\r\n\r\nfirst\r\n"
TWO = b"Subject: two\r\n\r\nsecond\r\n"
THREE = b"Subject: three\r\n\r\nthird\r\n"


def _literal(raw: bytes, extra: bytes = b"") -> bytes:
    return b"%b{%d+}\r\n%b" % (extra, len(raw), raw)


def _multi(*literals: bytes, folder: bytes = b"INBOX") -> bytes:
    return b"APPEND %b %b" % (folder, b" ".join(literals))


async def _counts(office: Any) -> tuple[int, int]:
    async with office.db.acquire() as conn:
        used = await conn.fetchval("SELECT used_bytes FROM mailboxes WHERE id = $1", office.box.id)
        return await conn.fetchval("SELECT count(*) FROM messages"), used


@pytest.mark.covers("RFC 3502 §6.3.11", "RFC 4315 §3", "decisions:C1")
async def test_several_at_once(office: Any) -> None:
    client = await office.client()
    await client.append(ONE)
    command = _multi(
        _literal(ONE, rb"(\Seen) "),
        _literal(TWO, rb'(\Flagged Work) "31-Dec-2001 23:59:59 +0000" '),
        _literal(THREE),
    )
    lines = await client.ask(command)
    assert re.fullmatch(rb"OK \[APPENDUID \d+ 2:4\] APPEND completed", lines[-1])
    assert b"* 4 EXISTS" in lines
    assert await client.ok(b"FETCH 2:4 (UID FLAGS BODY.PEEK[TEXT])") == [
        b"* 2 FETCH (UID 2 FLAGS (\\Seen \\Recent) BODY[TEXT] {7}\r\nfirst\r\n)",
        b"* 3 FETCH (UID 3 FLAGS (\\Flagged work \\Recent) BODY[TEXT] {8}\r\nsecond\r\n)",
        b"* 4 FETCH (UID 4 FLAGS (\\Recent) BODY[TEXT] {7}\r\nthird\r\n)",
    ]
    assert b'INTERNALDATE "31-Dec-2001 23:59:59 +0000"' in (await client.ok(b"FETCH 3 INTERNALDATE"))[0]


@pytest.mark.covers("RFC 3502 §6.3.11")
async def test_literals_that_wait(office: Any) -> None:
    client = await office.client(None)
    client.send(b"a APPEND INBOX {%d}\r\n" % len(ONE))
    assert (await client.line()).startswith(b"+ ")
    client.send(ONE + b" {%d}\r\n" % len(TWO))
    assert (await client.line()).startswith(b"+ ")
    client.send(TWO + b"\r\n")
    assert b"APPENDUID" in (await client.until(b"a"))[-1]
    assert (await _counts(office))[0] == 2


@pytest.mark.covers("RFC 3502 §6.3.11", "mail-server:E4")
async def test_none_where_one_cannot_be_stored(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await office.client(None, await office.listen(max_append_size=1000))
    before = await _counts(office)
    assert (await client.ask(_multi(_literal(ONE), _literal(b""))))[-1].startswith(b"NO [CANNOT]")
    assert (await client.ask(_multi(_literal(ONE), _literal(b"x" * 1001))))[-1].startswith(b"NO [TOOBIG]")
    assert (await client.ask(_multi(_literal(ONE), _literal(TWO), folder=b"Gone")))[-1].startswith(b"NO [TRYCREATE]")
    assert (await client.ask(_multi(_literal(ONE), _literal(TWO, rb"(\Odd) "))))[-1].startswith(b"BAD")
    async with office.db.acquire() as conn:
        await conn.execute(
            "UPDATE mailboxes SET quota_bytes = $1 WHERE id = $2", len(ONE) + len(TWO) - 1, office.box.id
        )
    assert (await client.ask(_multi(_literal(ONE), _literal(TWO))))[-1].startswith(b"NO [OVERQUOTA]")
    async with office.db.acquire() as conn:
        await conn.execute("UPDATE mailboxes SET quota_bytes = NULL WHERE id = $1", office.box.id)
    put_many, calls = office.blobs.put_many, 0

    async def half(groups: Any) -> Any:
        nonlocal calls
        calls += 1
        return [*(await put_many(groups[:-1])), StorageError("EIO")]

    monkeypatch.setattr(office.blobs, "put_many", half)
    assert (await client.ask(_multi(_literal(ONE), _literal(TWO))))[-1].startswith(b"NO [UNAVAILABLE]")
    assert calls
    monkeypatch.undo()
    assert await _counts(office) == before
    assert (await client.ask(_multi(_literal(ONE), _literal(TWO))))[-1].startswith(b"OK [APPENDUID")
    assert (await _counts(office))[0] == before[0] + 2


@pytest.mark.covers("decisions:A7", "RFC 3502 §6.3.11")
async def test_they_are_one_change(office: Any) -> None:
    client = await office.client(None)
    await client.ok(_multi(*map(_literal, (ONE, TWO, THREE))))
    async with office.db.acquire() as conn:
        rows = await conn.fetch("SELECT DISTINCT modseq FROM placements WHERE mailbox_id = $1", office.box.id)
    assert len(rows) == 1


@pytest.mark.covers("mail-server:A7", "RFC 3502 §6.3.11")
async def test_what_all_of_them_may_take_is_limited(office: Any) -> None:
    client = await office.client(None)
    connection = next(iter(office.listeners[0]._context.connections))
    reader = connection._session.reader
    object.__setattr__(reader.limits, "max_append_total", 100_000)
    raw = ONE + b"x" * 40_000
    assert (await client.ask(_multi(_literal(raw), _literal(raw), _literal(raw))))[-1].startswith(b"NO [TOOBIG]")
    assert (await client.ask(_multi(_literal(raw), _literal(raw))))[-1].startswith(b"OK [APPENDUID")
    assert connection._session.held < 64 * 1024
    assert office.listeners[0]._context.budget.total == 0


@pytest.mark.covers("RFC 3502 §6.3.11", "mail-server:D8")
async def test_among_others_in_their_order(office: Any) -> None:
    client = await office.client(None)
    for n in range(10):
        client.send(b"p%d %b\r\n" % (n, _multi(*[_literal(ONE)] * (n % 3 + 1))))
    client.send(b"last NOOP\r\n")
    lines = await client.until(b"last")
    shown = [re.search(rb"APPENDUID \d+ ([\d:]+)\]", line) for line in lines[:-1]]
    expected, uid = [], 1
    for n in range(10):
        count = n % 3 + 1
        expected.append(b"%d" % uid if count == 1 else b"%d:%d" % (uid, uid + count - 1))
        uid += count
    assert [found[1] for found in shown if found] == expected


@pytest.mark.covers("RFC 7889 §3", "RFC 7889 §4")
async def test_append_limit(office: Any) -> None:
    client = await office.client(None, await office.listen(max_append_size=5000))
    (line,) = await client.ok(b"CAPABILITY")
    assert b" APPENDLIMIT=5000" in line
    assert await client.ok(b"STATUS Archive (APPENDLIMIT MESSAGES)") == [
        b"* STATUS Archive (APPENDLIMIT 5000 MESSAGES 0)"
    ]
    listed = await client.ok(b'LIST "" INBOX RETURN (STATUS (APPENDLIMIT))')
    assert listed[1] == b"* STATUS INBOX (APPENDLIMIT 5000)"
    assert (await client.append(b"x" * 5000)).startswith(b"OK")
    assert (await client.append(b"x" * 5001)).startswith(b"NO [TOOBIG]")


@pytest.mark.covers("RFC 3502 §6.3.11")
async def test_imapclient_sends_it(office: Any) -> None:
    listener = await office.listen()

    def session() -> None:
        with imapclient.IMAPClient("127.0.0.1", listener.port, ssl=False, timeout=20) as box:
            box.login(office.address, PASSWORD)
            _, (answer,) = box.multiappend("Archive", [ONE, {"msg": TWO, "flags": (imapclient.SEEN,)}, THREE])
            assert re.fullmatch(rb"\[APPENDUID \d+ 1:3\] APPEND completed", answer)
            assert box.select_folder("Archive")[b"EXISTS"] == 3
            found = box.fetch([1, 2, 3], ["FLAGS", "BODY[]"])
            assert [found[n][b"BODY[]"] for n in (1, 2, 3)] == [ONE, TWO, THREE]

    await asyncio.to_thread(session)
