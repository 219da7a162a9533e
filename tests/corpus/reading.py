"""Expectations of what an agent reads of a message: texts, HTML, links (inbound §11–§15, §20)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from postroom.inbound.describe import describe
from postroom.mail import content, links, mime
from postroom.mail.content import Reading
from postroom.mail.language import language
from postroom.mail.refs import RefRules, extract
from postroom.mail.verification import Verification, find_verification

NOW: Final = datetime(2026, 2, 2, 12, tzinfo=UTC)

Read = Callable[[Reading, bytes], Any]


def reading(raw: bytes) -> Reading:
    return content.read(raw, mime.parse(raw))


def _holds(member: str) -> Callable[[bytes, list[str]], None]:
    def check(raw: bytes, wanted: list[str]) -> None:
        text = getattr(reading(raw), member) or ""
        assert [piece for piece in wanted if piece not in text] == []

    return check


def _lacks(member: str) -> Callable[[bytes, list[str]], None]:
    def check(raw: bytes, unwanted: list[str]) -> None:
        text = getattr(reading(raw), member) or ""
        assert [piece for piece in unwanted if piece in text] == []

    return check


def _is(read: Read) -> Callable[[bytes, Any], None]:
    def check(raw: bytes, wanted: Any) -> None:
        assert read(reading(raw), raw) == wanted

    return check


def _link_facts(member: str) -> Callable[[bytes, Any], None]:
    def check(raw: bytes, wanted: Any) -> None:
        found = getattr(links.link_facts(reading(raw).links), member)
        assert (list(found) if isinstance(found, tuple) else found) == wanted

    return check


def _verification(found: Reading, raw: bytes) -> dict[str, str]:
    handed: Verification | None = find_verification(mime.parse(raw).subject or "", found.extracted_text, found.links)
    if handed is None:
        return {}
    known = {"kind": handed.kind, "code": handed.code, "link": handed.link}
    return {name: value for name, value in known.items() if value is not None}


def _refs(found: Reading, raw: bytes) -> list[list[str]]:
    texts = [("subject", mime.parse(raw).subject or ""), ("body", found.extracted_text)]
    return [[ref.kind, ref.value] for ref in extract(texts, RefRules(uk_vehicle=True))]


CHECKS: Final[dict[str, Callable[[bytes, Any], None]]] = {
    "text": _is(lambda found, raw: found.text.replace("\r\n", "\n")),
    "text_lacks": _lacks("text"),
    "html": _is(lambda found, raw: None if found.html is None else found.html.strip()),
    "html_contains": _holds("html"),
    "html_lacks": _lacks("html"),
    "extracted_text": _is(lambda found, raw: found.extracted_text),
    "extracted_contains": _holds("extracted_text"),
    "extracted_lacks": _lacks("extracted_text"),
    "content_ids": _is(lambda found, raw: sorted(found.content_ids)),
    "links": _is(lambda found, raw: [list(link) for link in found.links]),
    "language": _is(lambda found, raw: language(found.extracted_text) or ""),
    "verification": _is(_verification),
    "refs": _is(_refs),
    "links_total": _link_facts("total"),
    "facts": _is(lambda found, raw: list(describe(b"", raw, NOW).facts)),
    "shown_subject": _is(lambda found, raw: describe(b"", raw, NOW).subject),
    "attachments_seen": _is(lambda found, raw: [part.content_type for part in describe(b"", raw, NOW).attachments]),
    **{name: _link_facts(name) for name in ("deceptive", "addressed", "disguised", "international", "domains")},
}
