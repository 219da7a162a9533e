"""To mailboxes of this deployment, without a network hop: what arrives goes through the same door as mail from outside
(edge G11; mail-server C5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from postroom.base.clock import Clock
from postroom.directory.models import Refusal
from postroom.outbound.claiming import Claimed
from postroom.outbound.models import Operation
from postroom.outbound.outcomes import Report
from postroom.outbound.transports.base import Attempt, NewMessageId, NoRoom, Parcel, local_trouble
from postroom.smtp.envelope import Envelope
from postroom.smtp.evidence import Evidence, Stage
from postroom.smtp.outcome import BounceType, DeliveryStatus, Outcome, Verdict, classify
from postroom.smtp.replies import Reply
from postroom.smtp.reply_reader import ServerReply
from postroom.smtp.schedule import Route

FULL: Final = "4.2.2"

T = TypeVar("T")


class Receive(Protocol[T]):
    """Takes a complete message. `loopback` is the test tenant that composed it, if it is one (edge L3)."""

    async def __call__(self, envelope: Envelope[T], raw: bytes, /, *, loopback: int | None) -> Reply: ...


class Local(Generic[T]):
    """`resolve` is who takes mail to an address from a sender, `receive` what takes a complete message: all recipients
    or none. A message that was received already, with the same octets, is not stored twice; so an attempt whose end is
    not known is simply made again, and none is ever uncertain.
    """

    def __init__(
        self,
        resolve: Callable[[str, str], Awaitable[T | Refusal]],
        receive: Receive[T],
        clock: Clock,
        *,
        hostname: str,
        new_id: NewMessageId,
    ) -> None:
        self._resolve = resolve
        self._receive = receive
        self._clock = clock
        self._hostname = hostname
        self._new_id = new_id

    async def attempt(self, parcel: Parcel) -> Attempt | NoRoom:
        """Hand it over. A mailbox that is full bounces it (C5); what else is temporary is tried again."""
        reports: list[Report] = []
        found: list[tuple[Claimed, T]] = []
        for one in parcel.group.recipients:
            answer = await self._resolve(one.recipient.lower(), parcel.group.letter.envelope_from)
            if isinstance(answer, Refusal):
                outcome = self._judge(Reply(answer.code, answer.enhanced, answer.text), Stage.RCPT)
                reports.append(Report(one.id, outcome, self._hostname))
            else:
                found.append((one, answer))
        if found:
            reports += await self._hand_over(parcel, found, await parcel.whole())
        return Attempt(tuple(reports), self._new_id(parcel.group))

    async def _hand_over(self, parcel: Parcel, found: Sequence[tuple[Claimed, T]], raw: bytes) -> list[Report]:
        letter = parcel.group.letter
        # What is passed on was composed by somebody else, whatever tenant passes it on.
        composed = letter.is_test and letter.operation is not Operation.REDIRECT
        loopback = letter.ref.tenant_id if composed else None
        reply = await self._receive(self._envelope(parcel, found), raw, loopback=loopback)
        if reply.is_failure and len(found) > 1:
            # It is one of them who cannot take it; the others are not to suffer for that.
            return [report for one in found for report in await self._hand_over(parcel, [one], raw)]
        outcome = self._judge(reply, Stage.FINAL)
        return [Report(one.id, outcome, self._hostname) for one, _ in found]

    def _envelope(self, parcel: Parcel, found: Sequence[tuple[Claimed, T]]) -> Envelope[T]:
        letter = parcel.group.letter
        return Envelope(
            connection_id=letter.id,
            peer_ip="",
            peer_name=None,
            helo=self._hostname,
            esmtp=True,
            tls=False,
            mail_from=letter.envelope_from,
            recipients=tuple((one.recipient, target) for one, target in found),
            smtputf8=letter.smtputf8,
            body_8bit=letter.eight_bit,
            declared_size=letter.wire_size,
            received_at=self._clock.now(),
        )

    def _judge(self, reply: Reply, stage: Stage) -> Outcome:
        if reply.enhanced == FULL:
            text = "The mailbox is full"
            return Outcome(Verdict.PERMANENT, DeliveryStatus.BOUNCED, "5.2.2", 552, text, bounce=BounceType.SOFT)
        if reply.is_failure and not reply.is_permanent and stage is Stage.FINAL:
            return local_trouble()
        text = f"{reply.enhanced} {reply.text}" if reply.enhanced else reply.text
        return classify(Evidence(stage, ServerReply(reply.code, tuple(text.split("\n")))), Route.DIRECT)

    async def close(self) -> None:
        """There is nothing to let go of."""
