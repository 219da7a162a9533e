"""SPF records, read whole before anything is evaluated (RFC 7208 §4.5, §4.6, §5, §6, §12). Takes linear time."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NamedTuple

from postroom.mailauth.resolver import IpAddress
from postroom.mailauth.spf_macro import MacroError, MacroString, check_macros, parse_domain_spec
from postroom.mailauth.spf_result import Reason, SpfError, Status

MAX_RECORD_BYTES: Final = 4096
MAX_TERMS: Final = 400
"""What is larger is a permanent error; RFC 7208 §3.4 wants records under 450 octets. More terms that make sense do not
fit the octets.
"""

_VERSION: Final = b"v=spf1"
_MODIFIER: Final = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*+)=(.*+)", re.DOTALL)
_MECHANISM: Final = re.compile(r"([+?~-]?)([A-Za-z][A-Za-z0-9]*+)(?:([:/].*+)|\Z)", re.DOTALL)
_DUAL_PREFIX: Final = re.compile(r"(?:/(0|[1-9][0-9]?))?(?://(0|[1-9][0-9]{0,2}))?\Z")


class Mechanism(StrEnum):
    """RFC 7208 §5."""

    ALL = "all"
    INCLUDE = "include"
    A = "a"
    MX = "mx"
    PTR = "ptr"
    IP4 = "ip4"
    IP6 = "ip6"
    EXISTS = "exists"


_QUALIFIERS: Final = {
    "": Status.PASS,
    "+": Status.PASS,
    "-": Status.FAIL,
    "~": Status.SOFTFAIL,
    "?": Status.NEUTRAL,
}
_MECHANISMS: Final = {one.value: one for one in Mechanism}


class Directive(NamedTuple):
    """A mechanism with its qualifier (RFC 7208 §4.6.1). A tuple, for records have many."""

    mechanism: Mechanism
    status: Status
    """The result when it matches."""
    text: str
    """As written."""
    target: MacroString | None = None
    """The `domain-spec`; None: the domain that is checked."""
    network: int = 0
    """The address of `ip4` and `ip6`."""
    prefix4: int = 32
    prefix6: int = 128
    """How many bits of an address count, for each family."""

    def spans(self, network: int, client: IpAddress) -> bool:
        """Whether the bits that count are the same in two addresses of the client's family."""
        if client.version == 4:
            return (network ^ int(client)) >> (32 - self.prefix4) == 0
        return (network ^ int(client)) >> (128 - self.prefix6) == 0


@dataclass(frozen=True, slots=True)
class SpfRecord:
    """A record without a fault."""

    directives: tuple[Directive, ...]
    redirect: MacroString | None = None
    explanation: MacroString | None = None


def is_record(text: bytes) -> bool:
    """Whether a TXT record is one of SPF, good or bad (RFC 7208 §4.5)."""
    return text[:6].lower() == _VERSION and text[6:7] in (b"", b" ")


def choose_record(texts: Sequence[bytes]) -> bytes | None:
    """The SPF record among the TXT records of a name, if there is one. Raises `SpfError`: there are several."""
    found = [text for text in texts if is_record(text)]
    if len(found) > 1:
        raise SpfError(Reason.SEVERAL_RECORDS)
    return found[0] if found else None


def parse_record(text: bytes) -> SpfRecord:
    """Read a record. Raises `SpfError`, with the term at fault."""
    if len(text) > MAX_RECORD_BYTES:
        raise SpfError(Reason.RECORD_TOO_LARGE)
    if not is_record(text) or not text.isascii():
        raise SpfError(Reason.SYNTAX)
    directives: list[Directive] = []
    modifiers: dict[str, MacroString] = {}
    # Only spaces stand between terms (RFC 7208 §4.6.1); any number of them.
    terms = [term for term in text[len(_VERSION) :].decode("ascii").split(" ") if term]
    if len(terms) > MAX_TERMS:
        raise SpfError(Reason.RECORD_TOO_LARGE)
    for term in terms:
        try:
            modifier = _MODIFIER.match(term) if "=" in term else None
            if modifier is None:
                directives.append(_directive(term))
            else:
                _take_modifier(modifiers, modifier[1].lower(), modifier[2])
        except (MacroError, AddressValueError):
            raise SpfError(Reason.SYNTAX, term) from None
    return SpfRecord(tuple(directives), modifiers.get("redirect"), modifiers.get("exp"))


def _take_modifier(modifiers: dict[str, MacroString], name: str, value: str) -> None:
    """RFC 7208 §6: the two that are known once each, others however often."""
    if name not in ("redirect", "exp"):
        check_macros(value)
    elif name in modifiers:
        raise MacroError("twice")
    else:
        modifiers[name] = parse_domain_spec(value)


def _directive(term: str) -> Directive:
    """Raises `MacroError`, `AddressValueError`."""
    match = _MECHANISM.match(term)
    if match is None:
        raise MacroError("no mechanism")
    qualifier, name, rest = match.groups("")
    mechanism, status = _MECHANISMS.get(name.lower()), _QUALIFIERS[qualifier]
    match mechanism:
        case Mechanism.IP4 | Mechanism.IP6:
            return _address(mechanism, status, term, rest)
        case Mechanism.A | Mechanism.MX:
            spec, four, six = _split_prefix(rest)
            target = _target(spec, optional=True)
            return Directive(mechanism, status, term, target, prefix4=_prefix(four, 32), prefix6=_prefix(six, 128))
        case Mechanism.ALL:
            if rest:
                raise MacroError("all takes nothing")
            return Directive(mechanism, status, term)
        case None:
            raise MacroError("no such mechanism")
        case _:
            return Directive(mechanism, status, term, _target(rest, optional=mechanism is Mechanism.PTR))


def _target(rest: str, *, optional: bool) -> MacroString | None:
    """What stands behind the name of a mechanism: a colon and a `domain-spec`, or nothing."""
    if not rest and optional:
        return None
    if not rest.startswith(":"):
        raise MacroError("no colon")
    return parse_domain_spec(rest[1:])


def _split_prefix(rest: str) -> tuple[str, str | None, str | None]:
    """What stands before the prefix lengths (`dual-cidr-length`, RFC 7208 §5.3), and those of IPv4 and IPv6."""
    # A `domain-spec` may hold any number of slashes. Each is looked at once, for a bounded number of characters.
    found = _DUAL_PREFIX.search(rest)
    return (rest, None, None) if found is None else (rest[: found.start()], found[1], found[2])


def _address(mechanism: Mechanism, status: Status, term: str, rest: str) -> Directive:
    """RFC 7208 §5.6. Bits beyond the prefix may be set."""
    written, slash, digits = rest[1:].partition("/")
    if rest[:1] != ":" or (slash and not digits) or "%" in written:
        raise MacroError("no address")
    if mechanism is Mechanism.IP4:
        return Directive(mechanism, status, term, None, int(IPv4Address(written)), _prefix(digits or None, 32))
    network = int(IPv6Address(written))
    return Directive(mechanism, status, term, None, network, prefix6=_prefix(digits or None, 128))


def _prefix(digits: str | None, most: int) -> int:
    """Raises `MacroError`: no number without leading zeros, or too large a one."""
    if digits is None:
        return most
    if not digits.isascii() or not digits.isdigit() or len(digits) > 3 or (digits[0] == "0" and digits != "0"):
        raise MacroError("no prefix")
    if int(digits) > most:
        raise MacroError("too long a prefix")
    return int(digits)
