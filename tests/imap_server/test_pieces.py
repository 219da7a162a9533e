"""A session is the same whether its client's bytes come in one piece or one by one, in clear text and compressed."""

from __future__ import annotations

import re
import zlib
from typing import Any

import pytest

_RAW = b"From: ann@example.com\r\nSubject: cut\r\n\r\nText\r\n"
_SCRIPT = (
    b"s1 LOGIN {%(size)d+}\r\n%(address)b {21+}\r\ncorrect horse battery\r\n"
    b"s2 ENABLE CONDSTORE\r\ns3 CREATE {5}\r\nPiece\r\ns4 SELECT {5+}\r\nPiece\r\n"
    b"s5 APPEND Piece (\\Seen) {%(length)d}\r\n%(raw)b\r\n"
    b"s6 APPEND Piece {%(length)d+}\r\n%(raw)b (\\Draft) ~{%(length)d+}\r\n%(raw)b\r\n"
    b"s7 NOOP {3+}\r\nabc\r\n"
)
_AFTER = (
    b"t1 SEARCH TEXT {3}\r\ncut FROM {3+}\r\nann\r\nt2 UID SEARCH RETURN (ALL) SUBJECT {3+}\r\ncut\r\n"
    b"t3 FETCH 1:* (UID FLAGS BODY.PEEK[HEADER.FIELDS ({7+}\r\nSubject)])\r\nt4 IDLE\r\nDONE\r\nt5 IDLE\r\nt6 NOOP\r\n"
    b"NOOP\r\nt7 X\0Y\r\nt8 STORE 1 +FLAGS (\\Deleted)\r\nt9 EXPUNGE\r\nu1 DELETE Piece\r\nu2 LOGOUT\r\n"
)


def _said(answers: bytes) -> bytes:
    """What does not depend on when it was."""
    answers = re.sub(rb"(MODSEQ|UIDVALIDITY|APPENDUID) \(?[0-9]+\)?", rb"\1", answers)
    return re.sub(rb"MAILBOXID \([^)]*\)", b"MAILBOXID", answers)


async def _answers(office: Any, script: bytes, piece: int, *, deflate: bool) -> bytes:
    client = await office.connect()
    inflate = zlib.decompressobj(-15)
    if deflate:
        await client.ok(b'LOGIN %b "correct horse battery"' % office.address.encode())
        await client.ok(b"COMPRESS DEFLATE")
        packer = zlib.compressobj(wbits=-15)
        script = packer.compress(script) + packer.flush(zlib.Z_SYNC_FLUSH)
    for start in range(0, len(script), piece):
        client.send(script[start : start + piece])
        await client.writer.drain()
    answers = await client.rest()
    return _said(inflate.decompress(answers) if deflate else answers)


@pytest.mark.covers("mail-server:D1", "RFC 9051 §4.3", "RFC 4978 §3")
@pytest.mark.parametrize("deflate", [False, True])
async def test_one_by_one_or_all_at_once(office: Any, deflate: bool) -> None:
    address = office.address.encode()
    values = {b"size": len(address), b"address": address, b"length": len(_RAW), b"raw": _RAW}
    script = _SCRIPT % values
    if deflate:
        script = script[script.index(b"s2 ") :]
    script += _AFTER
    whole = await _answers(office, script, len(script), deflate=deflate)
    statuses = b" ".join(b" ".join(found) for found in re.findall(rb"(?m)^([stu][0-9]) ([A-Z]+) ", whole))
    assert statuses == (b"" if deflate else b"s1 OK ") + (
        b"s2 OK s3 OK s4 OK s5 OK s6 OK s7 BAD t1 OK t2 OK t3 OK t4 OK t5 BAD t7 BAD t8 OK t9 OK u1 OK u2 OK"
    )
    assert b"* SEARCH 1 2 3\r\n" in whole
    for piece in (1, 2, 7):
        assert await _answers(office, script, piece, deflate=deflate) == whole
