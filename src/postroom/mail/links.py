"""What the links of a message say about it (inbound §11): where they lead, and whether they say so."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from postroom.mail.domain import domain_name
from postroom.mail.html import Link
from postroom.mail.suffix import registrable_domain

MAX_DOMAINS: Final = 50

# As browsers read it: any number of slashes of either kind (URL standard, special authority).
_AUTHORITY: Final = re.compile(r"https?:[/\\]*([^/\\?#]*)", re.IGNORECASE)
_SHOWN_URL: Final = re.compile(r"https?://([^\s/\\?#<>\"']{1,255})", re.IGNORECASE)
_SHOWN_DOMAIN: Final = re.compile(r"((?:[\w-]{1,63}\.){1,10}[^\W\d_]{2,24})\.?(?::\d{1,5})?(?:[/?#]\S*)?")
_SHOWN_ADDRESS: Final = re.compile(r"[^\s@<>]{1,64}@((?:[\w-]{1,63}\.){1,10}[^\W\d_]{2,24})")
_NUMBER: Final = re.compile(r"(?:0x[0-9a-f]+|\d+)(?:\.(?:0x[0-9a-f]+|\d+)){0,3}\.?", re.IGNORECASE)
# Last labels that are file names more often than domains, where nothing else says that a domain is meant.
_FILES: Final = frozenset({"md", "py", "rs", "sh", "pl", "zip", "mov", "cc", "so", "ps", "js", "app", "java"})


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """Counts over all links; none is proof of anything."""

    total: int
    domains: tuple[str, ...]
    """Registrable domains that they lead to, in order of appearance, at most 50."""
    deceptive: int
    """Whose text is a URL, domain or address of another registrable domain than where they lead."""
    addressed: int
    """To an IP address instead of a name."""
    disguised: int
    """With something before an `@` in front of the host, which looks like the host."""
    international: int
    """To a domain with letters beyond ASCII."""


NO_LINKS: Final = LinkFacts(0, (), 0, 0, 0, 0)


def link_facts(links: Iterable[Link]) -> LinkFacts:
    """Look at links. Linear; reads the public suffix list at first use."""
    total = deceptive = addressed = disguised = international = 0
    domains: dict[str, None] = {}
    for link in links:
        total += 1
        host, has_user = url_host(link.url)
        if host is None:
            continue
        disguised += has_user
        is_address = is_ip_address(host)
        addressed += is_address
        domain = None if is_address else registrable_domain(host)
        if domain is not None and len(domains) < MAX_DOMAINS:
            domains.setdefault(domain)
        name = None if is_address else domain_name(host)
        international += name is not None and (name.startswith("xn--") or ".xn--" in name)
        deceptive += is_deceptive(link)
    return LinkFacts(total, tuple(domains), deceptive, addressed, disguised, international)


def is_deceptive(link: Link) -> bool:
    """Whether the text is a URL, domain or address of another registrable domain than where the link leads."""
    shown = _shown_domain(link.text)
    if shown is None:
        return False
    host, _ = url_host(link.url)
    if host is None:
        return False
    return shown != (None if is_ip_address(host) else registrable_domain(host))


def url_host(url: str) -> tuple[str | None, bool]:
    """Host of an http, https or mailto URL in lower case, and whether user information stands before it."""
    if url[:7].lower() == "mailto:":
        address = unquote(url[7:].partition("?")[0].partition(",")[0])
        return address.rpartition("@")[2].strip().lower() or None, False
    found = _AUTHORITY.match(url.strip())
    if found is None:
        return None, False
    user, at, host = unquote(found[1]).rpartition("@")
    host = host.strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif ":" in host:
        host = host.rpartition(":")[0]
    return host.rstrip(".") or None, bool(at and user)


def is_ip_address(host: str) -> bool:
    """Also in the spellings that browsers take: one number, octal, hexadecimal."""
    if _NUMBER.fullmatch(host):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _shown_domain(text: str) -> str | None:
    """The registrable domain that a link's text pretends to lead to."""
    if (found := _SHOWN_URL.search(text)) is not None:
        return registrable_domain(url_host("http://" + found[1])[0] or "")
    text = text.strip(" \t<>()[]\"'")
    found = _SHOWN_ADDRESS.fullmatch(text) or _SHOWN_DOMAIN.fullmatch(text)
    if found is None or found[1].rpartition(".")[2].lower() in _FILES:
        return None
    return registrable_domain(found[1], known_only=not text.lower().startswith("www."))
