"""What the listeners ask, and give mail to: mailboxes, and recipients that no mailbox has (mail-server A6, A8).

Mail to such a recipient is a *passage*: a door takes it and does with it what it is for: passes it on, or reads a
bounce. First every door says whether it refuses the message, so that nobody is told of a failure that was none. Then
mailboxes store it, for they know what they have stored already, so that a sender who has to try again because a door
could not take it makes no second copy; then the doors take it, which, too, must bear being given the same again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from postroom.directory.models import Forward, Recipient, Refusal
from postroom.directory.rules import UNAVAILABLE
from postroom.inbound.judging import Judgement
from postroom.inbound.receive import Receiver, loops
from postroom.smtp import replies
from postroom.smtp.envelope import Envelope
from postroom.smtp.replies import Reply

Find = Callable[[str], Awaitable[Recipient | Forward | Refusal]]
"""The directory's answer for an address."""


class Door(Protocol):
    """Takes mail to recipients of one kind."""

    async def resolve(self, address: str, mail_from: str, /) -> Passage | Recipient | Refusal | None:
        """None for an address that is not of this kind. `mail_from` is empty for the null sender."""
        ...

    async def prepare(self, envelope: Envelope[Passage], raw: bytes, judgement: Judgement, /) -> Taking | Reply:
        """Decide on the message for these passages, all of this door, before anything is stored for anybody: what takes
        it, or the refusal, which is everybody's. `judgement`: what is known of who sent it."""
        ...


Taking = Callable[[], Awaitable[Reply]]
"""Takes what a door has prepared: a 250 once it is durable. What it refuses now is refused for the time being only:
mailboxes may have the message already."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A recipient whose mail `door` takes; `what` is the door's own. `base` is the address without its detail."""

    door: Door
    base: str
    what: Any


Addressee = Recipient | Passage

Onward = Callable[[Forward, str], Awaitable[Passage | Refusal]]
"""The passage for mail from a sender that an alias leads elsewhere."""


async def _nobody(forward: Forward, mail_from: str) -> Refusal:
    return UNAVAILABLE


class Reception:
    """The directory and the receiver, with the doors in front. One per process.

    `onward` takes what aliases lead elsewhere; without it such mail is put off.
    """

    def __init__(self, find: Find, receiver: Receiver, doors: Sequence[Door] = (), *, onward: Onward = _nobody) -> None:
        self._find = find
        self._receiver = receiver
        self._doors = tuple(doors)
        self._onward = onward

    async def resolve(self, address: str, mail_from: str) -> Addressee | Refusal:
        """Who takes mail to `address` (all lower case, domain in A-labels, detail still in it) from this sender."""
        for door in self._doors:
            answer = await door.resolve(address, mail_from)
            if answer is not None:
                return answer
        found = await self._find(address)
        return await self._onward(found, mail_from) if isinstance(found, Forward) else found

    async def receive(self, envelope: Envelope[Addressee], raw: bytes, *, loopback: int | None = None) -> Reply:
        """Take the message for all its recipients; the reply is given once it is durable for all. `loopback` as in
        `Receiver.receive`: only what hands over our own mail says so."""
        boxes, passages = _sorted(envelope)
        if not passages:
            return await self._receiver.receive(_mailboxes(envelope), raw, loopback=loopback)
        if loops(raw):
            return replies.MAIL_LOOP
        judgement = await self._receiver.judge(envelope, raw)
        raw = await self._receiver.purge(raw)  # what goes on elsewhere speaks in our name, too
        takings: list[Taking] = []
        for door, mine in passages.items():
            prepared = await door.prepare(_for(envelope, mine), raw, judgement)
            if isinstance(prepared, Reply):
                return prepared
            takings.append(prepared)
        mailboxes = _for(envelope, boxes)
        reply = await self._receiver.receive(mailboxes, raw, loopback=loopback, judgement=judgement) if boxes else None
        if reply is not None and reply.is_failure:
            return reply
        for take in takings:
            taken = await take()
            if taken.is_failure:
                return taken
            reply = reply or taken
        assert reply is not None, "a message has recipients"
        return reply

    async def receive_each(self, envelope: Envelope[Addressee], raw: bytes) -> tuple[Reply, ...]:
        """Take the message over LMTP: a reply for each recipient (RFC 2033 §4.2)."""
        boxes, passages = _sorted(envelope)
        answers: dict[int, Reply] = {}
        judgement = await self._receiver.judge(envelope, raw)
        raw = await self._receiver.purge(raw)
        if boxes:
            mine_first = _for(envelope, boxes)
            stored = await self._receiver.receive_each(mine_first, raw, judgement=judgement)
            answers |= zip(boxes, stored, strict=True)
        looping = bool(passages) and loops(raw)
        for door, mine in passages.items():
            for at in mine:
                prepared = replies.MAIL_LOOP if looping else await door.prepare(_for(envelope, [at]), raw, judgement)
                answers[at] = prepared if isinstance(prepared, Reply) else await prepared()
        return tuple(answers[at] for at in range(len(envelope.recipients)))


def _sorted(envelope: Envelope[Addressee]) -> tuple[list[int], dict[Door, list[int]]]:
    """Positions of the recipients: of mailboxes, and of passages by their door."""
    boxes: list[int] = []
    passages: dict[Door, list[int]] = {}
    for at, (_, target) in enumerate(envelope.recipients):
        if isinstance(target, Passage):
            passages.setdefault(target.door, []).append(at)
        else:
            boxes.append(at)
    return boxes, passages


def _mailboxes(envelope: Envelope[Addressee]) -> Envelope[Recipient]:
    return cast(Envelope[Recipient], envelope)


def _for(envelope: Envelope[Addressee], positions: Sequence[int]) -> Envelope[Any]:
    recipients = tuple(envelope.recipients[at] for at in positions)
    declared = envelope.recipient_parameters
    return envelope._replace(
        recipients=recipients, recipient_parameters=tuple(declared[at] for at in positions) if declared else ()
    )


__all__: Final = ["Addressee", "Door", "Onward", "Passage", "Reception", "Taking"]
