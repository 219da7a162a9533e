"""Bounces that come to an address: what is about nothing that was sent is no mail, what is, counts if it is vouched
for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.db.errors import DatabaseUnavailable
from postroom.inbound.judging import Judgement
from postroom.inbound.parsing import ParserBusy, ParsingFailed
from postroom.mail.dsn import Action, DeliveryReport, Evidence, ReportedRecipient
from postroom.outbound import reports
from postroom.outbound.models import RouteKind
from postroom.outbound.return_paths import own_sender
from tests.inbound.fakes import FakeJudge
from tests.outbound.fake_mx import FakeMx, Received
from tests.outbound.late_bounces import BOUNCED, DELIVERED, RECEIVED, SENT, statuses
from tests.outbound.returning import Place, QuickParser, Returning, like_exim, recipient, report, returning

ANNA = "anna@example.com"


@asynccontextmanager
async def home(
    db: Database, clock: ManualClock, ids: IdGenerator, directory: Path, *, kind: str = "person", verdict: str = "pass"
) -> AsyncIterator[tuple[Returning, Place]]:
    """A deployment without return paths, and a process that finds that verdict on everything."""
    async with returning(db, clock, ids, directory, kind=kind) as post:
        post.room.return_path = own_sender
        author = "mx.example.com" if verdict == "pass" else None
        yield (
            post,
            await post.place(judge=FakeJudge(Judgement(verdict, None, author=author)), relay="out.relay.example"),
        )


@pytest.fixture
async def person(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path
) -> AsyncIterator[tuple[Returning, Place]]:
    async with home(db, clock, ids, tmp_path) as made:
        yield made


async def sent(post: Returning, *to: str) -> tuple[str, Received]:
    async with FakeMx() as mx:
        message = await post.send(mx, *to)
        (received,) = mx.delivered
    assert received.sender == post.box.address
    return message, received


async def folder_of(post: Returning, row: dict[str, Any]) -> str:
    async with post.room.db.acquire() as conn:
        found = await conn.fetchval(
            "SELECT f.special_use FROM placements p JOIN folders f ON f.id = p.folder_id WHERE p.message_id = $1",
            row["id"],
        )
    return str(found)


def about_something_else(received: Received) -> Received:
    """What comes back when somebody else wrote in our name."""
    return replace(received, data=received.data.replace(b"Message-ID: <", b"Message-ID: <forged-"))


@pytest.mark.covers("edge:D4", "FR-DLV-5")
@pytest.mark.parametrize("verdict", ["pass", "none"])
async def test_an_agent_gets_no_bounce_of_what_it_never_sent(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path, verdict: str
) -> None:
    async with home(db, clock, ids, tmp_path, kind="agent", verdict=verdict) as (post, place):
        message, received = await sent(post)
        raw = report(about_something_else(received), recipient("stranger@example.net"))
        for _ in range(2):
            assert (await post.bounce(post.box.address, raw, place=place))[0] == 250
        assert await post.inbox() == []
        assert place.bounces.backscatter == 2
        assert await post.kinds() == [SENT, DELIVERED]
        assert (await statuses(post, message))[0] == "delivered"


@pytest.mark.covers("edge:D4")
async def test_a_person_finds_it_in_junk(person: tuple[Returning, Place]) -> None:
    """They may have written it with another server, so it is not lost; nobody is told of it."""
    post, place = person
    _, received = await sent(post)
    raw = report(about_something_else(received), recipient("stranger@example.net"))
    assert (await post.bounce(post.box.address, raw, place=place))[0] == 250
    ((row, _),) = await post.inbox()
    assert (row["kind"], await folder_of(post, row)) == ("dsn", "junk")
    assert await post.kinds() == [SENT, DELIVERED]


@pytest.mark.covers("edge:D4")
@pytest.mark.parametrize("kind", ["person", "agent"])
@pytest.mark.parametrize("case", ["known recipient", "names no message", "sender", "no bounce", "own queue"])
async def test_what_may_be_for_somebody_is_mail(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path, kind: str, case: str
) -> None:
    async with home(db, clock, ids, tmp_path, kind=kind) as (post, place):
        _, received = await sent(post)
        other = about_something_else(received)
        stranger = recipient("stranger@example.net")
        raw, sender = report(other, stranger), ""
        if case == "known recipient":
            raw = report(other, recipient("Anna@EXAMPLE.com"))
        elif case == "names no message":
            raw = report(replace(received, data=b"Subject: x\r\n\r\n"), stranger)
        elif case == "sender":
            sender = "colleague@example.org"
        elif case == "no bounce":
            raw = b"From: anna@example.com\r\nSubject: Away\r\nMessage-ID: <9@example.com>\r\n\r\nSee you\r\n"
        if case == "own queue":
            found = place.bounces.sort
            place.bounces.sort = lambda envelope, *more: found(envelope._replace(peer_ip=""), *more)  # type: ignore[method-assign] # as a local hand-over has it
        assert (await post.bounce(post.box.address, raw, place=place, sender=sender))[0] == 250
        ((row, _),) = await post.inbox()
        assert await folder_of(post, row) == "inbox"
        assert await post.kinds() == [SENT, DELIVERED, RECEIVED]
        assert place.bounces.backscatter == 0


@pytest.mark.covers("edge:D4")
async def test_a_copy_in_the_mailbox_shows_that_it_was_theirs(person: tuple[Returning, Place]) -> None:
    """A client that sends with another server leaves a copy in Sent."""
    post, place = person
    _, received = await sent(post)
    await post.execute("DELETE FROM outbound_messages")
    await post.execute("UPDATE messages SET source = 'append', status = 'submitted'")
    raw = report(received, recipient("stranger@example.net"))
    assert (await post.bounce(post.box.address, raw, place=place))[0] == 250
    ((row, _),) = await post.inbox()
    assert await folder_of(post, row) == "inbox"


@pytest.mark.covers("edge:N19", "edge:D11", "FR-DLV-5")
@pytest.mark.parametrize("kind", ["person", "agent"])
async def test_a_vouched_report_counts(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path, kind: str
) -> None:
    async with home(db, clock, ids, tmp_path, kind=kind) as (post, place):
        message, received = await sent(post, ANNA, "bob@example.com")
        raw = report(received, recipient(ANNA, status="5.1.1"))
        for _ in range(2):  # the same again changes nothing
            assert (await post.bounce(post.box.address, raw, place=place))[0] == 250
        assert await statuses(post, message) == ("bounced", {ANNA: "bounced", "bob@example.com": "delivered"})
        told = [RECEIVED] if kind == "person" else []
        assert await post.kinds() == [SENT, DELIVERED, DELIVERED, BOUNCED, *told]
        ((row, _),) = await post.inbox()
        async with post.room.db.acquire() as conn:
            assert await conn.fetchval("SELECT count(DISTINCT thread_seq) FROM messages") == 1
        assert (row["kind"], "dsn_untrusted" in row["facts"]) == ("dsn", False)
        assert place.bounces.untrusted == {}


@pytest.mark.covers("edge:D11", "edge:N19")
@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("verdict", "verdict"),
        ("author", "domain"),
        ("neighbour", "from"),
        ("returned", "from"),
        ("names nobody", "domain"),
        ("text", "verdict"),
    ],
)
async def test_what_nobody_vouches_for_changes_nothing(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path, case: str, reason: str
) -> None:
    verdict = "none" if case in ("verdict", "text") else "pass"
    async with home(db, clock, ids, tmp_path, verdict=verdict) as (post, place):
        message, received = await sent(post)
        raw = report(received, recipient(ANNA))
        if case == "author":
            raw = raw.replace(b"MAILER-DAEMON@mx.example.com", b"MAILER-DAEMON@mx.evil.example")
            place = await post.place(judge=FakeJudge(Judgement("pass", None, author="mx.evil.example")))
        elif case == "neighbour":
            # Anybody who has a mailbox where a recipient has hers.
            raw = raw.replace(b"MAILER-DAEMON@mx.example.com", b"mallory@mx.example.com")
        elif case == "returned":
            raw = report(
                replace(received, data=received.data.replace(b"From: Box <", b"From: Box <x-")), recipient(ANNA)
            )
        elif case == "names nobody":
            raw = report(received, recipient("carl@example.com"))
        elif case == "text":
            raw = like_exim(received, ANNA)
        assert (await post.bounce(post.box.address, raw, place=place))[0] == 250
        assert (await statuses(post, message))[0] == "delivered"
        ((row, _),) = await post.inbox()
        assert ("dsn_untrusted" in row["facts"], await folder_of(post, row)) == (True, "inbox")
        assert place.bounces.untrusted == {reason: 1}


@pytest.mark.covers("edge:J1")
async def test_while_nobody_can_say_it_is_put_off(
    person: tuple[Returning, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    post, place = person
    message, received = await sent(post)
    raw = report(received, recipient(ANNA))

    async def away(*_: object, **__: object) -> Any:
        raise DatabaseUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(place.bounces, "_sorted", away)
        assert (await post.bounce(post.box.address, raw, place=place))[0] == 451
    with monkeypatch.context() as patched:
        patched.setattr(place.bounces._applying, "apply", away)
        assert (await post.bounce(post.box.address, raw, place=place))[0] == 451
    assert await post.inbox() == []
    assert (await post.bounce(post.box.address, raw, place=place))[0] == 250
    assert (await statuses(post, message))[0] == "bounced"


@pytest.mark.parametrize(("trouble", "code"), [(ParserBusy, 451), (ParsingFailed, 250)])
async def test_what_cannot_be_read_is_kept(
    person: tuple[Returning, Place], monkeypatch: pytest.MonkeyPatch, trouble: type[Exception], code: int
) -> None:
    post, place = person
    message, received = await sent(post)

    class Broken(QuickParser):
        async def run(self, *_: Any, **__: Any) -> Any:
            raise trouble

    monkeypatch.setattr(place.bounces, "_parser", Broken())
    assert (await post.bounce(post.box.address, report(received, recipient(ANNA)), place=place))[0] == code
    assert len(await post.inbox()) == (code == 250)
    assert (await statuses(post, message))[0] == "delivered"


@pytest.mark.covers("edge:N19")
async def test_the_relay_speaks_for_what_it_was_given(person: tuple[Returning, Place]) -> None:
    post, _ = person
    message, received = await sent(post)
    await post.execute("UPDATE deliveries SET route = 'smarthost', domain = ''")
    raw = report(received, recipient(ANNA)).replace(b"mx.example.com>", b"mail.relay.example>")
    judge = FakeJudge(Judgement("pass", None, author="mail.relay.example"))
    nobodys = await post.place(judge=judge)
    assert (await post.bounce(post.box.address, raw, place=nobodys))[0] == 250
    assert (await statuses(post, message))[0] == "delivered"
    ours = await post.place(judge=judge, relay="out.relay.example")
    again = raw.replace(b"It did not work out", b"It still does not")
    assert (await post.bounce(post.box.address, again, place=ours))[0] == 250
    assert (await statuses(post, message))[0] == "bounced"
    assert RouteKind.SMARTHOST.value == "smarthost"


# -- the rule ---------------------------------------------------------------------------------------------------------

LABELS = st.sampled_from(
    ["example.com", "mx.example.com", "example.net", "relay.example", "out.relay.example", "com", ""]
)
USERS = st.sampled_from(["a", "b"])


@pytest.mark.covers("edge:D11")
@given(
    st.dictionaries(st.integers(1, 4), st.tuples(USERS, LABELS.filter(bool)), max_size=4),
    st.lists(st.tuples(USERS, LABELS), max_size=5),
    st.sets(st.integers(1, 4)),
    LABELS,
    LABELS,
)
def test_nobody_speaks_for_other_organisations(
    sent_to: dict[int, tuple[str, str]], named: list[tuple[str, str]], relayed: set[int], author: str, relay: str
) -> None:
    def organisation(domain: str) -> str:
        return ".".join(domain.split(".")[-2:])

    recipients = {key: f"{user}@{domain}" for key, (user, domain) in sent_to.items()}
    entries = tuple(
        ReportedRecipient(
            final_recipient=f"{user}@{domain}", action=Action.FAILED, status="5.1.1", diagnostic_code=None
        )
        for user, domain in named
    )
    told = DeliveryReport(None, None, None, None, entries, Evidence.STANDARD)
    for key, entry in reports.vouched(told, recipients, relayed, author, relay).items():
        assert entry.final_recipient == recipients[key]
        domain = sent_to[key][1]
        assert author
        assert organisation(domain) == organisation(author) or (
            key in relayed and relay and organisation(relay) == organisation(author)
        )
