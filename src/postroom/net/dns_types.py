"""What the program asks of the DNS and what it is told: records, typed failures, the `Resolver` protocol.

"There is no such name", "there is the name but no such record", "it is not known at the moment" and "the answer is a
forgery" are four different things to everybody who asks; each is a class here. No text of an error holds a name.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import idna

MAX_NAME_CHARS: Final = 253
"""RFC 1035 §2.3.4: 255 octets on the wire, which are 253 characters with the dots and without the last one."""
MAX_LABEL_CHARS: Final = 63
"""RFC 1035 §2.3.4."""

IpAddress: TypeAlias = IPv4Address | IPv6Address

_DOTS: Final = re.compile("[.\u3002\uff0e\uff61]")
"""RFC 3490 §3.1: the characters that separate labels in names people write."""
_LABELS: Final = re.compile(r"[!-\-/-~]{1,63}(?:\.[!-\-/-~]{1,63})*")
"""Labels of printable ASCII. Names of hosts are narrower; `_dmarc` and what SPF macros make are not host names."""


class Kind(IntEnum):
    """Types of records that are asked for; the values are those of the IANA registry."""

    A = 1
    PTR = 12
    MX = 15
    TXT = 16
    AAAA = 28
    TLSA = 52


class Failure(StrEnum):
    """Why a question has no answer at the moment."""

    TIMEOUT = "timeout"
    NETWORK = "network"
    """No connection, a reset, ICMP unreachable, TLS or HTTP trouble with the name server."""
    SERVER_FAILURE = "server_failure"
    """SERVFAIL, or an RCODE that says as much."""
    REFUSED = "refused"
    LAME = "lame"
    """A referral: the server does not recurse for us."""
    MALFORMED = "malformed"
    """What came is no answer to the question, by RFC 1035 or RFC 2308."""
    TRUNCATED = "truncated"
    """The answer needs TCP, and TCP is switched off."""
    CHAIN = "chain"
    """CNAME records in a circle, or more of them than anybody needs."""
    BOGUS = "bogus"
    """The validating name server says that DNSSEC signatures do not hold (RFC 4035 §5.5, RFC 8914 §4)."""
    OVERLOADED = "overloaded"
    """Too many questions of our own are waiting already."""
    CLOSED = "closed"
    """The resolver is shut down."""


class DnsError(Exception):
    """Base of everything a `Resolver` raises. `name` is what was asked for, `kind` the type of record."""

    def __init__(self, text: str, name: str, kind: Kind) -> None:
        super().__init__(text)
        self.name, self.kind = name, kind


class InvalidName(DnsError):
    """No such name can exist: an empty label, a label over 63 or a name over 253 characters, no valid IDN."""

    def __init__(self, name: str, kind: Kind) -> None:
        super().__init__("not a name of the DNS", name[: MAX_NAME_CHARS + 1], kind)


class NoAnswer(DnsError):
    """There is surely no such record: what SPF calls a void lookup (RFC 7208 §4.6.4).

    `authenticated` as in `Answer`; `canonical` is the end of the chain of CNAMEs.
    """

    def __init__(self, text: str, name: str, kind: Kind, *, canonical: str, authenticated: bool = False) -> None:
        super().__init__(text, name, kind)
        self.canonical, self.authenticated = canonical, authenticated


class NoSuchName(NoAnswer):
    """NXDOMAIN: the name, or the name that it is an alias of, does not exist (RFC 2308 §2.1)."""

    def __init__(self, name: str, kind: Kind, *, canonical: str, authenticated: bool = False) -> None:
        super().__init__("no such name", name, kind, canonical=canonical, authenticated=authenticated)


class NoData(NoAnswer):
    """The name exists and has no record of this type (RFC 2308 §2.2)."""

    def __init__(self, name: str, kind: Kind, *, canonical: str, authenticated: bool = False) -> None:
        super().__init__("no such record", name, kind, canonical=canonical, authenticated=authenticated)


class TemporaryFailure(DnsError):
    """Nobody could say; ask again later."""

    def __init__(self, name: str, kind: Kind, reason: Failure) -> None:
        super().__init__(f"temporary DNS failure: {reason.value}", name, kind)
        self.reason = reason


class Bogus(TemporaryFailure):
    """The answer exists and must not be used: its signatures do not hold. `reason` is `Failure.BOGUS`."""

    def __init__(self, name: str, kind: Kind) -> None:
        super().__init__(name, kind, Failure.BOGUS)


@dataclass(frozen=True, slots=True)
class MxRecord:
    """RFC 1035 §3.3.9. `exchange` is lower-case without the last dot; `.` is the root, as in a null MX (RFC 7505)."""

    preference: int
    exchange: str


@dataclass(frozen=True, slots=True)
class TlsaRecord:
    """RFC 6698 §2.1."""

    usage: int
    selector: int
    matching_type: int
    data: bytes


Record = TypeVar("Record", covariant=True)


@dataclass(frozen=True, slots=True)
class Answer(Generic[Record]):
    """At least one record of the type that was asked for, in the name server's order, no two equal.

    `canonical` is the end of the chain of CNAMEs; `ttl` the seconds that the answer may still be used for;
    `authenticated` whether a name server that is trusted to say so validated it with DNSSEC (RFC 4035 §3.2.3).
    """

    name: str
    canonical: str
    records: tuple[Record, ...]
    ttl: float
    authenticated: bool = False


class Resolver(Protocol):
    """Asks the DNS. Names may be international and may end in a dot. CNAMEs are followed.

    `within` is the longest time in seconds that the caller waits; without it the resolver's own limit counts. Each
    method raises `InvalidName` without asking anybody, `NoSuchName`, `NoData`, `TemporaryFailure` or `Bogus`, nothing
    else.
    """

    async def a(self, name: str, *, within: float | None = None) -> Answer[IPv4Address]: ...

    async def aaaa(self, name: str, *, within: float | None = None) -> Answer[IPv6Address]: ...

    async def mx(self, name: str, *, within: float | None = None) -> Answer[MxRecord]: ...

    async def txt(self, name: str, *, within: float | None = None) -> Answer[bytes]:
        """The strings of each record joined without anything between them (RFC 7208 §3.3, RFC 6376 §3.6.2.2)."""
        ...

    async def ptr(self, address: IpAddress, *, within: float | None = None) -> Answer[str]:
        """The names of an address, lower-case without the last dot. They are whatever its owner likes them to be."""
        ...

    async def tlsa(self, name: str, *, within: float | None = None) -> Answer[TlsaRecord]: ...


@functools.lru_cache(4096)
def ascii_name(name: str) -> str | None:
    """`name` in lower-case A-labels (RFC 5890 §2.3.2.1, UTS 46 mapping) without the last dot; `None` if there is none.

    `None` stands for an empty name or label, characters that are not printable, a label over 63 or a name over 253
    characters: what needs no question to the DNS to be known as wrong.
    """
    if name.isascii():
        plain = name.lower().removesuffix(".")
    else:
        if len(name) > MAX_NAME_CHARS + 1:
            return None
        try:
            plain = ".".join(map(_ascii_label, _DOTS.split(name))).removesuffix(".")
        except UnicodeError:  # idna.IDNAError is one
            return None
    if len(plain) > MAX_NAME_CHARS or _LABELS.fullmatch(plain) is None:
        return None
    return plain


def _ascii_label(label: str) -> str:
    """`idna` would refuse the underscore of `_dmarc`, so that only labels which need it are given to it."""
    if label.isascii():
        return label.lower()
    return idna.encode(label, uts46=True).decode("ascii")
