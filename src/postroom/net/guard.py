"""The SSRF guard's rules for what somebody outside the operator names as a destination (SEC-9, security-privacy A9).

Nothing here asks or connects. `check_url` (rules 1 to 4) reads a URL once; a request is made of the `Target` alone, so
that no second parser can find another host in it. `check_addresses` (rule 5) judges what the DNS then says.

URLs are read as RFC 3986 writes them, and nothing else is: browsers (WHATWG) take a backslash for a slash and drop tabs
and line breaks, curl decodes percent signs in hosts, C libraries know `127.1`. Each of these is refused, not mended.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import idna

from postroom.net.dns_types import MAX_NAME_CHARS, IpAddress, ascii_name
from postroom.net.public_address import is_one_of, is_public

MAX_URL_BYTES: Final = 2048
HTTPS_PORT: Final = 443

_SCHEME: Final = "https://"
_IN_AUTHORITY: Final = r"A-Za-z0-9\-._~!$&'()*+,;=:@%\[\]\u0080-\U0010ffff"
_PARTS: Final = re.compile(
    rf"([{_IN_AUTHORITY}]*)((?:/(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{{2}})*)?"
    r"(?:\?(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*)?)"
)
"""Authority, path and query (RFC 3986 §3.2 to §3.4). Characters beyond ASCII are looked at with the host."""
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""What makes a host an IPv4 address where it is the last label: decimal, octal or hex (inet_aton, WHATWG URL §3.5)."""
_REFUSED_ENDS: Final = ("localhost", "local", "internal", "invalid", "test", "example", "onion", "home.arpa", "arpa")


class Refusal(StrEnum):
    """Why a destination is not allowed."""

    TOO_LONG = "too_long"
    NOT_HTTPS = "not_https"
    MALFORMED = "malformed"
    """Characters that RFC 3986 has no place for, or no host, or a port that is none."""
    USERINFO = "userinfo"
    FRAGMENT = "fragment"
    IP_LITERAL = "ip_literal"
    """An IP address instead of a name, in whatever notation."""
    HOST = "host"
    """Not a name of a host with two labels or more, or an international one that can be read in two ways."""
    NAME = "name"
    """A name that is not for the public internet (RFC 6761, RFC 6762, RFC 7686, RFC 8375)."""
    OWN_NAME = "own_name"
    """A host of this deployment, or below its platform domain."""
    PORT = "port"
    NO_ADDRESS = "no_address"
    ADDRESS = "address"
    """It resolves to an address that is not of the public internet, or is ours."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL that passed names. `host` is in lower-case A-labels; `path` is the request target of RFC 9112 §3.2.1,
    path and query as they were written. `test_host`: the operator allowed it whatever its name and addresses are.
    """

    host: str
    port: int
    path: str
    test_host: bool = False

    @property
    def authority(self) -> str:
        """The value of `Host` (RFC 9110 §7.2)."""
        return self.host if self.port == HTTPS_PORT else f"{self.host}:{self.port}"


def check_url(
    url: str, *, own_hosts: Collection[str], platform_domain: str | None, allowed_test_hosts: Collection[str] = ()
) -> Target | Refusal:
    """Rules 1 to 4. `own_hosts` are the API's and the console's; `allowed_test_hosts` is empty outside of tests.

    Names in the arguments may be international. Never raises.
    """
    if len(url) > MAX_URL_BYTES or len(url.encode("utf-8", "replace")) > MAX_URL_BYTES:
        return Refusal.TOO_LONG
    if url[: len(_SCHEME)].lower() != _SCHEME:
        return Refusal.NOT_HTTPS
    if "#" in url:
        return Refusal.FRAGMENT
    parts = _PARTS.fullmatch(url, len(_SCHEME))
    if parts is None:
        return Refusal.MALFORMED
    authority, path = parts.groups()
    if "@" in authority:
        return Refusal.USERINFO
    if "[" in authority or "]" in authority:
        return Refusal.IP_LITERAL
    written, colon, port = authority.partition(":")
    number = _port(port) if colon else HTTPS_PORT
    if not written or number is None:
        return Refusal.MALFORMED
    host = check_host(
        written, own_hosts=own_hosts, platform_domain=platform_domain, allowed_test_hosts=allowed_test_hosts
    )
    if isinstance(host, Refusal):
        return host
    if number != HTTPS_PORT and not 1024 <= number <= 65535:
        return Refusal.PORT
    return Target(host, number, path if path.startswith("/") else f"/{path}", _is_among(host, allowed_test_hosts))


def check_host(
    name: str, *, own_hosts: Collection[str], platform_domain: str | None, allowed_test_hosts: Collection[str] = ()
) -> str | Refusal:
    """Rules 2 and 3, which are those for a tenant's relay, too: the name in lower-case A-labels. Never raises."""
    host = _one_reading(name)
    if host is None:
        return Refusal.HOST
    if _is_among(host, allowed_test_hosts):
        return host
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return Refusal.IP_LITERAL
    if any(_is_below(host, end) for end in _REFUSED_ENDS):
        return Refusal.NAME
    if len(labels) < 2 or not all(map(_LABEL.fullmatch, labels)):
        return Refusal.HOST
    platform = ascii_name(platform_domain) if platform_domain else None
    if _is_among(host, own_hosts) or (platform is not None and _is_below(host, platform)):
        return Refusal.OWN_NAME
    return host


def check_addresses(
    addresses: Iterable[IpAddress],
    *,
    own_addresses: Collection[IpAddress],
    is_allowed: Callable[[IpAddress], bool] = is_public,
) -> Refusal | None:
    """Rule 5: none is too few, and one that is refused spoils all.

    `own_addresses` are those that nodes of this deployment are bound to; `is_allowed` is the table of ranges.
    """
    empty = True
    for address in addresses:
        empty = False
        if not is_allowed(address) or is_one_of(address, own_addresses):
            return Refusal.ADDRESS
    return Refusal.NO_ADDRESS if empty else None


def _port(text: str) -> int | None:
    return int(text) if _PORT.fullmatch(text) else None


def _is_among(host: str, names: Collection[str]) -> bool:
    return any(host == ascii_name(name) for name in names)


def _is_below(host: str, parent: str) -> bool:
    return host == parent or host.endswith(f".{parent}")


def _one_reading(name: str) -> str | None:
    """The name in lower-case A-labels (RFC 5890 §2.3.2.1), None unless everybody reads it as the same name.

    A dot at the end is none: TLS and Host spell the name without it, and lists of names forget that it may be there.
    Labels that mapping turns into something else than their U-label, such as full-width digits, are none either.
    """
    if not 0 < len(name) <= MAX_NAME_CHARS:
        return None
    try:
        host = ".".join(map(_label, name.split(".")))
    except UnicodeError:  # idna.IDNAError is one; so is a lone surrogate's
        return None
    return host if len(host) <= MAX_NAME_CHARS and ascii_name(host) == host else None


def _label(label: str) -> str:
    """Raises UnicodeError."""
    lower = label.lower()
    if label.isascii() and not lower.startswith("xn--"):
        return lower
    encoded = idna.encode(lower, uts46=True).decode("ascii")
    # NFC: lower-casing alone makes an ASCII letter of the Kelvin sign.
    same = lower in (encoded, idna.decode(encoded)) and unicodedata.is_normalized("NFC", label)
    if not same or not encoded.startswith("xn--"):
        raise UnicodeError("a label that does not come back as it was")
    return encoded
