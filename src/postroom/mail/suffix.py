"""Registrable domains by the public suffix list: `example.co.uk` of `mail.example.co.uk`."""

import functools
from typing import Final

from publicsuffixlist import PublicSuffixList

from postroom.mail.domain import domain_name

_CACHED: Final = 4096


@functools.cache
def public_suffixes() -> PublicSuffixList:
    """The list, read at first use: some 40 ms. Whoever needs it in a loop asks for it beforehand."""
    return PublicSuffixList()


@functools.lru_cache(maxsize=_CACHED)
def registrable_domain(host: str, *, known_only: bool = False) -> str | None:
    """The domain that somebody registered; None for a public suffix, and for what is no domain name.

    An unlisted last label counts as a public suffix, unless `known_only` asks for listed ones.
    """
    name = domain_name(host.strip().rstrip("."))
    if name is None:
        return None
    found = public_suffixes().privatesuffix(name, accept_unknown=not known_only)
    return None if found is None else str(found)
