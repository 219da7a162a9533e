"""SORT, with RETURN, and the order that a context keeps (RFC 5256, RFC 5957, RFC 5267)."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.imap_server.dovecot import ask_dovecot, needs_dovecot

_FIRST = datetime(2020, 5, 1, tzinfo=UTC)


def _mail(subject: str = "x", size: int = 10, **fields: str) -> bytes:
    head = "".join(f"{name}: {value}\r\n" for name, value in {"Subject": subject, **fields}.items() if value)
    return f"{head}\r\n{'x' * size}\r\n".encode()


async def _filled(office: Any, mails: list[bytes], *, select: bool = True) -> Any:
    client = await office.client(None)
    for number, raw in enumerate(mails):
        when = _FIRST + timedelta(seconds=number)
        assert (await client.append(raw, extra=when.strftime('"%d-%b-%Y %H:%M:%S +0000" ').encode())).startswith(b"OK")
    if select:
        await client.ok(b"SELECT INBOX")
    return client


def _random_mails(seed: int, count: int) -> list[bytes]:
    rng = random.Random(seed)
    people = [
        "",
        "Zoe <a@x.example>",
        "bob@y.example",
        '"Ann, B." <C@x.example>',
        "carl <carl@y.example>, zoe@x.example",
    ]
    subjects = [
        "",
        "Lunch",
        "Re: lunch",
        "[list] Fwd: Lunch (fwd)",
        "apples",
        "Re: Re: [x] Pears",
        "[Fwd: lunch]",
        "re:",
    ]
    mails = []
    for _ in range(count):
        when = datetime(2021, 1, rng.randint(1, 4), rng.randint(0, 23), 0, tzinfo=UTC)
        zone = rng.choice(("+0000", "+0900", "-0800"))
        mails.append(
            _mail(
                rng.choice(subjects),
                rng.choice((5, 50, 500)),
                From=rng.choice(people),
                To=rng.choice(people),
                Cc=rng.choice(people),
                Date=when.strftime(f"%a, %d %b %Y %H:%M:%S {zone}") if rng.random() < 0.9 else "",
            )
        )
    return mails


async def _sorted(client: Any, arguments: bytes, command: bytes = b"SORT") -> list[int]:
    (line,) = [one for one in await client.ok(command + b" " + arguments) if one.startswith(b"* SORT")]
    return [int(number) for number in line.split()[2:]]


_CRITERIA = (
    *(b"ARRIVAL", b"CC", b"DATE", b"FROM", b"SIZE", b"SUBJECT", b"TO", b"DISPLAYFROM", b"DISPLAYTO", b"REVERSE DATE"),
    *(b"REVERSE FROM", b"SUBJECT REVERSE DATE", b"REVERSE SUBJECT REVERSE TO SIZE", b"FROM REVERSE CC ARRIVAL"),
)


@needs_dovecot
@pytest.mark.covers("RFC 5256 §3", "RFC 5256 §2.2", "RFC 5957 §3")
async def test_the_order_is_that_of_another_server(office: Any) -> None:
    mails = _random_mails(3, 40)
    client = await _filled(office, mails)
    answers = ask_dovecot(
        mails, [b"SORT (%b) US-ASCII ALL" % one for one in _CRITERIA], first_date=int(_FIRST.timestamp())
    )
    for criteria, line in zip(_CRITERIA, answers, strict=True):
        theirs = [int(number) for number in line.split()[2:]]
        assert await _sorted(client, b"(%b) US-ASCII ALL" % criteria) == theirs, criteria


@pytest.mark.covers("RFC 5256 §3", "RFC 5256 §5.1", "RFC 5957 §3")
async def test_text_is_decoded_and_folded(office: Any) -> None:
    client = await _filled(
        office,
        [
            _mail("=?utf-8?q?=C3=9Cber?=", From="=?utf-8?q?=C3=81da?= <z@x.example>"),
            _mail("zoo", From="zed <a@x.example>"),
            _mail("Über", From="b@x.example"),
            _mail("straSSE", From=""),
            _mail("Straße", From="STRASSE <k@x.example>"),
        ],
    )
    assert await _sorted(client, b"(SUBJECT) UTF-8 ALL") == [4, 5, 2, 1, 3]
    assert await _sorted(client, b"(DISPLAYFROM) UTF-8 ALL") == [4, 3, 5, 2, 1]
    assert await _sorted(client, b"(FROM) UTF-8 ALL") == [4, 2, 3, 5, 1]
    assert await _sorted(client, b"(REVERSE SUBJECT) UTF-8 SUBJECT s", b"UID SORT") == [4, 5]
    assert await client.ok(b"SORT (SUBJECT) UTF-8 SUBJECT nothing") == [b"* SORT"]
    assert (await client.ask(b"SORT (SUBJECT) KOI8-R ALL"))[-1].startswith(b"NO [BADCHARSET (UTF-8)]")


@pytest.mark.covers("RFC 7162 §3.1.6")
async def test_modseq(office: Any) -> None:
    client = await _filled(office, [_mail("b"), _mail("a")])
    (line,) = await client.ok(b"SORT (SUBJECT) UTF-8 MODSEQ 1")
    assert re.fullmatch(rb"\* SORT 2 1 \(MODSEQ \d+\)", line)


@pytest.mark.covers("RFC 5267 §3.1", "RFC 5267 §3.2", "RFC 5267 §3.3", "RFC 5267 §4.4")
async def test_return_options_go_by_the_order(office: Any) -> None:
    client = await _filled(office, [_mail(subject) for subject in "dabce"])

    async def answer(options: bytes) -> bytes:
        (line,) = await client.ok(b"UID SORT RETURN (%b) (SUBJECT) UTF-8 ALL" % options)
        return re.sub(rb'^\* ESEARCH \(TAG "a\d+"\) UID ', b"", line)

    assert await answer(b"") == b"ALL 2:4,1,5"
    assert await answer(b"MIN MAX COUNT") == b"MIN 2 MAX 5 COUNT 5"
    assert await answer(b"PARTIAL 3:4") == b"PARTIAL (3:4 4,1)"
    assert await answer(b"PARTIAL -2:-1 COUNT") == b"PARTIAL (-2:-1 1,5) COUNT 5"
    assert await answer(b"PARTIAL 6:9") == b"PARTIAL (6:9 NIL)"


@pytest.mark.covers("decisions:C1", "mail-server:D7")
async def test_no_bytes_of_messages_are_read(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await _filled(office, _random_mails(1, 5))

    async def refuse(*_: object) -> None:
        raise AssertionError("bytes were read")

    monkeypatch.setattr(office.blobs, "get_many", refuse)
    for criteria in _CRITERIA:
        assert len(await _sorted(client, b"(%b) UTF-8 ALL" % criteria)) == 5


async def test_messages_that_went_untold_are_left_out(office: Any) -> None:
    client, other = await _filled(office, [_mail(subject) for subject in "cab"]), await office.client()
    await other.ok(rb"UID STORE 2 +FLAGS.SILENT (\Deleted)")
    await other.ok(b"EXPUNGE")
    assert await _sorted(client, b"(SUBJECT) UTF-8 ALL") == [3, 1]
    assert await client.ok(b"NOOP") == [b"* 2 EXPUNGE"]


class _Follower:
    """A client that keeps a sorted list by what it is told (RFC 5267 §4.3.3, §4.3.4)."""

    def __init__(self, results: list[int]) -> None:
        self.results = results

    def read(self, lines: list[bytes], tag: bytes) -> None:
        for line in lines:
            if not line.startswith(b'* ESEARCH (TAG "%b")' % tag):
                continue
            for word, pairs in re.findall(rb"(ADDTO|REMOVEFROM) \(([^)]*)\)", line):
                words = pairs.split()
                for position, names in zip(words[::2], words[1::2], strict=True):
                    self._apply(word, int(position), _expanded(names))

    def _apply(self, word: bytes, position: int, names: list[int]) -> None:
        at = position - 1
        if word == b"ADDTO":
            assert 0 <= at <= len(self.results)
            self.results[at:at] = names
        else:
            assert self.results[at : at + len(names)] == names
            del self.results[at : at + len(names)]


def _expanded(names: bytes) -> list[int]:
    ends = (part.partition(b":") for part in names.split(b","))
    return [name for low, colon, high in ends for name in range(int(low), int(high if colon else low) + 1)]


@pytest.mark.covers("RFC 5267 §4.3.2", "RFC 5267 §4.3.3", "RFC 5267 §4.3.4")
@pytest.mark.parametrize("criteria", [b"SUBJECT", b"REVERSE SUBJECT SIZE", b"REVERSE DATE"])
async def test_a_context_keeps_its_order(office: Any, criteria: bytes) -> None:
    rng = random.Random(7)
    client = await _filled(office, _random_mails(5, 12))
    other = await office.client()
    (line,) = await client.ok(b"UID SORT RETURN (UPDATE ALL) (%b) UTF-8 UNFLAGGED" % criteria)
    tag = re.search(rb'TAG "(\w+)"', line)[1]  # type: ignore[index]  # it is there
    follower = _Follower(_expanded(line.rpartition(b" ")[2]))
    uids = list(range(1, 13))
    for extra in _random_mails(6, 12):
        change = rng.choice((b"flag", b"unflag", b"expunge", b"append"))
        some = b",".join(b"%d" % uid for uid in rng.sample(uids, 3))
        if change == b"append":
            await other.append(extra)
            uids.append(uids[-1] + 1)
        elif change == b"expunge":
            await other.ok(rb"UID STORE %b +FLAGS.SILENT (\Deleted)" % some)
            await other.ok(b"UID EXPUNGE " + some)
        else:
            await other.ok(rb"UID STORE %b %bFLAGS.SILENT (\Flagged)" % (some, b"+" if change == b"flag" else b"-"))
        follower.read(await client.ok(rng.choice((b"NOOP", b"FETCH 1 FLAGS"))), tag)
    follower.read(await client.ok(b"NOOP"), tag)
    assert follower.results == await _sorted(client, b"(%b) UTF-8 UNFLAGGED" % criteria, b"UID SORT")
