"""What mail authentication asks of DNS, and how a resolver says that it has no answer."""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Generic, Protocol, Self, TypeAlias, TypeVar

IpAddress: TypeAlias = IPv4Address | IPv6Address


class ResolverError(Exception):
    """There is no answer."""


class NameNotFoundError(ResolverError):
    """The name does not exist (NXDOMAIN, RFC 1035 §4.1.1), or has no record of the type asked for.

    For SPF both are void look-ups (RFC 7208 §4.6.4); who must tell them apart looks for `NoRecordError` first.
    """


class NoRecordError(NameNotFoundError):
    """The name exists, or names below it do, and has no record of the type asked for (NODATA, RFC 2308 §2.2)."""


class TemporaryResolverError(ResolverError):
    """Time-out, SERVFAIL, a forgery or the like: a later attempt may find the answer."""


Record = TypeVar("Record", covariant=True)


class Answer(tuple[Record, ...], Generic[Record]):
    """The records of one name and type, at least one; a tuple that also knows whether DNSSEC vouches for it.

    Answers compare as tuples do.
    """

    authenticated: bool
    """Whether a name server that is trusted to say so validated the answer (RFC 4035 §3.2.3)."""

    def __new__(cls, records: Iterable[Record] = (), *, authenticated: bool = False) -> Self:
        made = super().__new__(cls, records)
        made.authenticated = authenticated
        return made


class TxtResolver(Protocol):
    """Looks up TXT records."""

    async def txt(self, name: str) -> Sequence[bytes]:
        """The TXT records of `name`, an ASCII domain name without a final dot.

        The strings of one record come joined without anything between them (RFC 6376 §3.6.2.2). No record: empty, or
        `NameNotFoundError`. Raises `TemporaryResolverError` when the answer could not be had.
        """
        ...


class Resolver(Protocol):
    """Looks up what SPF needs (RFC 7208 §5); every `Resolver` is a `TxtResolver`.

    Names are ASCII, without a final dot, those in answers in lower case. CNAMEs are followed. Each method raises
    `NameNotFoundError` or `NoRecordError` when there surely is no such record, `TemporaryResolverError` when nobody
    could say, nothing else; callers take an empty answer for `NameNotFoundError`.
    """

    async def txt(self, name: str) -> Answer[bytes]:
        """As `TxtResolver.txt`."""
        ...

    async def a(self, name: str) -> Answer[IPv4Address]: ...

    async def aaaa(self, name: str) -> Answer[IPv6Address]: ...

    async def mx(self, name: str) -> Answer[str]:
        """Names of hosts, the most preferred first; `.` in a null MX (RFC 7505)."""
        ...

    async def ptr(self, address: IpAddress) -> Answer[str]:
        """The names of an address, which are whatever its owner likes them to be."""
        ...
