"""What `ServerSession.next_event` tells its driver.

What comes with every message is a named tuple: one is made in a third of the time that a frozen dataclass takes.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple

from postroom.sasl import Proof
from postroom.smtp.address import Address
from postroom.smtp.params import NO_RCPT_PARAMETERS, MailParameters, RcptParameters
from postroom.smtp.sasl import Credentials


@dataclass(frozen=True, slots=True)
class CredentialsOffered:
    """AUTH is complete on the client's side. Answer with `accept_credentials` or `reject_credentials`."""

    credentials: Credentials


@dataclass(frozen=True, slots=True)
class ProofOffered:
    """AUTH has come to a proof that the client has the password. Answer with `accept_proof` or `reject_credentials`."""

    proof: Proof


@dataclass(frozen=True, slots=True)
class SenderProposed:
    """MAIL named a sender, `None` for `<>`. Answer with `accept_sender` or `reject_sender`.

    Comes in an authenticated session, or in every one when the configuration says so.
    """

    sender: Address | None
    parameters: MailParameters


class RecipientProposed(NamedTuple):
    """RCPT named an address. Answer with `accept_recipient` or `reject_recipient`; input waits until then."""

    address: Address
    parameters: RcptParameters = NO_RCPT_PARAMETERS


class MessageReceived(NamedTuple):
    """A message is complete. Answer with `finish_message` or, over LMTP, `finish_recipients`; input waits until then.

    `data` is the message as sent, dot-stuffing undone, nothing else changed; out of chunks it may hold a CR or LF of
    its own (RFC 3030 §3). `recipients` are the accepted addresses with the values given to `accept_recipient`, and
    `recipient_parameters` what RCPT declared for each, in the same order; empty where DSN is not offered.
    """

    sender: Address | None
    parameters: MailParameters
    recipients: tuple[tuple[Address, object], ...]
    data: bytes
    recipient_parameters: tuple[RcptParameters, ...] = ()


class Signal(enum.Enum):
    """Events without content."""

    TLS_REQUESTED = enum.auto()
    """STARTTLS. Answer with `start_tls` (then send the output and do the handshake) or `refuse_tls`."""

    UNPRODUCTIVE = enum.auto()
    """A command that moved no mail was answered (refused, NOOP, RSET …). For the driver's limits; needs no answer."""

    CLOSED = enum.auto()
    """The session is over: send the output, then close. Comes once and last."""


Event = CredentialsOffered | ProofOffered | SenderProposed | RecipientProposed | MessageReceived | Signal
