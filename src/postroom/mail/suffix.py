"""Registrable domains by the public suffix list: `example.co.uk` of `mail.example.co.uk`."""

import functools
import re
from typing import Final

import idna
from publicsuffixlist import PublicSuffixList

MAX_DOMAIN: Final = 253
_CACHED: Final = 4096
_NAME: Final = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


@functools.cache
def public_suffixes() -> PublicSuffixList:
    """The list, read at first use: some 40 ms. Whoever needs it in a loop asks for it beforehand."""
    return PublicSuffixList()


def domain_name(host: str) -> str | None:
    """A domain name in A-labels and lower case (RFC 5890), without a final dot; None for what is none."""
    host = host.strip().rstrip(".")
    if not 0 < len(host) <= MAX_DOMAIN:
        return None
    host = host.lower()
    if not host.isascii():
        try:
            host = idna.encode(host, uts46=True).decode("ascii").lower()
        except (idna.IDNAError, UnicodeError):
            return None
    if len(host) > MAX_DOMAIN or _NAME.fullmatch(host) is None or host.rpartition(".")[2].isdigit():
        return None
    return host


@functools.lru_cache(maxsize=_CACHED)
def registrable_domain(host: str, *, known_only: bool = False) -> str | None:
    """The domain that somebody registered; None for a public suffix, and for what is no domain name.

    An unlisted last label counts as a public suffix, unless `known_only` asks for listed ones.
    """
    name = domain_name(host)
    if name is None:
        return None
    found = public_suffixes().privatesuffix(name, accept_unknown=not known_only)
    return None if found is None else str(found)
