"""SEARCH (mail-server D7; RFC 3501 §6.4.4)."""

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from postroom.mailbox.words import WordIndexer


def _raw(subject: str, text: str, **headers: str) -> bytes:
    fields = {"From": "Anna Example <anna@example.com>", "To": "carol@agents.example", "Subject": subject, **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items() if value)
    return f"{head}MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{text}\r\n".encode()


_BOX = [
    (
        _raw("Invoice 4711", "Please pay.", Date="Mon, 05 Jan 2009 23:30:00 -0800"),
        rb"(\Seen) ",
        b'"05-Jan-2009 12:00:00 +0000" ',
    ),
    (
        _raw("Lunch?", "Die Straße ist lang", Date="Tue, 06 Jan 2009 00:30:00 +0900", Cc="Bob <bob@example.com>"),
        b"",
        b"",
    ),
    (_raw("=?utf-8?q?=C3=9Cber_alles?=", "Nothing here", Bcc="hidden@example.com"), rb"(\Flagged work) ", b""),
    (
        _raw("re: LUNCH", "x" * 5000, X_Mark="A Special Value", To="Dan <dan@example.com>, eve@example.com"),
        rb"(\Deleted) ",
        b"",
    ),
]


@pytest.fixture(params=["not yet indexed", "indexed"], autouse=True)
def indexed(request: pytest.FixtureRequest) -> bool:
    """Every search finds the same, whether the words of the messages are indexed or not (B20)."""
    return bool(request.param == "indexed")


@pytest.fixture
async def index(office: Any, indexed: bool) -> Callable[[], Awaitable[None]]:
    """Indexes what is there, when it is that turn."""

    async def run() -> None:
        services = office.services
        indexer = WordIndexer(services.database, services.clock, services.blobs.get_many)
        while indexed and await indexer.run_once():
            pass

    return run


async def _filled(office: Any, index: Callable[[], Awaitable[None]]) -> Any:
    client = await office.client(None)
    for raw, flags, date in _BOX:
        assert (await client.append(raw, b"INBOX", flags + date)).startswith(b"OK")
    await index()
    await client.ok(b"SELECT INBOX")
    return client


async def _found(client: Any, query: bytes) -> list[int]:
    (line,) = [line for line in await client.ok(b"SEARCH " + query) if line.startswith(b"* SEARCH")]
    return [int(number) for number in line.split()[2:]]


@pytest.mark.covers("mail-server:D7")
async def test_every_key(office: Any, index: Any) -> None:
    client = await _filled(office, index)
    expected: list[tuple[bytes, list[int]]] = [
        (b"ALL", [1, 2, 3, 4]),
        (b"SEEN", [1]),
        (b"UNSEEN", [2, 3, 4]),
        (b"FLAGGED", [3]),
        (b"UNFLAGGED DELETED", [4]),
        (b"ANSWERED", []),
        (b"DRAFT", []),
        (b"UNDRAFT UNANSWERED UNDELETED", [1, 2, 3]),
        (b"KEYWORD Work", [3]),
        (b"UNKEYWORD work", [1, 2, 4]),
        (b"RECENT", [1, 2, 3, 4]),
        (b"NEW", [2, 3, 4]),
        (b"OLD", []),
        (b"SUBJECT lunch", [2, 4]),
        (b"SUBJECT invoice SEEN", [1]),
        (b"CHARSET UTF-8 SUBJECT {6+}\r\n\xc3\xbcBER ", [3]),
        (b'SUBJECT ""', [1, 2, 3, 4]),
        (b"FROM anna@EXAMPLE", [1, 2, 3, 4]),
        (b'FROM "anna example"', [1, 2, 3, 4]),
        (b'FROM "Anna Example <anna"', [1, 2, 3, 4]),
        (b"TO eve@", [4]),
        (b"CC bob", [2]),
        (b"BCC hidden", [3]),
        (b"HEADER X-Mark special", [4]),
        (b'HEADER X-Mark ""', [4]),
        (b"HEADER Cc nobody", []),
        (b"HEADER To example.com", [4]),
        (b"TEXT 4711mime", []),
        (b'TEXT "lunch?"', [2]),
        (b"BODY pay", [1]),
        (b"BODY STRASSE", [2]),
        (b"CHARSET UTF-8 BODY {7+}\r\nstra\xc3\x9fe ", [2]),
        (b"BODY lunch", []),
        (b"TEXT lunch", [2, 4]),
        (b"TEXT special", [4]),
        (b"TEXT nothing", [3]),
        (b"LARGER 4000", [4]),
        (b"SMALLER 4000", [1, 2, 3]),
        (b"BEFORE 06-Jan-2009", [1]),
        (b"ON 5-Jan-2009", [1]),
        (b"SINCE 6-Jan-2009", [2, 3, 4]),
        (b"SENTON 05-Jan-2009", [1]),
        (b"SENTON 6-Jan-2009", [2]),
        (b"SENTBEFORE 6-Jan-2009", [1]),
        (b"SENTSINCE 6-Jan-2009", [2]),
        (b"UID 2:3", [2, 3]),
        (b"2:*", [2, 3, 4]),
        (b"*", [4]),
        (b"NOT SEEN", [2, 3, 4]),
        (b"OR SEEN FLAGGED", [1, 3]),
        (b"OR (SUBJECT lunch DELETED) (FLAGGED)", [3, 4]),
        (b"NOT (OR SUBJECT lunch BODY pay)", [3]),
        (b"NOT NOT SUBJECT lunch NOT DELETED", [2]),
        (b"OLDER 1000", [1]),
        (b"YOUNGER 1000", [2, 3, 4]),
    ]
    for query, numbers in expected:
        assert await _found(client, query) == numbers, query


@pytest.mark.covers("mail-server:D7")
async def test_forms_of_the_answer(office: Any, index: Any) -> None:
    client = await _filled(office, index)
    assert await client.ok(b"SEARCH RETURN (MIN MAX COUNT ALL) UNSEEN") == [
        b'* ESEARCH (TAG "a7") MIN 2 MAX 4 COUNT 3 ALL 2:4'
    ]
    assert await client.ok(b"UID SEARCH RETURN () SEEN") == [b'* ESEARCH (TAG "a8") UID ALL 1']
    assert await client.ok(b"SEARCH RETURN (MIN COUNT) ANSWERED") == [b'* ESEARCH (TAG "a9") COUNT 0']
    assert await client.ok(b"UID SEARCH FLAGGED") == [b"* SEARCH 3"]
    assert (await client.ask(b"SEARCH CHARSET KOI8-R SUBJECT x"))[-1].startswith(b"NO [BADCHARSET (UTF-8)]")
    for nonsense in (b"SEARCH", b"SEARCH NONSENSE", b"SEARCH (SEEN", b"SEARCH ON 31-Feb-2000", b"SEARCH UID x"):
        assert (await client.ask(nonsense))[-1].startswith(b"BAD "), nonsense


@pytest.mark.covers("mail-server:D7")
async def test_numbers_of_messages_that_went(office: Any, index: Any) -> None:
    client = await _filled(office, index)
    other = await office.client()
    await other.ok(rb"UID STORE 2 +FLAGS.SILENT (\Deleted)")
    await other.ok(b"EXPUNGE")
    assert await _found(client, b"SUBJECT ber") == [3]
    assert await client.ok(b"UID SEARCH ALL") == [b"* SEARCH 1 2 3 4", b"* 2 EXPUNGE", b"* 3 EXPUNGE"]
    assert await _found(client, b"ALL") == [1, 2]


@pytest.mark.covers("mail-server:D7")
async def test_combinations_agree_with_sets(office: Any, index: Any) -> None:
    client = await _filled(office, index)
    leaves = [b"SEEN", b"SUBJECT lunch", b"BODY pay", b"LARGER 4000", b"UID 2:3", b"FROM anna", b"TEXT special"]
    answers = {leaf: frozenset(await _found(client, leaf)) for leaf in leaves}
    rng = random.Random(1)

    def tree(depth: int) -> tuple[bytes, frozenset[int]]:
        kind = rng.choice(("leaf", "not", "or", "and")) if depth else "leaf"
        if kind == "leaf":
            leaf = rng.choice(leaves)
            return leaf, answers[leaf]
        left, found = tree(depth - 1)
        if kind == "not":
            return b"NOT (%b)" % left, frozenset(range(1, 5)) - found
        right, other = tree(depth - 1)
        if kind == "or":
            return b"OR (%b) (%b)" % (left, right), found | other
        return b"(%b %b)" % (left, right), found & other

    for _ in range(40):
        query, expected = tree(4)
        assert await _found(client, query) == sorted(expected), query


@pytest.mark.covers("mail-server:D7")
async def test_metadata_queries_read_no_bytes(office: Any, index: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await _filled(office, index)

    async def refuse(*_: object) -> None:
        raise AssertionError("bytes were read")

    monkeypatch.setattr(office.blobs, "get_many", refuse)
    for query in (b"UNSEEN", b"SUBJECT lunch", b"SINCE 1-Jan-2000", b"LARGER 10", b"SENTSINCE 1-Jan-2000", b"BODY pay"):
        await _found(client, query)
