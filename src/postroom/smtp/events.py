"""What `ServerSession.next_event` tells its driver."""

import enum
from dataclasses import dataclass

from postroom.smtp.address import Address
from postroom.smtp.params import MailParameters


@dataclass(frozen=True, slots=True)
class RecipientProposed:
    """RCPT named an address. Answer with `accept_recipient` or `reject_recipient`; input waits until then."""

    address: Address


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message is complete. Answer with `finish_message`; input waits until then.

    `data` is the message as sent, dot-stuffing undone, nothing else changed. `recipients` are the accepted addresses
    with the values given to `accept_recipient`.
    """

    sender: Address | None
    parameters: MailParameters
    recipients: tuple[tuple[Address, object], ...]
    data: bytes


class Signal(enum.Enum):
    """Events without content."""

    TLS_REQUESTED = enum.auto()
    """STARTTLS. Answer with `start_tls` (then send the output and do the handshake) or `refuse_tls`."""

    UNPRODUCTIVE = enum.auto()
    """A command that moved no mail was answered (refused, NOOP, RSET …). For the driver's limits; needs no answer."""

    CLOSED = enum.auto()
    """The session is over: send the output, then close. Comes once and last."""


Event = RecipientProposed | MessageReceived | Signal
