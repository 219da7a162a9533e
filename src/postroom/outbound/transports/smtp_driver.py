"""A parcel over an SMTP connection: the envelope, what the peer cannot take, transactions of bounded size (C5, N20)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from postroom.base import log as base_log
from postroom.blobs.store import BlobMissing, StorageError
from postroom.mail.compose.downgrade import DowngradeError
from postroom.outbound.claiming import Claimed, Letter
from postroom.outbound.outcomes import Report
from postroom.outbound.transports.base import Parcel, local_trouble, unknown
from postroom.outbound.transports.link import Content, Link
from postroom.smtp.address import Address, AddressSyntaxError, parse_path
from postroom.smtp.client_events import BodyWanted, MailRequest, RecipientRequest
from postroom.smtp.evidence import Evidence, Fault, Stage
from postroom.smtp.outcome import BounceType, DeliveryStatus, Outcome, Reason, Verdict, classify
from postroom.smtp.params import (
    MAX_ENVID,
    MAX_ORCPT,
    NO_RCPT_PARAMETERS,
    Body,
    Notify,
    ParameterError,
    RcptParameters,
    Return,
    encode_xtext,
)
from postroom.smtp.schedule import Route

log = base_log.get("outbound")

MAX_RECIPIENTS: Final = 100
"""Of one transaction: what every server has to take (RFC 5321 §4.5.3.1.8), unless it tells a lower limit (RFC 9422)."""
_SERVICE_CLOSING: Final = 421

Recipient = tuple[Claimed, Address]


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of a parcel on one connection. `evidence` is all that was heard."""

    reports: tuple[Report, ...]
    evidence: tuple[Evidence, ...]


class Gone(Exception):
    """A connection that was kept had been closed by the peer meanwhile; nothing was sent on it."""


async def send(link: Link, parcel: Parcel, route: Route, host: str, deadline: float) -> Sent:
    """Send it to all recipients of the group. Raises Gone only for a connection that had been used before, and what
    `Parcel` raises.
    """
    letter = parcel.group.letter
    recipients, reports = _recipients(parcel.group.recipients, route, host)
    sender = read_address(parcel.return_path) if parcel.return_path else None
    if parcel.return_path and sender is None:
        refusal = _refused(route, "5.1.7", "The return path cannot be used with SMTP")
        return Sent(tuple(Report(one.id, refusal, host) for one in parcel.group.recipients), ())
    content, request = parcel.content, _request(letter, sender)
    if letter.eight_bit and "8BITMIME" not in link.session.extensions:
        try:
            converted = await parcel.seven_bit()
        except DowngradeError:
            missing = classify(Evidence(Stage.MAIL, fault=Fault.EIGHT_BIT_MISSING), route)
            return Sent((*reports, *(Report(one.id, missing, host) for one, _ in recipients)), ())
        content, request = _Whole(converted), replace(request, size=len(converted), body=Body.SEVEN_BIT)
    heard: list[Evidence] = []
    limit = min(MAX_RECIPIENTS, link.session.extensions.max_recipients or MAX_RECIPIENTS)
    for at in range(0, len(recipients), limit):
        some = recipients[at : at + limit]
        relayed = "DSN" not in link.session.extensions
        try:
            results = await _transact(link, parcel, request, some, content, deadline)
        except Exception as error:
            if at == 0:
                raise
            # What was heard of the others stands. Those of this transaction it may have reached only with its end.
            log.warning("transaction_failed", error=type(error).__name__)
            fault = local_trouble()
            if link.session.final_sent:
                fault = unknown(Reason.PROVIDER_OUTCOME_UNKNOWN, "It is not known whether the message was sent")
            reports += (Report(one.id, fault, host) for one, _ in some)
            reports += (Report(one.id, local_trouble(), host) for one, _ in recipients[at + limit :])
            break
        for (one, _), found in zip(some, results, strict=True):
            if isinstance(found, Evidence):
                heard.append(found)
                reports.append(Report(one.id, classify(found, route), host, relayed))
            else:
                reports.append(Report(one.id, found, host))
    return Sent(tuple(reports), tuple(heard))


async def _transact(
    link: Link, parcel: Parcel, request: MailRequest, some: Sequence[Recipient], content: Content, deadline: float
) -> Sequence[Evidence | Outcome]:
    if not link.is_ready:
        # An earlier transaction of this parcel was the connection's last.
        return [Evidence(Stage.MAIL, fault=Fault.CONNECTION_LOST)] * len(some)
    was_kept = link.transactions > 0
    begun = False

    async def begin(wanted: BodyWanted) -> bool:
        nonlocal begun
        begun = True
        taken = set(wanted.recipients)
        return await parcel.begin([one.id for one, address in some if address in taken])

    is_signed = parcel.return_path != parcel.group.letter.envelope_from
    requests = tuple(RecipientRequest(address, _parameters(one, address, named=is_signed)) for one, address in some)
    try:
        results = await link.transact(replace(request, recipients=requests), begin, content, deadline)
    except StorageError as error:
        if link.session.final_sent or isinstance(error, BlobMissing):
            raise
        # Without the end of the message the peer has to forget its beginning (RFC 5321 §4.1.1.4).
        return [local_trouble()] * len(some)
    if results is None:
        return [local_trouble("Somebody else has taken over")] * len(some)
    if was_kept and not begun and all(_is_farewell(result.evidence) for result in results):
        raise Gone
    return [result.evidence for result in results]


def _is_farewell(evidence: Evidence) -> bool:
    """Whether the peer had just given up the connection."""
    closing = evidence.reply is not None and evidence.reply.code == _SERVICE_CLOSING
    return evidence.stage <= Stage.DATA and (closing or evidence.fault is Fault.CONNECTION_LOST)


class _Whole:
    """A message that is in memory, in pieces."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __call__(self) -> AsyncIterator[bytes]:
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self._data), 256 * 1024):
            yield self._data[at : at + 256 * 1024]


# -- the envelope -----------------------------------------------------------------------------------------------------


def read_address(text: str) -> Address | None:
    """A stored address; None for what has no place in an envelope."""
    try:
        path = parse_path(f"<{text}>".encode())
    except (AddressSyntaxError, UnicodeEncodeError):
        return None
    return None if path.parameters else path.address


def _recipients(claimed: Sequence[Claimed], route: Route, host: str) -> tuple[list[Recipient], list[Report]]:
    found: list[Recipient] = []
    reports: list[Report] = []
    for one in claimed:
        address = read_address(one.recipient)
        if address is None:
            reports.append(Report(one.id, _refused(route, "5.1.3", "The address cannot be used with SMTP"), host))
        else:
            found.append((one, address))
    return found, reports


def _refused(route: Route, status: str, text: str) -> Outcome:
    """By ourselves, for good."""
    if route is Route.DIRECT:
        return Outcome(Verdict.PERMANENT, DeliveryStatus.BOUNCED, status, None, text, bounce=BounceType.SOFT)
    reason = Reason.PROVIDER_VALIDATION
    return Outcome(Verdict.PERMANENT, DeliveryStatus.REJECTED, status, None, text, reason=reason)


def _request(letter: Letter, sender: Address | None) -> MailRequest:
    return MailRequest(
        sender,
        (),
        size=letter.wire_size,
        body=Body.EIGHT_BIT if letter.eight_bit else Body.SEVEN_BIT,
        smtputf8=letter.smtputf8,
        ret=Return(letter.dsn_ret) if letter.dsn_ret else None,
        envid=_envid(letter.dsn_envid),
    )


def _envid(text: str | None) -> str | None:
    """ENVID, None where it cannot be passed on."""
    return text if text is not None and _xtext_fits(text, MAX_ENVID) else None


def _parameters(one: Claimed, address: Address, *, named: bool) -> RcptParameters:
    """NOTIFY and ORCPT, as far as they can be passed on (RFC 3461 §5.2.1). With `named` there is an ORCPT in any case,
    by which a report names the recipient that we know, wherever the message went from there."""
    if one.dsn_notify is None and one.dsn_orcpt is None and not named:
        return NO_RCPT_PARAMETERS
    known = {word.value: word for word in Notify}
    notify = frozenset(known[word] for word in one.dsn_notify or () if word in known)
    kind, _, original = (one.dsn_orcpt or "").partition(";")
    if not original and named and address.local.isascii():
        kind, original = "rfc822", str(address)
    fits = kind and original and _xtext_fits(original, MAX_ORCPT - len(kind) - 1)
    return RcptParameters(notify, (kind, original) if fits else None)


def _xtext_fits(text: str, limit: int) -> bool:
    try:
        return len(encode_xtext(text)) <= limit
    except ParameterError:
        return False
