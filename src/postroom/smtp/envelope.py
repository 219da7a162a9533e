"""What an SMTP session knows about a message besides its bytes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from postroom.smtp.replies import Reply

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A decision against a recipient, with the reply that tells the client."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The session a recipient is resolved for. `helo` is a claim, never proof; `mail_from` is empty for `<>`."""

    connection_id: str
    peer_ip: str
    helo: str
    tls: bool
    mail_from: str


@dataclass(frozen=True, slots=True)
class Envelope(Generic[R]):
    """The envelope of a complete message.

    `recipients` pairs each accepted address, as given (domain in A-labels), with what resolving it returned, in the
    order of the RCPT commands; one mailbox may occur more than once. `mail_from` is empty for the null sender,
    `peer_name` is `None` unless a confirmed host name of the peer is known, `declared_size` is SIZE= of MAIL in octets.
    """

    connection_id: str
    peer_ip: str
    peer_name: str | None
    helo: str
    esmtp: bool
    tls: bool
    mail_from: str
    recipients: tuple[tuple[str, R], ...]
    smtputf8: bool
    body_8bit: bool
    declared_size: int | None
    received_at: datetime
