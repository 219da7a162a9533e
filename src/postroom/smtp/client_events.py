"""What a `ClientSession` is asked to send and what it tells its driver."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from postroom.smtp.address import Address
from postroom.smtp.evidence import Evidence, Stage
from postroom.smtp.params import NO_RCPT_PARAMETERS, Body, RcptParameters, Return
from postroom.smtp.reply_reader import ServerReply

_SIZE_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How a session behaves. `hostname` is the name that we give.

    `pipelining` and `chunking` are used only where the server offers them; chunks need both.
    """

    hostname: str
    lmtp: bool = False
    pipelining: bool = True
    chunking: bool = False


@dataclass(frozen=True, slots=True)
class Extensions:
    """What a server offers: keyword in upper case to its words (RFC 5321 §4.1.1.1); empty after HELO."""

    offered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __contains__(self, keyword: str) -> bool:
        return keyword in self.offered

    @property
    def size(self) -> int | None:
        """The largest message in octets, `None` when the server names none (RFC 1870 §4: 0 is none)."""
        match self.offered.get("SIZE"):
            case (digits, *_) if digits.isascii() and digits.isdigit() and len(digits) <= _SIZE_DIGITS:
                return int(digits) or None
            case _:
                return None

    @property
    def auth_mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms, in upper case (RFC 4954 §3)."""
        return tuple(word.upper() for word in self.offered.get("AUTH", ()))

    @property
    def max_recipients(self) -> int | None:
        """RCPTMAX of LIMITS (RFC 9422), `None` when there is none."""
        for word in self.offered.get("LIMITS", ()):
            name, _, number = word.partition("=")
            if name.upper() == "RCPTMAX" and number.isascii() and number.isdigit() and 0 < len(number) <= 6:
                return int(number) or None
        return None


def read_extensions(lines: Iterable[str]) -> Extensions:
    """The lines of an EHLO reply after the first. `AUTH=LOGIN`, as old servers write it, counts as AUTH."""
    offered: dict[str, tuple[str, ...]] = {}
    for line in lines:
        words = line.split()
        if not words:
            continue
        keyword, equals, word = words[0].partition("=")
        values = (*((word,) if equals and word else ()), *words[1:])
        keyword = keyword.upper()
        offered[keyword] = offered.get(keyword, ()) + values
    return Extensions(offered)


@dataclass(frozen=True, slots=True)
class RecipientRequest:
    """One RCPT; the DSN parameters are sent where the server knows them."""

    address: Address
    parameters: RcptParameters = NO_RCPT_PARAMETERS


@dataclass(frozen=True, slots=True)
class MailRequest:
    """One transaction. `sender` is `None` for `<>`; `size` in octets as RFC 1870 §3 counts, or `None` if not known.

    `smtputf8`: the header needs it (an address that does is seen without). `body` says what octets the message holds.
    """

    sender: Address | None
    recipients: tuple[RecipientRequest, ...]
    size: int | None = None
    body: Body = Body.SEVEN_BIT
    smtputf8: bool = False
    requiretls: bool = False
    ret: Return | None = None
    envid: str | None = None


@dataclass(frozen=True, slots=True)
class RecipientResult:
    """What became of one recipient, for `outcome.classify`."""

    address: Address
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class GreetingReceived:
    """The server greeted us; `hello` comes next."""

    reply: ServerReply


@dataclass(frozen=True, slots=True)
class HelloDone:
    """EHLO, LHLO or HELO was taken; `extensions` says what the server offers."""

    reply: ServerReply
    extensions: Extensions


@dataclass(frozen=True, slots=True)
class TlsReady:
    """Do the handshake now, then call `tls_started`, then `hello` again."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The server took our credentials."""

    reply: ServerReply


@dataclass(frozen=True, slots=True)
class CommandRefused:
    """GREETING, HELLO, TLS, AUTH or RESET was answered by a refusal. The session is still there unless it ends next."""

    stage: Stage
    reply: ServerReply


@dataclass(frozen=True, slots=True)
class BodyWanted:
    """The server waits for the message, for `recipients`. Now is the time to record that data was started."""

    recipients: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """Every recipient's fate is known, as far as it can be; in the order of the request."""

    results: tuple[RecipientResult, ...]


@dataclass(frozen=True, slots=True)
class ResetDone:
    """RSET was taken."""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """Close the connection. `evidence` is `None` after QUIT, else why. Comes once and last."""

    evidence: Evidence | None


ClientEvent = (
    GreetingReceived
    | HelloDone
    | TlsReady
    | Authenticated
    | CommandRefused
    | BodyWanted
    | TransactionEnded
    | ResetDone
    | SessionEnded
)
