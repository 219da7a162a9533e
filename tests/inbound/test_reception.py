"""Mail to recipients that no mailbox has goes through their doors, mail to mailboxes to the receiver."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.accounts.models import Mode
from postroom.directory.models import Forward, IdentityKind, Recipient, Refusal
from postroom.directory.rules import UNKNOWN
from postroom.inbound.judging import NOT_JUDGED, Judgement
from postroom.inbound.reception import Addressee, Passage, Reception, Taking
from postroom.smtp.envelope import Envelope
from postroom.smtp.replies import LOCAL_ERROR, Reply, queued
from tests.mailbox.letters import raw_mail

from .fakes import To, envelope

BUSY = Reply(451, "4.3.0", "Later")
CLAIM = b"Authentication-Results: mx.agents.example; dmarc=pass\r\n"
GONE = Reply(550, "5.1.1", "No such user here")


def recipient(address: str) -> Recipient:
    return Recipient(1, 1, "ten_1", "idn_1", address, address, "", IdentityKind.AGENT, (address,))


class FakeDoor:
    """Has all addresses that begin with its name; `refusal` is given to mail that says Hello."""

    def __init__(
        self,
        name: str,
        reply: Reply = queued("msg_door"),  # noqa: B008 - a constant
        refusal: Reply | None = None,
    ) -> None:
        self.name, self.reply, self.refusal = name, reply, refusal
        self.taken: list[tuple[str, ...]] = []
        self.asked: list[str] = []
        self.given: list[bytes] = []

    async def resolve(self, address: str, mail_from: str) -> Passage | Refusal | None:
        self.asked.append(mail_from)
        if not address.startswith(self.name):
            return None
        return UNKNOWN if mail_from == "nobody@example.com" else Passage(self, address, None)

    async def prepare(self, envelope: Envelope[Passage], raw: bytes, judgement: Judgement) -> Taking | Reply:
        self.given.append(raw)
        if self.refusal is not None and b"Hello" in raw:
            return self.refusal

        async def take() -> Reply:
            self.taken.append(tuple(address for address, _ in envelope.recipients))
            return self.reply

        return take


class FakeReceiver:
    def __init__(self, reply: Reply = queued("msg_box")) -> None:  # noqa: B008 - a constant
        self.reply = reply
        self.taken: list[tuple[str, ...]] = []

    async def judge(self, envelope: Envelope[Any], raw: bytes) -> Judgement:
        return NOT_JUDGED

    async def purge(self, raw: bytes) -> bytes:
        return raw.removeprefix(CLAIM)

    async def receive(
        self,
        envelope: Envelope[Any],
        raw: bytes,
        *,
        loopback: int | None = None,
        judgement: Judgement | None = None,
    ) -> Reply:
        self.taken.append(tuple(address for address, _ in envelope.recipients))
        return self.reply

    async def receive_each(
        self, envelope: Envelope[Any], raw: bytes, *, judgement: Judgement | None = None
    ) -> tuple[Reply, ...]:
        self.taken.append(tuple(address for address, _ in envelope.recipients))
        return tuple(GONE if address.startswith("gone") else self.reply for address, _ in envelope.recipients)


async def find(address: str) -> Recipient | Refusal:
    return recipient(address) if not address.startswith("foreign") else UNKNOWN


def reception(receiver: FakeReceiver, *doors: FakeDoor) -> Reception:
    return Reception(find, receiver, doors)  # type: ignore[arg-type] # the fake does what is asked of the receiver


async def addressed(to: Reception, *addresses: str) -> Envelope[Addressee]:
    found: list[tuple[str, Addressee]] = []
    for address in addresses:
        answer = await to.resolve(address, "anna@example.com")
        assert not isinstance(answer, Refusal)
        found.append((address, answer))
    return envelope(To("x@agents.example"))._replace(recipients=tuple(found))  # type: ignore[return-value,arg-type] # other recipients


async def test_the_doors_are_asked_in_order_and_then_the_directory() -> None:
    one, two = FakeDoor("a"), FakeDoor("ab")
    here = reception(FakeReceiver(), one, two)
    first = await here.resolve("ab@agents.example", "anna@example.com")
    assert isinstance(first, Passage)
    assert first.door is one
    assert await here.resolve("ab@agents.example", "nobody@example.com") is UNKNOWN
    assert await here.resolve("box@agents.example", "") == recipient("box@agents.example")
    assert await here.resolve("foreign@agents.example", "") is UNKNOWN
    assert two.asked == ["", ""]


async def test_each_recipient_goes_its_way() -> None:
    receiver, one, two = FakeReceiver(), FakeDoor("one"), FakeDoor("two")
    here = reception(receiver, one, two)
    names = ("one@a.example", "box@a.example", "two@a.example", "one2@a.example", "cab@a.example")
    assert await here.receive(await addressed(here, *names), raw_mail()) == queued("msg_box")
    assert receiver.taken == [("box@a.example", "cab@a.example")]
    assert one.taken == [("one@a.example", "one2@a.example")]
    assert two.taken == [("two@a.example",)]
    assert await here.receive(await addressed(here, "one@a.example"), raw_mail()) == queued("msg_door")
    assert len(receiver.taken) == 1


async def test_a_door_that_is_busy_makes_everybody_try_again_and_a_receiver_that_is_goes_before_the_doors() -> None:
    receiver, busy, late = FakeReceiver(), FakeDoor("busy", BUSY), FakeDoor("late")
    here = reception(receiver, busy, late)
    message = await addressed(here, "late@a.example", "busy@a.example", "box@a.example")
    assert await here.receive(message, raw_mail()) == BUSY
    assert receiver.taken == [("box@a.example",)]
    assert late.taken == [("late@a.example",)]
    refusing = FakeReceiver(LOCAL_ERROR)
    here = reception(refusing, busy)
    assert await here.receive(await addressed(here, "busy@a.example", "box@a.example"), raw_mail()) == LOCAL_ERROR
    assert busy.taken == [("busy@a.example",)]


@pytest.mark.covers("mail-server:A1", "RFC 2033 §4.2")
@pytest.mark.covers("edge:D9", "RFC 8601 §5")
async def test_nobody_elsewhere_is_given_results_that_a_stranger_wrote_in_our_name() -> None:
    door = FakeDoor("fwd")
    here = reception(FakeReceiver(), door)
    letter = raw_mail()
    await here.receive(await addressed(here, "fwd@agents.example", "box@agents.example"), CLAIM + letter)
    await here.receive_each(await addressed(here, "fwd@agents.example"), CLAIM + letter)
    assert door.given == [letter, letter]


async def test_over_lmtp_every_recipient_has_an_answer_of_its_own() -> None:
    receiver, good, busy = FakeReceiver(), FakeDoor("good"), FakeDoor("busy", BUSY)
    here = reception(receiver, good, busy)
    names = ("busy@a.example", "gone@a.example", "good@a.example", "box@a.example", "good2@a.example")
    answers = await here.receive_each(await addressed(here, *names), raw_mail())
    assert answers == (BUSY, GONE, queued("msg_door"), queued("msg_box"), queued("msg_door"))
    assert good.taken == [("good@a.example",), ("good2@a.example",)]


@pytest.mark.covers("mail-server:A6", "edge:N13")
async def test_mail_that_came_by_too_often_passes_no_door() -> None:
    receiver, door = FakeReceiver(), FakeDoor("door")
    here = reception(receiver, door)
    looping = b"X-Postroom-Hop: 11\r\n" + raw_mail()
    reply = await here.receive(await addressed(here, "door@a.example"), looping)
    assert (reply.code, reply.enhanced) == (554, "5.4.6")
    each = await here.receive_each(await addressed(here, "door@a.example", "box@a.example"), looping)
    assert [answer.code for answer in each] == [554, 250]
    assert door.taken == []


@pytest.mark.covers("mail-server:A6")
async def test_what_an_alias_leads_elsewhere_goes_on() -> None:
    door = FakeDoor("door")
    way = Forward(1, "ten_1", Mode.LIVE, "out@a.example", "out@a.example", "x@example.com")

    async def leads(address: str) -> Recipient | Forward | Refusal:
        return way

    async def onward(forward: Forward, mail_from: str) -> Passage | Refusal:
        assert forward is way
        return Passage(door, forward.written, None) if mail_from else UNKNOWN

    here = Reception(leads, FakeReceiver(), onward=onward)  # type: ignore[arg-type] # does what is asked of it
    assert await here.resolve("out@a.example", "anna@example.com") == Passage(door, "out@a.example", None)
    assert await here.resolve("out@a.example", "") is UNKNOWN
    nobody = Reception(leads, FakeReceiver())  # type: ignore[arg-type] # as above
    refusal = await nobody.resolve("out@a.example", "anna@example.com")
    assert isinstance(refusal, Refusal)
    assert refusal.is_temporary


@pytest.mark.covers("mail-server:A6")
@pytest.mark.parametrize("refusal", [GONE, BUSY])
async def test_what_a_door_refuses_is_refused_before_anything_is_stored(refusal: Reply) -> None:
    receiver, door, picky = FakeReceiver(), FakeDoor("door"), FakeDoor("picky", refusal=refusal)
    here = reception(receiver, door, picky)
    message = await addressed(here, "box@a.example", "door@a.example", "picky@a.example")
    assert await here.receive(message, raw_mail()) == refusal
    assert (receiver.taken, door.taken) == ([], [])
    each = await here.receive_each(message, raw_mail())
    assert each == (queued("msg_box"), queued("msg_door"), refusal)
    assert await here.receive(message, raw_mail(subject="x", body="x")) == queued("msg_box")
    assert (door.taken[-1], picky.taken) == (("door@a.example",), [("picky@a.example",)])
