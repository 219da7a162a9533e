"""SEARCH for one or two letters, which no index narrows: right in every script, and bounded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.blobs import MaildirStore
from postroom.mail.mime import MAX_HEADER_BYTES
from postroom.mailbox.folding import fold
from postroom.mailbox.words import WordIndexer
from postroom.servers.imap import finder

_TEXTS = ["東京は雨", "北京", "Ärger in Köln", "a", "%_\\", "ﬁne Straße", "🦀 crab", "İstanbul I ı", "x" * 3000 + "終"]
_SUBJECTS = ["会議", "Re: 東", "zu Köln", "b", "100%", "Ⅳ", "crab", "i", "z"]
_NEEDLES = [
    "東",
    "京",
    "雨",
    "終",
    "東京",
    "会",
    "ä",
    "K",
    "ö",
    "a",
    "%",
    "_",
    "\\",
    "fi",
    "ss",
    "ß",
    "🦀",
    "i",
    "iv",
    "終x",
]


def _mail(subject: str, text: str) -> bytes:
    return (
        f"From: ann@example.com\r\nSubject: {subject}\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{text}\r\n"
    ).encode()


def _expected(needle: str, *texts: list[str]) -> list[int]:
    rows = zip(*texts, strict=True)
    return [uid for uid, row in enumerate(rows, 1) if any(fold(needle) in fold(text) for text in row)]


@pytest.mark.covers("mail-server:D7")
@pytest.mark.parametrize("indexed", [False, True])
async def test_one_and_two_letters(office: Any, indexed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for subject, text in zip(_SUBJECTS, _TEXTS, strict=True):
        await office.deliver(_mail(subject, text))
    if indexed:
        indexer = WordIndexer(office.db, office.clock, office.blobs.get_many)
        while await indexer.run_once():
            pass
    monkeypatch.setattr(finder, "_PAGE", 2)
    client = await office.client()
    headers = [f"From: ann@example.com\nSubject: {subject}" for subject in _SUBJECTS]
    for needle in _NEEDLES:
        wire = b"{%d+}\r\n%b" % (len(needle.encode()), needle.encode())
        for key, texts in ((b"BODY", [_TEXTS]), (b"TEXT", [_TEXTS, headers]), (b"SUBJECT", [_SUBJECTS])):
            (line,) = await client.ok(b"UID SEARCH CHARSET UTF-8 %b %b" % (key, wire))
            found = [int(uid) for uid in line.split()[2:]]
            assert found == _expected(needle, *texts), (key, needle)


@pytest.mark.covers("mail-server:D7")
async def test_a_header_without_end_is_searched_as_far_as_it_is_read(office: Any) -> None:
    filler = "X-Filler: " + "y" * 900 + "\r\n"
    count = MAX_HEADER_BYTES // len(filler) + 10
    raw = f"From: ann@example.com\r\nSubject: Q1\r\n{filler * count}X-Late: W2\r\n\r\nText\r\n".encode()
    await office.deliver(raw)
    client = await office.client()
    assert await client.ok(b"SEARCH TEXT Q1") == [b"* SEARCH 1"]
    assert await client.ok(b"SEARCH TEXT W2") == [b"* SEARCH"]
    assert await client.ok(b"SEARCH HEADER X-Filler yy") == [b"* SEARCH 1"]


@pytest.mark.covers("mail-server:D7")
async def test_headers_are_read_so_many_octets_at_a_time(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        await office.deliver(_mail(f"number {number}", "Text"))
    sizes: list[int] = []
    before = MaildirStore.get_many

    async def counted(store: MaildirStore, spans: Any) -> Any:
        sizes.append(len(spans))
        return await before(store, spans)

    monkeypatch.setattr(MaildirStore, "get_many", counted)
    monkeypatch.setattr(finder, "_PAGE_BYTES", 300)
    client = await office.client()
    assert await client.ok(b"SEARCH TEXT 3") == [b"* SEARCH 4"]
    assert max(sizes) <= 3
    assert sum(sizes) == 6


@given(st.text(max_size=40), st.text(min_size=1, max_size=2))
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_folded_here_and_there_is_the_same(text: str, needle: str) -> None:
    """The database decides on ASCII texts, with lower(); here everything else is folded."""
    if text.isascii():
        assert (fold(needle) in fold(text)) == (fold(needle).isascii() and fold(needle) in text.lower())
