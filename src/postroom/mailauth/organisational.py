"""Organisational domains (RFC 7489 §3.2) by the public suffix list, and the names of the tree walk (RFC 9989 §4.10).

The list is the one in the package `publicsuffixlist`, both of its sections: below a suffix of the private section, as
of a host of web pages, everybody is a stranger to everybody else, too.
"""

import functools
from typing import Final

from postroom.mail.domain import MAX_DOMAIN, domain_name
from postroom.mail.suffix import public_suffixes

MAX_WALK: Final = 8
"""Names that a tree walk asks for at the most (RFC 9989 §4.10)."""
_CACHED: Final = 8192


def prepare() -> None:
    """Read the list now, which takes some 60 ms, instead of when it is first asked."""
    public_suffixes()


def organisational_domain(domain: str) -> str | None:
    """The domain that was registered, as `example.co.uk` for `mail.example.co.uk`; a public suffix is its own.

    In A-labels and lower case, whatever `domain` is written in; None for what is no domain name. An unlisted last
    label is a public suffix. Takes time linear in the labels; answers are remembered.
    """
    return _organisational(domain) if len(domain) <= MAX_DOMAIN + 1 else None


@functools.lru_cache(maxsize=_CACHED)
def _organisational(domain: str) -> str | None:
    name = domain_name(domain)
    return None if name is None else (public_suffixes().privatesuffix(name) or name)


def is_public_suffix(domain: str) -> bool:
    """Whether anybody may register below `domain`."""
    name = domain_name(domain)
    return name is not None and public_suffixes().is_public(name)


def same_organisation(a: str, b: str) -> bool:
    """Whether both are domains of one organisation by the list."""
    found = organisational_domain(a)
    return found is not None and found == organisational_domain(b)


def walk_names(domain: str) -> tuple[str, ...]:
    """The names of a tree walk that starts at `domain`, a name in A-labels: itself, then its parents up to the top.

    Of a name with eight labels or more, those parents that have seven or fewer (RFC 9989 §4.10).
    """
    labels = domain.split(".")
    longest = min(len(labels), MAX_WALK) - 1
    return domain, *(".".join(labels[-count:]) for count in range(longest, 0, -1))


def is_below(domain: str, ancestor: str) -> bool:
    """Whether `domain` is `ancestor` or lies below it; both in A-labels."""
    return domain == ancestor or domain.endswith(f".{ancestor}")
