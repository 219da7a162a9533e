"""Envelope addresses: the `Path` of RFC 5321 §4.1.2 and RFC 6531 §3.3, as far as rule A6 admits it.

Refused are address literals, domains with an empty label or a label that starts or ends with a hyphen, display-name
forms, and anything over the limits of RFC 5321 §4.5.3.1 (local part 64, domain 255) and RFC 1035 §2.3.4 (label 63).
Local parts that forwarders made of a whole address (SRS) may use the room of the path instead.
Source routes are stripped (RFC 5321 §4.1.1.3). A quoted local part is kept by its meaning, not by its spelling.
"""

import re
from dataclasses import dataclass
from typing import Final

import idna

MAX_LOCAL: Final = 64
MAX_DOMAIN: Final = 255
MAX_PATH: Final = 256
"""Octets of a path with its brackets (RFC 5321 §4.5.3.1.3)."""

_ATEXT: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_UTEXT: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u00a1-\U0010ffff-]"
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_ROUTE: Final = r"@[^\x00-\x20:<>\"\\\x7f]+:"

# The ordinary path, in one match: dot-string local part, ASCII domain, then the end or the parameters.
_ORDINARY: Final = re.compile(rf"<({_ATEXT}+(?:\.{_ATEXT}+)*)@({_LABEL}(?:\.{_LABEL})*)>(?: +|$)".encode())

_DOT_STRING: Final = re.compile(rf"{_UTEXT}+(?:\.{_UTEXT}+)*")
_QUOTED: Final = re.compile(r'"((?:[^"\\\x00\r\n]|\\[^\x00\r\n])*)"')
_SOURCE_ROUTE: Final = re.compile(_ROUTE)
_DOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_PLAIN_LOCAL: Final = re.compile(rf"{_UTEXT}+(?:\.{_UTEXT}+)*")
# What forwarders make of a sender holds the sender's whole address, and none of them keeps it to 64 octets: bounces,
# and what was forwarded twice, would be lost (RFC 5321 §4.5.3.1: no limit where none is needed).
_REWRITTEN: Final = ("srs0=", "srs1=", "srs0+", "srs1+", "srs0-", "srs1-")
_BLANKS: Final = re.compile(r"(?: +|$)")


class AddressSyntaxError(ValueError):
    """The path is not one that rule A6 admits. Its text never holds the address."""


@dataclass(frozen=True, slots=True)
class Address:
    """A mailbox name: `local` without quoting and with its case kept, `domain` as lower-case A-labels."""

    local: str
    domain: str

    @property
    def key(self) -> str:
        """The form that is looked up: all lower case, detail (`+tag`) included."""
        return f"{self.local.lower()}@{self.domain}"

    def __str__(self) -> str:
        """The form of RFC 5321 §4.1.2, the local part quoted when it has to be."""
        if _PLAIN_LOCAL.fullmatch(self.local):
            return f"{self.local}@{self.domain}"
        quoted = self.local.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{quoted}"@{self.domain}'


@dataclass(frozen=True, slots=True)
class Path:
    """What `MAIL FROM:` or `RCPT TO:` named: `address` (`None` for `<>`), and the parameters after it, unparsed."""

    address: Address | None
    parameters: bytes
    international: bool = False
    """Whether the path held non-ASCII characters: only admitted with SMTPUTF8 (RFC 6531 §3.3)."""


def parse_path(raw: bytes, *, bare_postmaster: str | None = None) -> Path:
    """Parse `<path>` and what follows it.

    `bare_postmaster` is the domain that `<postmaster>` without a domain stands for (RFC 5321 §4.5.1, D28); with `None`
    that form is refused. Raises `AddressSyntaxError`.
    """
    match = _ORDINARY.match(raw)
    if match is not None:
        local, domain = match.group(1, 2)
        if len(domain) <= MAX_DOMAIN and (len(local) <= MAX_LOCAL or _is_rewritten(local.decode("ascii"), len(domain))):
            address = Address(local.decode("ascii"), domain.decode("ascii").lower())
            return Path(address, raw[match.end() :])
        raise AddressSyntaxError("part too long")
    return _parse_any_path(raw, bare_postmaster)


def _parse_any_path(raw: bytes, bare_postmaster: str | None) -> Path:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise AddressSyntaxError("not UTF-8") from None
    if not text.startswith("<"):
        raise AddressSyntaxError("no angle brackets")
    if text.startswith("<>"):
        return Path(None, _parameters_at(text, 2))
    if bare_postmaster is not None and text[:12].lower() == "<postmaster>":
        return Path(Address("postmaster", bare_postmaster), _parameters_at(text, 12))
    position = 1
    route = _SOURCE_ROUTE.match(text, position)
    if route is not None:
        position = route.end()
    local, position = _local_part(text, position)
    if not text.startswith("@", position):
        raise AddressSyntaxError("no domain")
    end = text.find(">", position)
    if end < 0:
        raise AddressSyntaxError("no closing bracket")
    # A fully qualified name may end with a dot, which means the same (inbound §7.1).
    domain = domain_to_ascii(text[position + 1 : end].removesuffix("."))
    # The limit is in octets (RFC 5321 §4.5.3.1.1), which matters for SMTPUTF8.
    if len(local.encode("utf-8")) > MAX_LOCAL and not _is_rewritten(local, len(domain)):
        raise AddressSyntaxError("local part length")
    return Path(Address(local, domain), _parameters_at(text, end + 1), not text[: end + 1].isascii())


def _parameters_at(text: str, position: int) -> bytes:
    blanks = _BLANKS.match(text, position)
    if blanks is None:
        raise AddressSyntaxError("text after the path")
    return text[blanks.end() :].encode("utf-8")


def _local_part(text: str, position: int) -> tuple[str, int]:
    quoted = _QUOTED.match(text, position)
    if quoted is not None:
        local, end = re.sub(r"\\(.)", r"\1", quoted.group(1), flags=re.DOTALL), quoted.end()
    else:
        plain = _DOT_STRING.match(text, position)
        if plain is None:
            raise AddressSyntaxError("local part")
        local, end = plain.group(), plain.end()
    if not local:
        raise AddressSyntaxError("local part")
    return local, end


def _is_rewritten(local: str, domain_octets: int) -> bool:
    """Whether a local part of over 64 octets is one that a forwarder made, and its path is not too long."""
    octets = len(local.encode("utf-8")) + domain_octets + len("<@>")
    return local.lower().startswith(_REWRITTEN) and octets <= MAX_PATH


def domain_to_ascii(domain: str) -> str:
    """`domain` as lower-case A-labels (RFC 5890 §2.3.2.1, UTS 46 mapping).

    Raises `AddressSyntaxError` for an address literal, an empty or ill-formed label, or a length over the limits.
    """
    ascii_domain = domain
    if not domain.isascii():
        if len(domain) > MAX_DOMAIN:
            raise AddressSyntaxError("domain length")
        try:
            ascii_domain = idna.encode(domain, uts46=True).decode("ascii")
        except (idna.IDNAError, UnicodeError):
            raise AddressSyntaxError("domain is no valid IDN") from None
    if len(ascii_domain) > MAX_DOMAIN or _DOMAIN.fullmatch(ascii_domain) is None:
        raise AddressSyntaxError("domain")
    return ascii_domain.lower()
