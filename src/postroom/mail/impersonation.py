"""Whom a message would have its reader believe it is from, or have them answer (inbound §18; D2, D3, D12).

Signs, and no proof: mailing lists write `ann@example.org via List` as a name, and have answers come to themselves.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import idna

from postroom.mail.confusables import fold
from postroom.mail.domain import domain_name, domain_of
from postroom.mail.suffix import registrable_domain

_MAX_NAME: Final = 1024
_CACHED: Final = 4096
# As in a text: what stands around an address in a name is no part of it. The lengths keep it linear.
_ADDRESS: Final = re.compile(
    r"(?<![^\s<>()\[\]\"'„“”‘’«»,;:|/])([^\s<>()\[\]\"'„“”‘’«»,;:|/@]{1,64})@((?:[\w-]{1,63}\.){1,10}[\w-]{2,63})(?![\w-])"
)


def display_name_spoof(name: str, address: str) -> bool:
    """Whether a display name holds something like an address, and it is another than `address` (D2)."""
    if "@" not in name and name.isascii():
        return False
    # Full-width letters, and signs that stand for `@`, are read as what they look like.
    shown = unicodedata.normalize("NFKC", name[:_MAX_NAME])
    if "@" not in shown:
        return False
    own = _key(address)
    return any(_key(found[0]) != own for found in _ADDRESS.finditer(shown))


def _key(address: str) -> str:
    local, _, domain = address.rpartition("@")
    return f"{local}@{domain_name(domain) or domain}".lower()


def reply_to_mismatch(author: str, reply_to: Iterable[str]) -> bool:
    """Whether an answer to the addresses of Reply-To would leave the organisation of the author's address (D3)."""
    domain = domain_of(author) if "@" in author else None
    if domain is None:
        return False
    return any(
        other is not None and other != domain and _organisation(other) != _organisation(domain)
        for other in (domain_of(address) for address in reply_to if "@" in address)
    )


def _organisation(domain: str) -> str:
    """The domain that was registered; a public suffix is its own."""
    return registrable_domain(domain) or domain


def lookalike_domain(domain: str, known: Iterable[str]) -> str | None:
    """The first of the `known` domains that `domain` may be taken for without being it or of it; None for none (D2).

    Both are compared as they are shown, at what was registered: `rnicrosoft.com` for `microsoft.com`.
    """
    registered = registrable_domain(domain)
    if registered is None:
        return None
    skeleton = _skeleton(registered)
    for one in known:
        other = registrable_domain(one)
        if other is not None and other != registered and _skeleton(other) == skeleton:
            return one
    return None


@lru_cache(maxsize=_CACHED)
def _skeleton(domain: str) -> str:
    return fold(".".join(map(_shown, domain.split("."))))


def _shown(label: str) -> str:
    """A label in the letters that people see (RFC 5891)."""
    if not label.startswith("xn--"):
        return label
    try:
        return idna.decode(label)
    except idna.IDNAError:
        return label
