"""The way that a message took, its `Received` fields as hops (RFC 5321 §4.4), and what its mailing list says (RFC 2919,
RFC 2369, RFC 8058).

Whoever handed the message over may have written all of them: only what our own server wrote is known to be true.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import MappingProxyType
from typing import Final

from postroom.mail.date import parse_date
from postroom.mail.header import Headers, decode_words, unfold
from postroom.mail.params import text_of

MAX_HOPS: Final = 100
MAX_LIST_LINKS: Final = 10
"""URLs that are kept of each field of a list."""
_MAX_FIELD: Final = 4096
_MAX_TEXT: Final = 255
_MAX_URL: Final = 2048
_MAX_CLAUSES: Final = 40

# A comment with one level below it, a quoted string, a bracketed path, or a word: possessive, so linear.
_ITEM: Final = re.compile(
    r"\((?P<comment>(?:[^()\\]++|\\.|\((?:[^()\\]++|\\.)*+\))*+)\)|(?P<word>\"(?:[^\"\\]++|\\.)*+\"|<[^<>]*+>|[^\s();]++)"
)
_CLAUSES: Final = frozenset({"from", "by", "via", "with", "id", "for"})
_ADDRESS: Final = re.compile(r"\[(?:IPv6:)?([0-9A-Fa-f:.]{3,45})\]", re.IGNORECASE)
_BARE_ADDRESS: Final = re.compile(
    r"(?<![\w.:-])((?:\d{1,3}\.){3}\d{1,3}|[0-9A-Fa-f]{1,4}:[0-9A-Fa-f:]{2,40})(?![\w.:-])"
)
# What the sender called itself, where that stands beside its address.
_HELO: Final = re.compile(r"\b[he][eh]lo[= ]\S{1,255}", re.IGNORECASE)
_TLS: Final = re.compile(r"\bTLS_?v?1", re.IGNORECASE)
_PROTOCOL: Final = re.compile(r"(?:utf8)?(?:e?smtp|lmtp)(s?)(a?)", re.IGNORECASE)
_LIST_ID: Final = re.compile(r"<\s*([^<>\s]{1,255})\s*>\s*\Z")
_ANGLED: Final = re.compile(r"<([^<>]*+)>")
_URL: Final = re.compile(r"(?:https?|mailto|ftp):[^\x00-\x20\x7f]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Hop:
    """One `Received` field; what it does not say is None, texts are of at most 255 characters."""

    sender: str | None
    """How the host that handed over called itself (`from`)."""
    address: IPv4Address | IPv6Address | None
    """Where it did that from, as the receiver saw it."""
    receiver: str | None
    """Who wrote the field (`by`)."""
    protocol: str | None
    """`with`: SMTP, ESMTPS and their like (RFC 3848), in capitals."""
    encrypted: bool
    authenticated: bool
    identifier: str | None
    recipient: str | None
    """`for`, without angle brackets."""
    at: datetime | None
    delay: timedelta | None
    """Since the hop before; clocks differ, so it may be negative."""


@dataclass(frozen=True, slots=True)
class MailingList:
    """What the fields of a list say. Links are `http`, `https` and `mailto`, in the order of preference."""

    identifier: str | None
    """Of `List-Id`, in lower case: `dev.lists.example.org`."""
    name: str | None
    links: Mapping[str, tuple[str, ...]]
    """By what they are for: `unsubscribe`, `subscribe`, `post`, `help`, `archive`, `owner`."""
    one_click: bool
    """Whether a POST to the https link of `unsubscribe` suffices (RFC 8058)."""
    closed: bool
    """Nobody may post (`List-Post: NO`)."""


_LINKS: Final = ("unsubscribe", "subscribe", "post", "help", "archive", "owner")


def hops(headers: Headers) -> tuple[Hop, ...]:
    """The hops of a message, the last (which stands on top) first; at most 100. Never raises on content; linear."""
    values = headers.get_all_raw("received")[:MAX_HOPS]
    found = [parse_received(value) for value in values]
    return tuple(_with_delay(found))


def _with_delay(found: list[Hop]) -> Iterator[Hop]:
    for hop, before in zip(found, (*found[1:], None), strict=True):
        at, earlier = hop.at, None if before is None else before.at
        delay = None if at is None or earlier is None else at - earlier
        yield replace(hop, delay=delay)


def parse_received(value: bytes) -> Hop:
    """One `Received` value as it stands in the message. Never raises; looks at its first 4 KiB."""
    text = decode_words(text_of(unfold(value[:_MAX_FIELD])))
    said, _, date = text.rpartition(";")
    if not said:
        said, date = text, ""
    clauses: dict[str, str] = {}
    comments: dict[str, list[str]] = {}
    here = ""
    waiting = False
    for number, item in enumerate(_ITEM.finditer(said)):
        if number == _MAX_CLAUSES:
            break
        word, comment = item["word"], item["comment"]
        if comment is not None:
            comments.setdefault(here, []).append(comment)
        elif waiting and word.lower() == "microsoft":
            continue  # `with Microsoft SMTP Server`
        elif waiting:
            clauses.setdefault(here, word.strip('"<>')[:_MAX_TEXT])
            waiting = False
        elif word.lower() in _CLAUSES and word.lower() not in clauses:
            here, waiting = word.lower(), True
    beside = _HELO.sub("", " ".join(comments.get("from", ())))
    told = " ".join((*comments.get("from", ()), *comments.get("with", ())))
    protocol = clauses.get("with")
    kind = None if protocol is None else _PROTOCOL.fullmatch(protocol)
    return Hop(
        sender=clauses.get("from"),
        address=_address(beside, clauses.get("from", "")),
        receiver=clauses.get("by"),
        protocol=None if protocol is None else protocol.upper(),
        encrypted=(kind is not None and bool(kind[1])) or _TLS.search(told) is not None,
        authenticated=kind is not None and bool(kind[2]),
        identifier=clauses.get("id"),
        recipient=clauses.get("for"),
        at=parse_date(date.strip()) if date.strip() else None,
        delay=None,
    )


def _address(*texts: str) -> IPv4Address | IPv6Address | None:
    """The first address in brackets, else the first in the open: the comment comes before the name, which may lie."""
    for pattern in (_ADDRESS, _BARE_ADDRESS):
        for text in texts:
            for found in pattern.finditer(text):
                try:
                    return ip_address(found[1])
                except ValueError:
                    continue
    return None


def mailing_list(headers: Headers) -> MailingList | None:
    """What a message says of its list, None when it says nothing. Never raises on content; linear."""
    links = {name: tuple(_links(headers.get_all(f"list-{name}"))) for name in _LINKS}
    links = {name: found for name, found in links.items() if found}
    value = headers.get("list-id")
    post = headers.get("list-post")
    if value is None and post is None and not links:
        return None
    identifier, name = (None, None) if value is None else _identifier(value[:_MAX_FIELD])
    one_click = (headers.get("list-unsubscribe-post") or "").strip().lower() == "list-unsubscribe=one-click"
    secure = any(link[:6].lower() == "https:" for link in links.get("unsubscribe", ()))
    return MailingList(
        identifier=identifier,
        name=name,
        links=MappingProxyType(links),
        one_click=one_click and secure,
        closed=post is not None and post.partition("(")[0].strip().upper() == "NO",
    )


def _identifier(value: str) -> tuple[str | None, str | None]:
    """The id and the name of a list. Some programs write the id without its brackets."""
    value = value.strip()
    found = _LIST_ID.search(value)
    if found is not None:
        name = value[: found.start()].strip().strip('"').strip()
        return found[1].lower(), name[:_MAX_TEXT] or None
    if value and "." in value and not any(map(str.isspace, value)) and not {"<", ">"} & set(value):
        return value[:_MAX_TEXT].lower(), None
    return None, value[:_MAX_TEXT] or None


def _links(values: Iterable[str]) -> Iterator[str]:
    """URLs in angle brackets, white space within them left out (RFC 2369 §2); without any brackets the value itself."""
    given = 0
    for value in values:
        value = value[: _MAX_FIELD * 4]
        for text in _ANGLED.findall(value) or (value,):
            url = "".join(text.split())
            if given < MAX_LIST_LINKS and len(url) <= _MAX_URL and _URL.fullmatch(url) is not None:
                given += 1
                yield url
