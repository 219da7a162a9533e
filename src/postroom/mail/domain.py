"""Domain names as they are compared: lower case, A-labels, without a final dot (RFC 5890 §2.3.2.1)."""

import re
from typing import Final

import idna

MAX_DOMAIN: Final = 253
"""Octets of a domain name (RFC 1035 §2.3.4), as text without the final dot."""

# Labels as in host names, but with `_`, which DNS allows and some selectors have.
_NAME: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?+(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?+)*+")


def to_ascii(name: str) -> str:
    """A domain name or selector in lower case, in its ASCII form (RFC 5890). Raises ValueError."""
    if len(name) > MAX_DOMAIN:
        raise ValueError("too long for a domain name")
    name = name.lower() if name.isascii() else idna.encode(name, uts46=True).decode("ascii")
    if _NAME.fullmatch(name) is None or len(name) > MAX_DOMAIN:
        raise ValueError("not a domain name")
    return name


def domain_name(text: str) -> str | None:
    """A domain as it is compared, one final dot left out; None for what is no domain name, as an address of a host."""
    try:
        name = to_ascii(text.removesuffix("."))
    except ValueError:  # idna's errors are such, too
        return None
    return None if name.rpartition(".")[2].isdigit() else name


def domain_of(address: str) -> str | None:
    """The domain of a mail address, or the name itself when it has no `@`; None for what is no domain name."""
    return domain_name(address.rpartition("@")[2])
