"""Mail that goes on, from a stranger's SMTP to the next host's, and what comes back of it."""

from __future__ import annotations

import asyncio
import email
import email.policy
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import dkim  # type: ignore[import-untyped]  # it has no annotations
import pytest

from postroom.accounts import Mode, NewTenant, Tenants
from postroom.accounts.signing_keys import Purpose
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database, DatabaseUnavailable
from postroom.mail.dsn import parse_dsn
from postroom.mailbox.models import MailboxRef
from postroom.outbound.models import Operation, RouteKind
from postroom.outbound.rules import Action
from postroom.servers.submission import Door
from postroom.smtp.envelope import SessionInfo
from tests.mailauth.dkim_tools import published, rsa_key
from tests.mailbox.letters import check_mailbox
from tests.outbound.crossroads import BINARY, OWN, Crossroads, crossroads
from tests.outbound.fake_mx import FakeMx, Received
from tests.outbound.submitting import DOMAIN, mail

ANN = "Ann.Lee@example.com"
TARGET = "bob@target.example"
OUT = f"out@{OWN}"
LETTER = (
    b"Received: from a.example by b.example; Tue, 01 Jan 2030 00:00:00 +0000\r\n"
    b"From: Ann <Ann.Lee@example.com>\r\nTo: out@acme.example\r\nSubject: A  word\r\n"
    b"Date: Tue, 01 Jan 2030 00:00:00 +0000\r\nMessage-ID: <1@example.com>\r\n\r\n"
    b"Dear Bob,\r\n\r\n.dots \r\n..\r\n\r\n"
)


@pytest.fixture
async def here(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[Crossroads]:
    async with crossroads(db, clock, ids, tmp_path) as made:
        yield made
        async with db.acquire() as conn:
            for row in await conn.fetch("SELECT tenant_id, id FROM mailboxes"):
                await check_mailbox(conn, MailboxRef(row["tenant_id"], row["id"]))


def below_our_lines(received: Received) -> bytes:
    """What follows our own trace line and hop."""
    found = re.match(rb"Received: from [^\r]*\r\n(?:\t[^\r]*\r\n)+X-Postroom-Hop: \d+\r\n", received.data)
    assert found is not None, received.data
    return received.data[found.end() :]


def signed(raw: bytes) -> bytes:
    """By the author's domain, with dkimpy."""
    field: bytes = dkim.sign(raw, b"rsa", b"example.com", rsa_key().to_pem())
    return field + raw


def txt(name: bytes, timeout: float = 0) -> bytes:
    found = published().records[name.decode().rstrip(".")]
    assert not isinstance(found, Exception)
    return found[0]


# -- on


@pytest.mark.covers("mail-server:A6", "decisions:C4", "RFC 5321 §4.4")
async def test_to_the_next_host(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    raw = signed(LETTER)
    async with FakeMx() as mx:
        here.net.add("target.example", mx)
        answers = await here.send(raw, "Out+tag@ACME.example", sender=ANN)
        assert [code for code, _ in answers.values()] == [250, 250]
        assert mx.messages == []
        await here.work()
        (received,) = mx.delivered
    assert received.recipients == [TARGET]
    local, _, domain = received.sender.rpartition("@")
    assert domain == OWN
    assert re.fullmatch(r"SRS0=[A-Z2-7]{8}[a-z2-7]+=[A-Z2-7]{2}=example\.com=Ann\.Lee", local)
    assert below_our_lines(received) == raw
    assert b"for <out@acme.example>" in received.data[:400]
    assert b"X-Postroom-Hop: 1\r\n" in received.data
    assert b"Return-Path" not in received.data
    assert dkim.DKIM(received.data).verify(dnsfunc=txt)
    assert "ORCPT=rfc822;out@acme.example" in received.parameters
    (row,) = await here.relayed()
    assert (row["operation"], row["hop"], row["status"], row["route"]) == ("redirect", 1, "delivered", "direct")
    # Nobody but the operator hears of it.
    assert await here.office.rows("SELECT FROM events") == []
    assert [one.state.value for one in await here.queue().list()] == ["delivered"]
    assert row["public_id"] in answers[""][1]


@pytest.mark.covers("mail-server:A6", "edge:G11")
async def test_a_mailbox_and_two_ways_on_in_one_transaction(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    await here.alias(f"other@{OWN}", "carl@second.example")
    await here.alias(f"same@{OWN}", TARGET)
    await here.alias(f"robot@{OWN}", f"robot@{DOMAIN}")
    async with FakeMx() as one, FakeMx() as two:
        here.net.add("target.example", one)
        here.net.add("second.example", two)
        to = (f"carol@{DOMAIN}", OUT, f"robot@{OWN}", f"other@{OWN}", f"same@{OWN}")
        answers = await here.send(LETTER, *to, sender=ANN)
        assert {code for code, _ in answers.values()} == {250}
        await here.work()
        assert [received.recipients for received in one.delivered] == [[TARGET]]
        assert [received.recipients for received in two.delivered] == [["carl@second.example"]]
        for received in (*one.delivered, *two.delivered):
            assert below_our_lines(received) == LETTER
            # Nobody is named who is not everybody's to know.
            assert b"for <" not in received.data
    assert len({row["message_id"] for row in await here.relayed()}) == 1
    for box in (here.office.carol, here.office.robot):
        (stored,) = await here.inbox(box.id)
        assert stored.endswith(LETTER)
        assert b"X-Postroom-Hop" not in stored
    (row,) = await here.office.rows("SELECT * FROM messages WHERE mailbox_id = $1", here.office.robot.id)
    assert row["delivered_to"] == f"robot@{DOMAIN}"


@pytest.mark.covers("mail-server:A6")
async def test_the_null_sender_stays_null(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    async with FakeMx(replies={"RCPT": ["550 5.1.1 No"]}) as mx:
        here.net.add("target.example", mx)
        assert (await here.send(LETTER, OUT, sender=""))[""][0] == 250
        await here.work()
        assert "MAIL FROM:<>" in " ".join(mx.commands)
    (row,) = await here.relayed()
    assert (row["envelope_from"], row["status"]) == ("", "bounced")
    assert await here.office.rows("SELECT FROM bounce_tasks") == []


@pytest.mark.covers("mail-server:A6", "RFC 3463 §3.2")
async def test_senders_of_any_length(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    # What a mailing list before us made of its sender is longer than 64 octets already.
    long = f"SRS0=abcd=ef={'d' * 60}.example={'l' * 60}@list.example"
    async with FakeMx() as mx:
        here.net.add("target.example", mx)
        assert (await here.send(LETTER, OUT, sender=long))[""][0] == 250
        await here.work()
        (received,) = mx.delivered
        assert received.sender.startswith("SRS1=")
        assert len(received.sender) > 140
        answers = await here.send(b"x: y\r\n\r\n", received.sender, sender="")
        assert answers[received.sender][0] == 250
        too_long = f"{'l' * 64}@{'.'.join(['d' * 60] * 3)}.example"
        assert await here.send(LETTER, OUT, sender=too_long) == {
            OUT: (550, "5.1.7 The sender's address is too long to be passed on")
        }
    async with FakeMx() as mx:
        here.net.add("list.example", mx)
        await here.work()
        assert [received.recipients for received in mx.delivered] == [[long]]


@pytest.mark.covers("mail-server:A6", "edge:N13")
async def test_what_has_come_too_far(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    carol = f"carol@{DOMAIN}"
    async with FakeMx() as mx:
        here.net.add("target.example", mx)
        assert (await here.send(b"X-Postroom-Hop: 8\r\n" + LETTER, OUT, sender=ANN))[""][0] == 250
        await here.work()
        assert mx.delivered[0].data.count(b"X-Postroom-Hop: 9\r\n") == 1
        for hop in (9, 10, 11):
            far = b"X-Postroom-Hop: %d\r\n" % hop + LETTER
            code, text = (await here.send(far, OUT, carol, sender=ANN))[""]
            assert (code, text[:5]) == (554, "5.4.6")
            # The mailbox is not told of while the sender is told that it failed.
            assert await here.inbox(here.office.carol.id) == []
        assert await here.send_lmtp(b"X-Postroom-Hop: 9\r\n" + LETTER, OUT, carol, sender=ANN) == [554, 250]
        await here.work()
        assert len(mx.delivered) == 1


@pytest.mark.covers("mail-server:A6", "decisions:B9")
async def test_what_its_domain_asks_to_reject_is_never_passed_on(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    here.refused_by_policy = True
    code, text = (await here.send(LETTER, OUT, sender=ANN))[""]
    assert (code, text[:5]) == (550, "5.7.1")
    assert await here.relayed() == []


@pytest.mark.covers("mail-server:A6", "decisions:B9")
async def test_nobody_is_told_that_what_a_mailbox_has_is_rejected(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    here.refused_by_policy = True
    carol = f"carol@{DOMAIN}"
    assert (await here.send(LETTER, carol, OUT, sender=ANN))[""][0] == 550
    assert await here.inbox(here.office.carol.id) == []
    assert await here.send_lmtp(LETTER, carol, OUT, sender=ANN) == [250, 550]
    assert len(await here.inbox(here.office.carol.id)) == 1


BINARY_PART = (
    b"Content-Type: application/octet-stream\r\nContent-Transfer-Encoding: binary\r\n\r\n" + b"\x00\xff\n\r" * 50
)
SIGNED_BINARY = (
    b"MIME-Version: 1.0\r\nSubject: Signed\r\nContent-Type: multipart/signed; boundary=b; micalg=x;"
    b" protocol=x/y\r\n\r\n--b\r\n" + BINARY_PART + b"\r\n--b\r\nContent-Type: x/y\r\n\r\nx\r\n--b--\r\n"
)


@pytest.mark.covers("mail-server:A6", "RFC 3030 §3", "RFC 3463 §3.7")
async def test_binary_mail_is_converted_or_refused_before_anybody_has_it(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    carol, options = f"carol@{DOMAIN}", [BINARY]
    code, text = (await here.send(SIGNED_BINARY, carol, OUT, sender=ANN, options=options))[""]
    assert (code, text[:5]) == (554, "5.6.3")
    assert await here.inbox(here.office.carol.id) == []
    # Where each has an answer of its own, the mailbox takes it; and alone, too.
    assert await here.send_lmtp(SIGNED_BINARY, carol, OUT, sender=ANN, options=options) == [250, 554]
    dave = f"dave@{DOMAIN}"
    assert (await here.send(SIGNED_BINARY, dave, sender=ANN, options=options))[""][0] == 250
    plain = b"MIME-Version: 1.0\r\nSubject: Plain\r\n" + BINARY_PART
    assert (await here.send(plain, carol, OUT, sender=ANN, options=options))[""][0] == 250
    async with FakeMx() as mx:
        here.net.add("target.example", mx)
        await here.work()
        (received,) = mx.delivered
    assert received.data.isascii()
    assert email.message_from_bytes(received.data).get_payload(decode=True) == b"\x00\xff\n\r" * 50
    kept = await here.inbox(here.office.carol.id)
    assert [raw.endswith(sent) for raw, sent in zip(kept, (SIGNED_BINARY, plain), strict=True)] == [True, True]


@pytest.mark.covers("FR-TEN-2")
async def test_nothing_of_a_test_tenant_leaves(here: Crossroads) -> None:
    tenants = Tenants(here.db, here.office.ids, here.office.clock)
    lab = await tenants.create(NewTenant(slug="lab", name="Lab", mode=Mode.TEST))
    await here.alias(f"out.lab@{DOMAIN}", TARGET, lab)
    answers = await here.send(LETTER, f"out.lab@{DOMAIN}", sender=ANN)
    assert answers == {f"out.lab@{DOMAIN}": (550, "5.7.1 Mail to this address cannot be passed on")}


@pytest.mark.covers("RFC 3030 §3", "RFC 6531 §3.4")
async def test_what_the_next_host_cannot_take(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    eight = LETTER.replace(b"Dear Bob", "Grüße".encode()).replace(
        b"Subject", b"MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n"
        b"Content-Transfer-Encoding: 8bit\r\nSubject"
    )  # fmt: skip
    async with FakeMx() as mx:
        here.net.add("target.example", mx)
        for options in (["BODY=8BITMIME"], ["BODY=8BITMIME", "SMTPUTF8"]):
            raw = eight + b"".join(word.encode() for word in options)
            assert (await here.send(raw, OUT, sender=ANN, options=options))[""][0] == 250
        utf8 = eight.replace(b"A  word", "Ünwort".encode())
        assert (await here.send(utf8, OUT, sender=ANN, options=["BODY=8BITMIME", "SMTPUTF8"]))[""][0] == 250
        await here.work()
        asked = [("SMTPUTF8" in one.parameters, "BODY=8BITMIME" in one.parameters) for one in mx.delivered]
        # Only for what needs it.
        assert sorted(asked) == [(False, True), (False, True), (True, True)]
        assert below_our_lines(mx.delivered[0]).endswith(b"8BITMIME\r\n")


# -- once


@pytest.mark.covers("mail-server:A6", "edge:B14")
async def test_who_tries_again_makes_no_second_copy(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    await here.alias(f"other@{OWN}", "carl@target.example")
    carol = f"carol@{DOMAIN}"
    here.failures = [(True, PostroomError("unavailable"))]
    assert (await here.send(LETTER, OUT, carol, sender=ANN))[""][0] == 451
    here.failures = [(True, DatabaseUnavailable("away"))]
    assert (await here.send(LETTER, OUT, carol, sender=ANN))[""][0] == 451
    # It is stored, and the sender is not told: killed in between, or the connection was.
    here.failures = [(False, PostroomError("unavailable"))]
    assert (await here.send(LETTER, OUT, carol, sender=ANN))[""][0] == 451
    # Days later, under another rewritten sender, and with one more recipient.
    here.office.clock.advance(3 * 86_400)
    assert (await here.send(LETTER, OUT, carol, f"other@{OWN}", sender=ANN))[""][0] == 250
    assert (await here.send(LETTER, OUT, sender=ANN))[""][0] == 250
    assert sorted(row["recipient"] for row in await here.relayed()) == [TARGET, "carl@target.example"]
    assert len(await here.inbox(here.office.carol.id)) == 1
    # Other octets, or another author, are another message.
    assert (await here.send(LETTER + b"\r\n", OUT, sender=ANN))[""][0] == 250
    assert (await here.send(LETTER, OUT, sender="carl@example.com"))[""][0] == 250
    assert len(await here.relayed()) == 4


@pytest.mark.covers("mail-server:A6")
async def test_the_same_message_twice_at_once(here: Crossroads, monkeypatch: pytest.MonkeyPatch) -> None:
    await here.alias(OUT, TARGET)
    answers = await asyncio.gather(*(here.send(LETTER, OUT, sender=ANN) for _ in range(6)))
    assert [answer[""][0] for answer in answers] == [250] * 6
    assert len(await here.relayed()) == 1
    # Somebody who looked before the first one's commit, and stores after it.
    look = here.forwarding._missing
    late = [True]

    async def looked_before(tenant_id: int, digests: Sequence[bytes]) -> list[bytes]:
        return list(digests) if late and late.pop() else await look(tenant_id, digests)

    monkeypatch.setattr(here.forwarding, "_missing", looked_before)
    assert (await here.send(LETTER, OUT, sender=ANN))[""][0] == 250
    assert late == []
    (row,) = await here.relayed()
    # Nothing is left of those that came too late.
    stored = await here.office.blobs.list("")
    assert sorted(stored) == sorted([row["blob_key"], row["wire_key"]])


@pytest.mark.covers("mail-server:A6")
async def test_a_tenant_has_one_relay_however_many_need_it(here: Crossroads) -> None:
    for number in range(6):
        await here.alias(f"out{number}@{OWN}", f"a{number}@target.example")
    sent = (here.send(LETTER, f"out{number}@{OWN}", sender=ANN) for number in range(6))
    assert [answer[""][0] for answer in await asyncio.gather(*sent)] == [250] * 6
    (row,) = await here.office.rows("SELECT id, is_system, kind FROM identities WHERE kind = 'relay'")
    assert {one["mailbox_id"] for one in await here.relayed()} == {row["id"]}


# -- over the other doors


@pytest.mark.covers("RFC 2033 §4.2", "mail-server:A1")
async def test_over_lmtp(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    await here.alias(f"other@{OWN}", "carl@target.example")
    here.failures = [(True, PostroomError("unavailable"))]
    to = (OUT, f"carol@{DOMAIN}", f"other@{OWN}")
    assert await here.send_lmtp(LETTER, *to, sender=ANN) == [451, 250, 250]
    assert await here.send_lmtp(LETTER, OUT, sender=ANN) == [250]
    assert sorted(row["recipient"] for row in await here.relayed()) == [TARGET, "carl@target.example"]


@pytest.mark.covers("edge:G11", "mail-server:A3")
async def test_our_own_people_write_to_an_alias(here: Crossroads) -> None:
    """Submitted, it is a local delivery; that goes through the same door as mail from outside."""
    office = here.office
    await here.alias(OUT, TARGET)
    await here.alias(f"team@{OWN}", f"dave@{DOMAIN}")
    door = Door(office.sign_in, here.reception.resolve, office.submission(route=_local))
    account = await office.account()
    session = SessionInfo("c0ffee", "192.0.2.7", "laptop.example", True, f"carol@{DOMAIN}", account)
    envelope = await office.envelope(f"dave@{DOMAIN}")
    found = [(address, await door.resolve(address, session)) for address in (OUT, f"team@{OWN}")]
    raw = mail(to=f"{OUT}, team@{OWN}", text="For everybody.")
    reply = await door.receive(envelope._replace(recipients=tuple(found), account=account), raw)  # type: ignore[arg-type] # none is a refusal
    assert reply.code == 250
    async with FakeMx() as mx:
        here.net.add("target.example", mx)
        await here.work()
        (received,) = mx.delivered
        assert received.sender.endswith(f"={DOMAIN}=carol@{OWN}")
        # Sent at hop 1, passed on at hop 2.
        assert re.findall(rb"X-Postroom-Hop: (\d)", received.data) == [b"2", b"1"]
        assert len(await here.inbox(office.dave.id)) == 1
    statuses = await office.rows("SELECT status FROM messages WHERE mailbox_id = $1", office.carol.id)
    assert [row["status"] for row in statuses] == ["delivered"]
    # An alias is nobody's to send from, and a rewritten sender no address to write to.
    assert (await office.submission().check_sender(OUT, account)) is not None
    refusal = await door.resolve(received.sender.lower(), session)
    assert (refusal.reply.code, refusal.reply.enhanced) == (550, "5.7.1")  # type: ignore[union-attr] # it is one


async def _local(address: str, sender_domain: str) -> RouteKind:
    return RouteKind.LOCAL


# -- back


async def _rewritten(here: Crossroads, sender: str = ANN) -> str:
    """The rewritten sender of a message that was passed on."""
    await here.alias(OUT, TARGET)
    async with FakeMx() as mx:
        here.net.add("target.example", mx)
        await here.send(LETTER, OUT, sender=sender)
        await here.work()
        (received,) = mx.delivered
    return received.sender


BOUNCE = b"From: <>\r\nTo: x@y.example\r\nSubject: Undelivered\r\nAuto-Submitted: auto-replied\r\n\r\nNo.\r\n"


@pytest.mark.covers("mail-server:A6", "mail-server:C7")
@pytest.mark.parametrize("spelling", [str, str.lower, str.upper])
async def test_a_bounce_finds_the_author(here: Crossroads, spelling: type[str]) -> None:
    sender = spelling(await _rewritten(here))
    async with FakeMx() as mx:
        here.net.add("example.com", mx)
        assert (await here.send(BOUNCE, sender, sender=""))[""][0] == 250
        assert (await here.send(BOUNCE, sender, sender=""))[""][0] == 250
        await here.work()
        (received,) = mx.delivered
    assert (received.sender, received.recipients) == ("", [f"{spelling('Ann.Lee')}@example.com"])
    assert below_our_lines(received) == BOUNCE
    assert b"X-Postroom-Hop: 1\r\n" in received.data
    assert len(await here.relayed()) == 2


@pytest.mark.covers("mail-server:A6", "edge:G11")
async def test_a_bounce_to_an_author_who_is_ours(here: Crossroads) -> None:
    sender = await _rewritten(here, f"Carol@{DOMAIN}")
    assert (await here.send(BOUNCE, sender, sender=""))[""][0] == 250
    await here.work()
    (stored,) = await here.inbox(here.office.carol.id)
    assert stored.startswith(b"Return-Path: <>\r\n")
    assert stored.endswith(BOUNCE)


@pytest.mark.covers("mail-server:A6")
async def test_what_no_bounce_is_or_is_none_of_ours_goes_nowhere(here: Crossroads) -> None:
    sender = await _rewritten(here)
    local, _, domain = sender.rpartition("@")

    async def answer(address: str, mail_from: str = "") -> str:
        code, text = (await here.send(BOUNCE, address, sender=mail_from))[address]
        return f"{code} {text[:5]}"

    assert await answer(sender, "ann@example.com") == "550 5.7.1"
    assert await answer(sender[:6] + ("B" if sender[6] == "A" else "A") + sender[7:]) == "550 5.1.1"
    assert await answer(f"SRS0=x@{domain}") == "550 5.1.1"
    assert await answer(f"SRS1=x=y==z@{domain}") == "550 5.1.1"
    assert await answer(f"{local}@elsewhere.example") == "550 5.7.1"
    assert await answer(f"srs0@{domain}") == "550 5.1.1"
    assert await answer(f"srs0-x@{domain}") == "550 5.1.1"
    # No other domain of ours takes it, nor does a tenant that is suspended, or gone.
    assert await answer(f"{local}@{DOMAIN}") == "550 5.1.1"
    assert await answer(f"{local}@{domain.upper()}") == "250 2.1.5"
    for status, expected in (("suspended", "450 4.2.1"), ("erasing", "550 5.1.1"), ("active", "250 2.1.5")):
        await here.office.execute("UPDATE tenants SET status = $1", status)
        assert await answer(sender) == expected
    # The key is honoured for a while after another took its place; the address for three weeks.
    await here.keys.rotate(Purpose.FORWARD)
    assert await answer(sender) == "250 2.1.5"
    here.office.clock.advance(23 * 86_400)
    assert await answer(sender) == "550 5.1.1"


@pytest.mark.covers("mail-server:A6")
async def test_a_name_that_begins_so_is_a_mailbox_like_any_other(here: Crossroads) -> None:
    made = await here.office.new_identity("srs0-fan")
    assert (await here.send(LETTER, f"srs0-fan@{DOMAIN}", sender=ANN))[""][0] == 250
    assert len(await here.inbox(made.id)) == 1


@pytest.mark.covers("mail-server:C7", "edge:N19", "RFC 3464 §2.1")
async def test_of_what_fails_the_author_is_told_through_the_same_door_and_nobody_of_that(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    async with (
        FakeMx(replies={"RCPT": ["550 5.1.1 No such user"]}) as there,
        FakeMx(replies={"RCPT": ["550 5.1.1 Gone, too"]}) as home,
    ):
        here.net.add("target.example", there)
        here.net.add("example.com", home)
        await here.send(LETTER, OUT, sender=ANN)
        await here.office.execute("UPDATE messages SET verdict = 'pass'")
        await here.work()
        assert [one for one in home.commands if one.startswith("RCPT")] == ["RCPT TO:<Ann.Lee@example.com>"]
    rows = await here.relayed()
    assert [(row["operation"], row["route"], row["status"]) for row in rows] == [
        ("redirect", "direct", "bounced"),
        ("bounce", "local", "delivered"),
        ("redirect", "direct", "bounced"),
    ]
    assert [row["envelope_from"] != "" for row in rows] == [True, False, False]
    assert rows[1]["recipient"] == rows[0]["envelope_from"]
    assert len(await here.office.rows("SELECT FROM bounce_tasks")) == 1
    raw = await here.office.blobs.get(rows[2]["blob_key"])
    notice = email.message_from_bytes(raw, policy=email.policy.default)
    report = parse_dsn(raw)
    assert report is not None
    assert [(one.final_recipient, one.status) for one in report.recipients] == [(TARGET, "5.1.1")]
    assert b"Original-Recipient: rfc822; out@acme.example" in raw
    assert notice["From"].addresses[0].username == "MAILER-DAEMON"
    assert b"Subject: A  word" in raw


@pytest.mark.covers("edge:N19")
async def test_an_author_who_may_be_somebody_elses_invention_is_told_nothing(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    async with FakeMx(replies={"RCPT": ["550 5.1.1 No such user"]}) as there:
        here.net.add("target.example", there)
        await here.send(LETTER, OUT, sender=ANN)
        await here.work()
    assert [row["operation"] for row in await here.relayed()] == ["redirect"]


@pytest.mark.covers("mail-server:C2")
async def test_an_operator_tries_again_what_failed(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    raw = LETTER.replace(b"Subject", b"Bcc: x@example.com\r\nSubject")
    async with FakeMx(replies={"RCPT": ["550 5.1.1 No such user", "250 Ok"]}) as there:
        here.net.add("target.example", there)
        await here.send(raw, OUT, sender=ANN)
        await here.work()
        (row,) = await here.relayed()
        assert (row["status"], row["wire_key"]) == ("bounced", None)
        (done,) = await here.queue().act(Action.RETRY, [row["id"]])
        assert done.refused is None
        await here.work()
        (received,) = there.delivered
        assert below_our_lines(received) == raw
    assert Operation(row["operation"]) is Operation.REDIRECT


@pytest.mark.covers("mail-server:A6", "FR-TEN-3")
async def test_what_was_taken_waits_while_its_tenant_is_suspended(here: Crossroads) -> None:
    await here.alias(OUT, TARGET)
    async with FakeMx() as mx:
        here.net.add("target.example", mx)
        assert (await here.send(LETTER, OUT, sender=ANN))[""][0] == 250
        await here.office.execute("UPDATE tenants SET status = 'suspended', suspended_at = now()")
        await here.work()
        assert mx.delivered == []
        assert [row["status"] for row in await here.relayed()] == ["queued"]
        await here.office.execute("UPDATE tenants SET status = 'active', suspended_at = NULL")
        here.office.clock.advance(3600)
        await here.work()
        assert [one.recipients for one in mx.delivered] == [[TARGET]]
