"""What an SMTP session knows about a message besides its bytes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

from postroom.smtp.params import NO_MAIL_PARAMETERS, MailParameters, RcptParameters
from postroom.smtp.replies import Reply

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A decision against a recipient, with the reply that tells the client."""

    reply: Reply


class SessionInfo(NamedTuple):
    """The session a recipient is resolved for. `helo` is a claim, never proof; `mail_from` is empty for `<>`.

    `account` is what `accept_credentials` was given, `None` without AUTH.
    """

    connection_id: str
    peer_ip: str
    helo: str
    tls: bool
    mail_from: str
    account: object = None


class Envelope(NamedTuple, Generic[R]):
    """The envelope of a complete message. A named tuple, since one is made for every message.

    `recipients` pairs each accepted address, as given (domain in A-labels), with what resolving it returned, in the
    order of the RCPT commands; one mailbox may occur more than once. `mail_from` is empty for the null sender,
    `peer_name` is `None` unless a confirmed host name of the peer is known, `declared_size` is SIZE= of MAIL in octets.
    `parameters` is everything that MAIL declared and `recipient_parameters` what RCPT did, in the order of `recipients`
    (empty where DSN is not offered). `account` is what `accept_credentials` was given, `None` without AUTH;
    `lmtp` says that it came by LMTP.
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
    parameters: MailParameters = NO_MAIL_PARAMETERS
    recipient_parameters: tuple[RcptParameters, ...] = ()
    account: object = None
    lmtp: bool = False
