"""What happened to a delivery attempt: how far it got, and the reply or fault that decided. `outcome` judges it."""

import enum
from dataclasses import dataclass

from postroom.smtp.reply_reader import ServerReply


class Stage(enum.IntEnum):
    """How far an attempt got, in order; a stage begins when its command is sent."""

    ROUTE = 0
    """Finding the hosts: DNS."""
    CONNECT = 1
    GREETING = 2
    HELLO = 3
    TLS = 4
    AUTH = 5
    RESET = 6
    """RSET before a further transaction."""
    MAIL = 7
    RCPT = 8
    DATA = 9
    BODY = 10
    """Message data is being sent; without its end the server must drop it (RFC 5321 §4.1.1.4)."""
    FINAL = 11
    """The final dot, or the last chunk, is sent: from here on silence says nothing."""
    QUIT = 12


class Fault(enum.Enum):
    """What can go wrong without a reply that says so."""

    NO_SUCH_DOMAIN = "no_such_domain"
    NULL_MX = "null_mx"
    DNS_FAILURE = "dns_failure"
    """SERVFAIL, a timeout, or no usable address."""
    BLOCKED_TARGET = "blocked_target"
    """The host's address is one that must not be connected to."""
    CONNECT_FAILED = "connect_failed"
    CONNECTION_LOST = "connection_lost"
    TIMEOUT = "timeout"
    """No answer in time, or the deadline of the whole attempt."""
    TLS_FAILED = "tls_failed"
    """The handshake, or the certificate."""
    TLS_MISSING = "tls_missing"
    """TLS is required and not offered."""
    AUTH_MISSING = "auth_missing"
    """We have credentials and the server has no mechanism that we know."""
    BAD_REPLY = "bad_reply"
    """Not a reply, or not one that this place can have."""
    TOO_LARGE = "too_large"
    """The message is over the SIZE that the server told."""
    UTF8_MISSING = "utf8_missing"
    EIGHT_BIT_MISSING = "eight_bit_missing"
    BINARY_MISSING = "binary_missing"
    REQUIRETLS_MISSING = "requiretls_missing"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What decided: a `reply` at `stage`, or a `fault` there, which may have a reply that makes no sense beside it."""

    stage: Stage
    reply: ServerReply | None = None
    fault: Fault | None = None

    def __post_init__(self) -> None:
        if self.reply is None and self.fault is None:
            raise ValueError("evidence is a reply or a fault")
