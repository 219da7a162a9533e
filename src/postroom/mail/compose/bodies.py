"""What is put under the words of the author (outbound §6.5, §6.8), in that order, as text and as HTML."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from postroom.mail.address import Address
from postroom.mail.compose.errors import ComposeError, Reason
from postroom.mail.compose.fields import format_date
from postroom.mail.html_text import html_to_text

FORWARD_LINE: Final = "---------- Forwarded message ---------"

_BODY_END: Final = re.compile(r"</(body|html)\s*+>", re.IGNORECASE)
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class Body:
    """Text and HTML of a message; None where there is none. HTML that is put in is the caller's to sanitise."""

    text: str | None = None
    html: str | None = None


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The message that is handed on (C6). `body.html` is sanitised."""

    from_: Sequence[Address]
    date: datetime | None
    subject: str
    to: Sequence[Address]
    body: Body


@dataclass(frozen=True, slots=True)
class Link:
    """A file that is fetched instead of attached (outbound §6.8)."""

    filename: str
    size: int
    """Octets."""
    url: str
    expires_at: datetime


def assemble(
    body: Body,
    *,
    forwarded: Forwarded | None = None,
    signature: Body | None = None,
    links: Sequence[Link] = (),
    disclosure: str | None = None,
    unsubscribe_url: str | None = None,
) -> Body:
    """The bodies to be sent: words, transfer note, signature, links, disclosure (E8), unsubscribe line (G9).

    Missing text is derived from the HTML; missing HTML is not invented, so without it only text is made. The
    unsubscribe line is left out of a body that already holds the URL.
    """
    text = html_to_text(body.html or "") if body.text is None else body.text
    html = body.html
    blocks = [_forwarded(forwarded), _signature(signature), _links(links), _disclosure(disclosure)]
    for block in blocks:
        if block is not None:
            text = _append_text(text, block.text or "")
            html = None if html is None else _append_html(html, block.html or "")
    if unsubscribe_url is not None:
        if unsubscribe_url not in text:
            text = _append_text(text, f"Unsubscribe: {unsubscribe_url}")
        if html is not None and unsubscribe_url not in html and escape(unsubscribe_url) not in html:
            html = _append_html(html, f'<p><a href="{escape(unsubscribe_url)}">Unsubscribe</a></p>')
    return Body(text, html)


def _append_text(text: str, block: str) -> str:
    if not block:
        return text
    return f"{text.rstrip()}\n\n{block}" if text.strip() else block


def _append_html(html: str, block: str) -> str:
    """`block` at the end of the document's body, or of a fragment."""
    at = len(html)
    for end in _BODY_END.finditer(html):
        if end[1].lower() == "body" or at == len(html):
            at = end.start()
    return html[:at] + block + html[at:]


def _signature(signature: Body | None) -> Body | None:
    if signature is None or not (signature.text or signature.html):
        return None
    text = html_to_text(signature.html or "") if signature.text is None else signature.text
    html = _as_html(text) if signature.html is None else signature.html
    return Body(f"-- \n{text}", f"<div>-- <br>{html}</div>")


def _disclosure(disclosure: str | None) -> Body | None:
    return Body(disclosure, f"<p>{_as_html(disclosure)}</p>") if disclosure else None


def _links(links: Sequence[Link]) -> Body | None:
    if not links:
        return None
    lines, items = [], []
    for link in links:
        name, until = _one_line(link.filename), _rfc3339(link.expires_at)
        facts = f"{link.size} bytes, until {until}"
        lines.append(f"{name} ({facts}): {link.url}")
        items.append(f'<p><a href="{escape(link.url)}">{escape(name)}</a> ({escape(facts)})</p>')
    return Body("\n".join(lines), "".join(items))


def _rfc3339(moment: datetime) -> str:
    if moment.utcoffset() is None:
        raise ComposeError("links", Reason.SYNTAX)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _forwarded(forwarded: Forwarded | None) -> Body | None:
    if forwarded is None:
        return None
    lines = [
        FORWARD_LINE,
        f"From: {_people(forwarded.from_)}",
        f"Date: {'' if forwarded.date is None else format_date(forwarded.date)}",
        f"Subject: {_one_line(forwarded.subject)}",
        f"To: {_people(forwarded.to)}",
    ]
    original = forwarded.body
    text = html_to_text(original.html or "") if original.text is None else original.text
    html = _as_html(text) if original.html is None else original.html
    note = "<br>".join(escape(line) for line in lines)
    return Body("\n".join((*lines, "", text)), f"<div>{note}<br><br></div><blockquote>{html}</blockquote>")


def _people(addresses: Sequence[Address]) -> str:
    return ", ".join(_one_line(f"{item.name} <{item.address}>" if item.name else item.address) for item in addresses)


def _one_line(text: str) -> str:
    return _CONTROLS.sub(" ", text)


def _as_html(text: str) -> str:
    return "<br>".join(escape(text).splitlines())


def choose_links(size: int, attachments: Sequence[int], limit: int, cost: int) -> tuple[int, ...]:
    """Which attachments become links so that a message of `size` octets fits in `limit` (outbound §6.8, G5).

    `attachments` are their encoded sizes, `cost` what one link adds to the bodies; the largest go first. Indices, in
    that order, empty when the message fits as it is. ComposeError when it does not fit even with links alone.
    """
    chosen: list[int] = []
    for at in sorted(range(len(attachments)), key=lambda index: (-attachments[index], index)):
        if size <= limit or attachments[at] <= cost:
            break
        chosen.append(at)
        size += cost - attachments[at]
    if size > limit:
        raise ComposeError("attachments", Reason.TOO_LONG)
    return tuple(chosen)
