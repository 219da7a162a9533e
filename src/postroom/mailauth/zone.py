"""A `Resolver` over names that are written down: for tests, and to judge records that are not published yet."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, TypeAlias, TypeVar, cast

from postroom.mailauth.resolver import Answer, IpAddress, NameNotFoundError, NoRecordError, TemporaryResolverError

MAX_CHAIN: Final = 10
"""CNAMEs that are followed."""

Record = TypeVar("Record")


class Trouble(StrEnum):
    """Why a name of the zone has no answer at the moment. No time passes."""

    TIMEOUT = "timeout"
    SERVFAIL = "server_failure"


Written: TypeAlias = Mapping[str, Sequence[str | bytes] | Trouble] | Trouble
"""What stands at a name: records by type, or trouble, of one type or of all."""


class Zone:
    """Answers from a mapping of names: `{"example.com": {"TXT": ["v=spf1 mx -all"], "MX": ["10 mx.example.com"]}}`.

    Types are TXT, A, AAAA, MX, PTR and CNAME, records as zone files write them, those of TXT whole, as text or octets.
    PTR records of an address stand at its reverse name (`1.2.0.192.in-addr.arpa`). Every other name does not exist.
    """

    def __init__(self, names: Mapping[str, Written], *, authenticated: Collection[str] | bool = False) -> None:
        """`authenticated`: the names whose answers DNSSEC vouches for, or all of them, or none.

        Raises ValueError for a type or a record that cannot be read.
        """
        self._names: dict[str, dict[str, tuple[object, ...] | Trouble] | Trouble] = {
            _key(name): written
            if isinstance(written, Trouble)
            else {kind: _read(kind, written[kind]) for kind in written}
            for name, written in names.items()
        }
        self._parents = {name[at + 1 :] for name in self._names for at in range(len(name)) if name[at] == "."}
        self._authenticated = (
            authenticated if isinstance(authenticated, bool) else frozenset(_key(name) for name in authenticated)
        )
        self.asked: list[tuple[str, str]] = []
        """Questions in order: name in lower case, type."""

    @property
    def questions(self) -> int:
        """How many questions were asked."""
        return len(self.asked)

    def count(self) -> Counter[tuple[str, str]]:
        """How often each question was asked."""
        return Counter(self.asked)

    async def txt(self, name: str) -> Answer[bytes]:
        return cast(Answer[bytes], self._find(name, "TXT"))

    async def a(self, name: str) -> Answer[IPv4Address]:
        return cast(Answer[IPv4Address], self._find(name, "A"))

    async def aaaa(self, name: str) -> Answer[IPv6Address]:
        return cast(Answer[IPv6Address], self._find(name, "AAAA"))

    async def mx(self, name: str) -> Answer[str]:
        return cast(Answer[str], self._find(name, "MX"))

    async def ptr(self, address: IpAddress) -> Answer[str]:
        return cast(Answer[str], self._find(address.reverse_pointer, "PTR"))

    def _find(self, name: str, kind: str) -> Answer[object]:
        name = _key(name)
        self.asked.append((name, kind))
        authenticated = True
        for _ in range(MAX_CHAIN + 1):
            authenticated = authenticated and self._vouched(name)
            here = self._names.get(name)
            if here is None:
                # A name that only has others below it exists, too (RFC 8020 §2).
                raise (NoRecordError if name in self._parents else NameNotFoundError)(kind)
            found = here if isinstance(here, Trouble) else here.get(kind)
            if isinstance(found, Trouble):
                raise TemporaryResolverError(found.value)
            if found:
                return Answer(found, authenticated=authenticated)
            alias = here.get("CNAME", ()) if isinstance(here, dict) else ()
            if isinstance(alias, Trouble):
                raise TemporaryResolverError(alias.value)
            if not alias:
                raise NoRecordError(kind)
            name = str(alias[0])
        raise TemporaryResolverError("chain")

    def _vouched(self, name: str) -> bool:
        return self._authenticated if isinstance(self._authenticated, bool) else name in self._authenticated


def _key(name: str) -> str:
    return name.lower().removesuffix(".")


def _read(kind: str, written: Sequence[str | bytes] | Trouble) -> tuple[object, ...] | Trouble:
    """Records without the doubles that DNS does not have, either (RFC 2181 §5)."""
    if isinstance(written, Trouble):
        return written
    if isinstance(written, str | bytes):
        raise ValueError("records come as a list")
    octets = [record.encode() if isinstance(record, str) else record for record in written]
    if kind == "TXT":
        return tuple(dict.fromkeys(octets))
    texts = [record.decode("ascii") for record in octets]
    try:
        return tuple(dict.fromkeys(_read_all(kind, texts)))
    except AddressValueError:
        raise ValueError(f"not a record of type {kind}") from None


def _read_all(kind: str, texts: Sequence[str]) -> Sequence[object]:
    match kind:
        case "A":
            return [IPv4Address(text) for text in texts]
        case "AAAA":
            return [IPv6Address(text) for text in texts]
        case "MX":
            pairs = [text.split() for text in texts]
            if not all(len(pair) == 2 and pair[0].isdecimal() for pair in pairs):
                raise ValueError("an MX record is a preference and a name")
            ordered = sorted(pairs, key=lambda pair: int(pair[0]))
            return [_key(name) or "." for _, name in ordered]
        case "PTR" | "CNAME":
            return [_key(text) for text in texts]
        case _:
            raise ValueError("no such type of record")
