"""What becomes of results: kept in ``$``, shown in windows, kept up to date, and scored (RFC 5182, RFC 9394, RFC 5267,
RFC 6203).
"""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from postroom.mailbox.search import FolderSearch
from postroom.mailbox.words import WordIndexer
from postroom.servers.imap import contexts

NOTE = b"Subject: %b\r\n\r\n%b\r\n"


async def _filled(office: Any, count: int) -> Any:
    client = await office.client(None)
    for number in range(1, count + 1):
        await client.append(NOTE % (b"number %d" % number, b"x" * number))
    await client.ok(b"SELECT INBOX")
    return client


async def _uids(client: Any, command: bytes) -> list[int]:
    found = [re.search(rb"\* \d+ FETCH .*\bUID (\d+)", line) for line in await client.ok(command)]
    return [int(one[1]) for one in found if one is not None]


async def _saved(client: Any) -> list[int]:
    return await _uids(client, b"FETCH $ UID")


async def _remove(client: Any, uids: bytes) -> None:
    await client.ok(rb"UID STORE %b +FLAGS.SILENT (\Deleted)" % uids)
    await client.ok(b"UID EXPUNGE " + uids)


# -- $


@pytest.mark.covers("RFC 5182 §2.1", "RFC 5182 §2.2")
async def test_a_saved_result_stands_for_its_messages(office: Any) -> None:
    client = await _filled(office, 6)
    assert await _saved(client) == []
    assert await client.ok(b"SEARCH RETURN (SAVE) 2:5") == []
    assert await _saved(client) == [2, 3, 4, 5]
    assert await client.ok(b"SEARCH $ NOT 3") == [b"* SEARCH 2 4 5"]
    assert await client.ok(b"UID SEARCH RETURN (SAVE ALL) UID $ 3:*") == [b'* ESEARCH (TAG "a13") UID ALL 3:5']
    await client.ok(rb"STORE $ +FLAGS.SILENT (\Flagged)")
    assert await client.ok(b"SEARCH FLAGGED") == [b"* SEARCH 3 4 5"]
    assert b"COPYUID" in (await client.ask(b"COPY $ Archive"))[-1]
    assert await _uids(client, b"UID FETCH $ (FLAGS)") == [3, 4, 5]
    assert await client.ok(b"SORT (REVERSE SIZE) UTF-8 $") == [b"* SORT 5 4 3"]
    moved = await client.ok(b"UID MOVE $ Archive")
    assert moved[1:] == [b"* 3 EXPUNGE", b"* 3 EXPUNGE", b"* 3 EXPUNGE"]
    assert await _saved(client) == []
    assert await client.ok(b"COPY $ Archive") == []
    assert (await client.ask(b"FETCH $,1 UID"))[-1].startswith(b"BAD")


@pytest.mark.covers("RFC 5182 §2.1")
async def test_it_follows_its_messages(office: Any) -> None:
    client, other = await _filled(office, 6), await office.client()
    await client.ok(b"SEARCH RETURN (SAVE) 2,4,6")
    await _remove(client, b"1,4")
    assert await _saved(client) == [2, 6]
    assert await client.ok(b"SEARCH $") == [b"* SEARCH 1 4"]
    await _remove(other, b"6")
    # Gone, and not told yet: no longer among them, and no error.
    fetched = await client.ok(b"FETCH $ UID")
    assert fetched == [b"* 1 FETCH (UID 2)"]
    await client.ok(b"NOOP")
    await client.append(NOTE % (b"number 7", b"x"))
    assert await _saved(client) == [2]
    await client.ok(b"SELECT INBOX")
    assert await _saved(client) == []


@pytest.mark.covers("RFC 5182 §2.1", "RFC 5182 §2.3")
async def test_failures_and_pipelines(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await _filled(office, 4)
    await client.ok(b"SEARCH RETURN (SAVE) 1:2")
    for bad in (b"SEARCH RETURN (SAVE) NONSENSE", b"SEARCH RETURN (SAVE PARTIAL 0:1) ALL"):
        assert (await client.ask(bad))[-1].startswith(b"BAD")
    assert (await client.ask(b"SEARCH CHARSET X ALL"))[-1].startswith(b"NO")
    assert await _saved(client) == [1, 2]
    assert (await client.ask(b"SEARCH RETURN (SAVE) CHARSET X ALL"))[-1].startswith(b"NO [BADCHARSET (UTF-8)]")
    assert await _saved(client) == []

    async def fail(*_: object) -> None:
        raise OSError

    await client.ok(b"SEARCH RETURN (SAVE) 1:2")
    with monkeypatch.context() as patch:
        patch.setattr(FolderSearch, "test", fail)
        client.send(b"p1 SEARCH RETURN (SAVE) LARGER 1\r\np2 FETCH $ UID\r\n")
        client.send(b"p3 SEARCH RETURN (SAVE) 3:*\r\np4 FETCH $ UID\r\n")
        assert (await client.until(b"p1"))[-1].startswith(b"p1 NO")
        assert await client.until(b"p2") == [b"p2 OK FETCH completed"]
    await client.until(b"p3")
    assert len(await client.until(b"p4")) == 3


@pytest.mark.covers("RFC 5182 §2.4", "RFC 9394 §3.2")
@pytest.mark.parametrize(
    ("options", "saved"),
    [
        (b"SAVE", [2, 3, 4, 5, 6]),
        (b"SAVE MIN", [2]),
        (b"MAX SAVE", [6]),
        (b"SAVE MIN MAX", [2, 6]),
        (b"SAVE MIN COUNT", [2, 3, 4, 5, 6]),
        (b"SAVE MIN ALL", [2, 3, 4, 5, 6]),
        (b"SAVE COUNT", [2, 3, 4, 5, 6]),
        (b"SAVE PARTIAL 2:3", [3, 4]),
        (b"SAVE PARTIAL 2:3 MAX", [3, 4, 6]),
        (b"SAVE PARTIAL 2:3 MIN MAX", [2, 3, 4, 6]),
        (b"SAVE PARTIAL 2:3 COUNT", [2, 3, 4, 5, 6]),
        (b"SAVE PARTIAL 20:30", []),
    ],
)
async def test_what_is_saved_depends_on_what_is_told(office: Any, options: bytes, saved: list[int]) -> None:
    client = await _filled(office, 7)
    await client.ok(b"SEARCH RETURN (%b) 2:6" % options)
    assert await _saved(client) == saved
    if b"PARTIAL" not in options:
        await client.ok(b"SEARCH RETURN (%b) KEYWORD nothing" % options)
        assert await _saved(client) == []


# -- PARTIAL


@pytest.mark.covers("RFC 9394 §3.1", "RFC 5267 §4.4")
async def test_windows_of_results(office: Any) -> None:
    client = await _filled(office, 9)
    await _remove(client, b"1")
    for window, found in (
        (b"1:3", b"2:4"),
        (b"3:1", b"2:4"),
        (b"7:20", b"8:9"),
        (b"-1:-2", b"8:9"),
        (b"-20:-8", b"2"),
        (b"9:10", b"NIL"),
        (b"-9:-10", b"NIL"),
    ):
        (line,) = await client.ok(b"UID SEARCH RETURN (PARTIAL %b) ALL" % window)
        assert line.endswith(b" UID PARTIAL (%b %b)" % (window, found))
    (line,) = await client.ok(b"SEARCH RETURN (PARTIAL 2:3 COUNT) ALL")
    assert line.endswith(b" PARTIAL (2:3 2:3) COUNT 8")
    (line,) = await client.ok(b"SEARCH RETURN (PARTIAL 1:3) ANSWERED")
    assert line.endswith(b" PARTIAL (1:3 NIL)")


@pytest.mark.covers("RFC 9394 §3.3", "RFC 9394 §3.4")
async def test_windows_of_fetch(office: Any) -> None:
    client = await _filled(office, 9)
    await _remove(client, b"3,8")
    assert await _uids(client, b"UID FETCH 2:* (UID) (PARTIAL -1:-3)") == [6, 7, 9]
    assert await _uids(client, b"UID FETCH 2:5,7:9 FLAGS (PARTIAL 2:4)") == [4, 5, 7]
    assert await _uids(client, b"UID FETCH 1:* FLAGS (PARTIAL 8:9)") == []
    (line,) = await client.ok(rb"STORE 6:* +FLAGS.SILENT (\Flagged)") or [b""]
    (line,) = [one for one in await client.ok(b"UID FETCH 1 (MODSEQ)") if b"MODSEQ" in one]
    modseq = int(re.search(rb"MODSEQ \((\d+)\)", line)[1])  # type: ignore[index]  # it is there
    await client.ok(rb"UID STORE 2,9 +FLAGS (\Answered)")
    assert await _uids(client, b"UID FETCH 1:* FLAGS (CHANGEDSINCE %d PARTIAL 1:3)" % (modseq + 100)) == []
    before = (await client.ok(b"STATUS INBOX (HIGHESTMODSEQ)"))[0]
    at = int(re.search(rb"HIGHESTMODSEQ (\d+)", before)[1])  # type: ignore[index]  # it is there
    await client.ok(rb"UID STORE 2,9 -FLAGS.SILENT (\Answered)")
    assert await _uids(client, b"UID FETCH 1:* FLAGS (PARTIAL 1:3 CHANGEDSINCE %d)" % at) == [2]
    assert await _uids(client, b"UID FETCH 1:* FLAGS (CHANGEDSINCE %d PARTIAL -1:-1)" % at) == [9]


@pytest.mark.covers("RFC 4731 §3.2")
async def test_the_modseq_is_of_what_is_told(office: Any) -> None:
    client = await _filled(office, 3)
    await client.ok(rb"STORE 2 +FLAGS (\Flagged)")

    async def told(options: bytes) -> int:
        (line,) = await client.ok(b"SEARCH RETURN (%b) MODSEQ 1" % options)
        return int(line.split()[-1])

    assert await told(b"MIN") < await told(b"MAX") == await told(b"MIN MAX") < await told(b"ALL")


# -- UPDATE


class _Follower:
    """A client that keeps a set by what it is told, as UIDs or as numbers."""

    def __init__(self, tag: bytes, uids: list[int], found: set[int], *, uid: bool) -> None:
        self.tag, self.uids, self.found, self.uid = tag, uids, found, uid

    def read(self, lines: list[bytes]) -> None:
        for line in lines:
            if expunged := re.fullmatch(rb"\* (\d+) EXPUNGE", line):
                gone = self.uids.pop(int(expunged[1]) - 1)
                assert gone not in self.found, "REMOVEFROM comes before EXPUNGE"
            elif exists := re.fullmatch(rb"\* (\d+) EXISTS", line):
                while len(self.uids) < int(exists[1]):
                    self.uids.append(max(self.uids) + 1)
            elif line.startswith(b'* ESEARCH (TAG "%b")' % self.tag):
                assert (b" UID " in line) is self.uid
                for word, names in re.findall(rb"(ADDTO|REMOVEFROM) \(0 ([\d:,]+)\)", line):
                    numbers = set(_expanded(names))
                    meant = numbers if self.uid else {self.uids[number - 1] for number in numbers}
                    if word == b"ADDTO":
                        assert not meant & self.found
                        self.found |= meant
                    else:
                        assert meant <= self.found
                        self.found -= meant


def _expanded(names: bytes) -> list[int]:
    ends = (part.partition(b":") for part in names.split(b","))
    return [name for low, colon, high in ends for name in range(int(low), int(high if colon else low) + 1)]


@pytest.mark.covers("RFC 5267 §4.3", "RFC 5267 §4.3.2", "RFC 5267 §4.3.3", "RFC 5267 §4.3.4")
@pytest.mark.parametrize("uid", [True, False])
@pytest.mark.parametrize(
    "query", [b"UNFLAGGED", b"OR FLAGGED SUBJECT 3", b"NOT 2:5", b"ALL", b"LARGER 30", b"BODY x", b"TEXT number"]
)
async def test_results_are_kept_up_to_date(office: Any, uid: bool, query: bytes) -> None:
    rng = random.Random(11)
    client, other = await _filled(office, 12), await office.client()
    (line,) = await client.ok((b"UID " if uid else b"") + b"SEARCH RETURN (UPDATE ALL) " + query)
    found = re.search(rb'TAG "(\w+)".* ALL ([\d:,]+)$', line)
    assert found is not None
    follower = _Follower(found[1], list(range(1, 13)), set(_expanded(found[2])), uid=uid)
    uids = list(range(1, 13))
    for _ in range(14):
        some = b",".join(b"%d" % one for one in rng.sample(uids, 3))
        change = rng.choice(("flag", "unflag", "expunge", "append", "own"))
        if change == "append":
            await other.append(NOTE % (b"number 3%d" % rng.randrange(9), rng.choice((b"y", b"x")) * rng.randrange(20)))
            uids.append(uids[-1] + 1)
        elif change == "expunge":
            await _remove(other, some)
        elif change == "own":
            follower.read(await client.ok(rb"UID STORE %b +FLAGS.SILENT (\Flagged)" % some))
        else:
            await other.ok(rb"UID STORE %b %bFLAGS.SILENT (\Flagged)" % (some, b"+" if change == "flag" else b"-"))
        follower.read(await client.ok(rng.choice((b"NOOP", b"FETCH 1 (UID)", b"UID FETCH 1 (FLAGS)"))))
    follower.read(await client.ok(b"NOOP"))
    if query == b"NOT 2:5":
        query = b"NOT UID 2:5"  # numbers mean what they meant at first
    (line,) = await client.ok(b"UID SEARCH " + query)
    assert sorted(follower.found) == [int(one) for one in line.split()[2:]]
    assert follower.found <= set(follower.uids)


@pytest.mark.covers("RFC 5267 §4.3.2", "RFC 5267 §4.3.5")
async def test_updates_come_during_idle_until_they_are_cancelled(office: Any) -> None:
    client, other = await _filled(office, 2), await office.client()
    client.send(b"u1 SEARCH RETURN (UPDATE COUNT) FLAGGED\r\n")
    assert (await client.until(b"u1"))[0] == b'* ESEARCH (TAG "u1") COUNT 0'
    client.send(b"i1 IDLE\r\n")
    assert (await client.line()).startswith(b"+")
    await other.ok(rb"STORE 2 +FLAGS.SILENT (\Flagged)")
    assert await client.line() == rb"* 2 FETCH (FLAGS (\Flagged \Recent) UID 2)"
    assert await client.line() == b'* ESEARCH (TAG "u1") ADDTO (0 2)'
    client.send(b"DONE\r\n")
    await client.until(b"i1")
    assert await client.ok(b'CANCELUPDATE "u1" "never"') == []
    await other.ok(rb"STORE 1 +FLAGS.SILENT (\Flagged)")
    assert not any(b"ESEARCH" in line for line in await client.ok(b"NOOP"))


@pytest.mark.covers("RFC 5267 §4.3", "RFC 5267 §4.3.1")
async def test_tags_are_used_once_and_contexts_are_limited(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "MAX_CONTEXTS", 2)
    client = await _filled(office, 2)
    client.send(b"u1 SEARCH RETURN (UPDATE CONTEXT COUNT) ALL\r\nu1 SORT RETURN (UPDATE COUNT) (DATE) UTF-8 ALL\r\n")
    assert (await client.until(b"u1"))[-1].startswith(b"u1 OK")
    assert (await client.until(b"u1"))[-1].startswith(b"u1 BAD")
    client.send(b"u2 SORT RETURN (UPDATE COUNT) (DATE) UTF-8 ALL\r\nu3 UID SEARCH RETURN (UPDATE COUNT) ALL\r\n")
    assert len(await client.until(b"u2")) == 2
    refused = await client.until(b"u3")
    assert refused[0].startswith(b'* NO [NOUPDATE "u3"] ')
    assert refused[1:] == [b'* ESEARCH (TAG "u3") UID COUNT 2', b"u3 OK SEARCH completed"]
    await (await office.client(None)).append(NOTE % (b"x", b"x"))
    told = await client.ok(b"NOOP")
    assert told[0] == b"* 3 EXISTS"
    assert sorted(told[2:]) == [b'* ESEARCH (TAG "u1") ADDTO (0 3)', b'* ESEARCH (TAG "u2") ADDTO (3 3)']
    await client.ok(b"SELECT INBOX")
    client.send(b"u1 SEARCH RETURN (UPDATE COUNT) ALL\r\n")
    assert (await client.until(b"u1"))[-1].startswith(b"u1 OK")


# -- FUZZY

_LETTERS = [
    b"Subject: Quarterly invoices\r\nFrom: Katharina Meyer <kath@x.example>\r\n\r\nthe zeppelin flies\r\n",
    b"Subject: Invoice of March\r\nFrom: Catherine <c@x.example>\r\n\r\nzepelin and balloon\r\n",
    b"Subject: Lunch\r\nFrom: Bob <bob@x.example>\r\n\r\nnothing of the kind\r\n",
]


@pytest.fixture
async def letters(office: Any) -> Any:
    client = await office.client(None)
    for raw in _LETTERS:
        await client.append(raw)
    indexer = WordIndexer(office.services.database, office.services.clock, office.services.blobs.get_many)
    while await indexer.run_once():
        pass
    await client.ok(b"SELECT INBOX")
    return client


@pytest.mark.covers("RFC 6203 §3", "RFC 6203 §5")
async def test_what_is_alike_is_found(letters: Any) -> None:
    for query, found in (
        (b"FUZZY SUBJECT invoise", b" 1 2"),
        (b"SUBJECT invoise", b""),
        (b"FUZZY FROM Katarina", b" 1"),
        (b"FUZZY BODY zeppelin", b" 1 2"),
        (b"BODY zeppelin", b" 1"),
        (b"FUZZY TEXT zeppellin", b" 1 2"),
        (b'FUZZY TEXT "baloon zeppelin"', b" 2"),
        (b"FUZZY NOT SUBJECT invoise", b" 3"),
        (b"FUZZY (OR SUBJECT lunhc SUBJECT invoise) FROM bob", b""),
        (b"FUZZY UNFLAGGED", b" 1 2 3"),
        (b'FUZZY SUBJECT ""', b" 1 2 3"),
        (b'FUZZY SUBJECT "..."', b""),
        (b"FUZZY HEADER Subject Lunch", b" 3"),
    ):
        assert await letters.ok(b"SEARCH " + query) == [b"* SEARCH" + found], query


@pytest.mark.covers("RFC 6203 §4", "RFC 6203 §6")
async def test_scores(letters: Any) -> None:
    (line,) = await letters.ok(b"SEARCH RETURN (ALL RELEVANCY) FUZZY TEXT zeppelin")
    found = re.search(rb" ALL 1:2 RELEVANCY \((\d+) (\d+)\)$", line)
    assert found is not None
    assert 100 == int(found[1]) > int(found[2]) > 0
    assert await letters.ok(b"SORT (RELEVANCY) UTF-8 FUZZY SUBJECT invoice") == [b"* SORT 1 2"]
    assert await letters.ok(b"SORT (RELEVANCY) UTF-8 FUZZY TEXT zepelin") == [b"* SORT 2 1"]
    assert await letters.ok(b"SORT (REVERSE RELEVANCY) UTF-8 FUZZY TEXT zepelin") == [b"* SORT 1 2"]
    (line,) = await letters.ok(b"SORT RETURN (PARTIAL 1:1 RELEVANCY) (RELEVANCY) UTF-8 FUZZY TEXT zepelin")
    assert line.endswith(b" PARTIAL (1:1 2) RELEVANCY (100)")
    for bad in (b"SEARCH RETURN (RELEVANCY) TEXT x", b"SORT (RELEVANCY) UTF-8 TEXT x"):
        assert (await letters.ask(bad))[-1].startswith(b"BAD")
