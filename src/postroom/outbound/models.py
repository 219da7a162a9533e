"""What other departments see of mail that leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from postroom.mailbox.linked_files import LinkedFile
from postroom.mailbox.models import Content, Filing, MailboxRef, RefInfo


class Operation(StrEnum):
    """How a message came to be sent."""

    SEND = "send"
    REPLY = "reply"
    REPLY_ALL = "reply_all"
    FORWARD = "forward"
    SUBMISSION = "submission"
    BOUNCE = "bounce"
    """A notice of ours to a sender elsewhere."""
    REDIRECT = "redirect"
    """Received mail passed on by a rule or an alias."""


class SendKind(StrEnum):
    TRANSACTIONAL = "transactional"
    MARKETING = "marketing"
    AUTO_REPLY = "auto_reply"


class Status(StrEnum):
    """Of a delivery; of a message the roll-up of its deliveries (outbound §20)."""

    QUEUED = "queued"
    SUPPRESSED = "suppressed"
    SUBMITTED = "submitted"
    DELIVERED = "delivered"
    DEFERRED = "deferred"
    BOUNCED = "bounced"
    COMPLAINED = "complained"
    REJECTED = "rejected"
    FAILED = "failed"
    UNCERTAIN = "uncertain"
    CANCELED = "canceled"

    @property
    def is_waiting(self) -> bool:
        """Whether something is still to be sent."""
        return self in (Status.QUEUED, Status.DEFERRED)


class QueueState(StrEnum):
    """What operators and mail clients see of a delivery (C2)."""

    PENDING = "pending"
    DELIVERING = "delivering"
    RETRY = "retry"
    HELD = "held"
    PARKED = "parked"
    """Given up, since attempt after attempt ended with its worker."""
    DELIVERED = "delivered"
    FAILED = "failed"
    UNCERTAIN = "uncertain"
    CANCELLED = "cancelled"
    SUPPRESSED = "suppressed"

    @classmethod
    def of(cls, status: Status) -> QueueState:
        """Of a delivery that nobody works on, holds or has given up."""
        return _STATES[status]


_STATES: Final[Mapping[Status, QueueState]] = {
    Status.QUEUED: QueueState.PENDING,
    Status.DEFERRED: QueueState.RETRY,
    Status.SUBMITTED: QueueState.DELIVERED,
    Status.DELIVERED: QueueState.DELIVERED,
    Status.COMPLAINED: QueueState.DELIVERED,
    Status.BOUNCED: QueueState.FAILED,
    Status.FAILED: QueueState.FAILED,
    Status.REJECTED: QueueState.FAILED,
    Status.UNCERTAIN: QueueState.UNCERTAIN,
    Status.CANCELED: QueueState.CANCELLED,
    Status.SUPPRESSED: QueueState.SUPPRESSED,
}


class RecipientField(StrEnum):
    """Where the sender named a recipient; ENVELOPE: nowhere that shows, only in RCPT."""

    TO = "to"
    CC = "cc"
    BCC = "bcc"
    ENVELOPE = "envelope"


class RouteKind(StrEnum):
    """How a delivery leaves (outbound §9)."""

    LOCAL = "local"
    """To a mailbox of this deployment, without a network hop."""
    DIRECT = "direct"
    SMARTHOST = "smarthost"
    SIMULATOR = "simulator"


@dataclass(frozen=True, slots=True)
class NewRecipient:
    """One recipient of a message to be accepted. `address` is lower case with the domain as A-label; only where it is
    an author's, whom something goes back to, the local part is as they wrote it.

    `suppressed` is the policy's word for why nothing is sent there. The DSN parameters are those of RFC 3461.
    """

    address: str
    field: RecipientField
    route: RouteKind
    suppressed: str | None = None
    dsn_notify: tuple[str, ...] | None = None
    dsn_orcpt: str | None = None

    @property
    def domain(self) -> str:
        return self.address.rpartition("@")[2]


@dataclass(frozen=True, slots=True)
class Accepted:
    """What acceptance stored: the message is durable, its deliveries are due."""

    message_id: str
    thread_id: str
    status: Status
    uid: int
    uid_validity: int
    at: datetime
    attachment_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The key under which the acceptance is recorded in its transaction, what the request was (`ledger.fingerprint`),
    who holds the key, and what a replay answers: JSON, without texts."""

    key_hash: str
    fingerprint: str
    holder: UUID
    answer: Callable[[Accepted], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to be accepted: everything decided, nothing stored. Ids are fixed beforehand (B15).

    `sent_copy` is what the Sent folder shows (of people with Bcc); `wire` what goes out, signed. `content` describes
    the sent copy. `lock_thread`: the thread's send lock is taken over by this message until it leaves (C4). `filing`:
    its thread, where its headers are not to decide. `refs`: what its text refers to, for the answer (`gleaned`).
    """

    id: str
    mailbox: MailboxRef
    tenant_id: str
    identity_id: str
    operation: Operation
    kind: SendKind
    envelope_from: str
    recipients: tuple[NewRecipient, ...]
    sent_copy: bytes = field(repr=False)
    wire: bytes = field(repr=False)
    content: Content = field(repr=False)
    eight_bit: bool = False
    smtputf8: bool = False
    person_id: int | None = None
    reply_to: str | None = None
    hop: int = 1
    metadata: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    dsn_ret: str | None = None
    dsn_envid: str | None = None
    lock_thread: bool = False
    filing: Filing | None = None
    ledger: LedgerEntry | None = None
    linked: tuple[LinkedFile, ...] = ()
    refs: tuple[RefInfo, ...] = ()
    """Files that it links to and does not hold."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One recipient of an accepted message, as the interfaces show it."""

    id: int
    recipient: str
    field: RecipientField
    route: RouteKind
    status: Status
    reason: str | None
    smtp_code: int | None
    enhanced_code: str | None
    smtp_response: str | None
    bounce_type: str | None
    remote_mx: str | None
    tries: int
    next_attempt_at: datetime | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class OutboundState:
    """What a sent message has beside its row: for the Message resource."""

    operation: Operation
    kind: SendKind
    reply_to: str | None
    provider: str | None
    provider_message_id: str | None
    metadata: Mapping[str, Any]
    deliveries: tuple[Delivery, ...]
    sent_from: str | None = None
    """The address that it left from, where it was written from another (FR-DOM-6)."""
