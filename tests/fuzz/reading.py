"""Fuzz targets of what agents read (requirements §7): each takes any bytes and checks what must hold for them."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from postroom.mail.html import read_html, sanitise
from postroom.mail.html_scan import ALLOWED_TAGS
from postroom.mail.invisible import strip_invisible
from postroom.mail.quotes import new_text
from postroom.mail.refs import MAX_PER_KIND, MAX_REFS, MAX_VALUE, RefRules, compile_custom, extract

HIDDEN: Final = re.compile(
    "[\u200b\u200c\u2060-\u2064\ufeff\u00ad\u034f\u180e\u115f\u1160\u3164\uffa0\u202a-\u202e\u2066-\u2069"
    "\U000e0000-\U000e007f]"
)
_TAG: Final = re.compile(r"<(/?)([a-z0-9]+)((?: [a-z]+=\"[^\"<>]*\")*)>")
_ATTRIBUTE: Final = re.compile(r" ([a-z]+)=\"([^\"]*)\"")
RULES: Final = RefRules(uk_vehicle=True, custom=(compile_custom("case", r"case-(\d+)"),))


def check_text(text: str) -> None:
    """Valid UTF-8, no U+0000, nothing that hides."""
    text.encode()
    assert "\0" not in text
    assert HIDDEN.search(text) is None
    assert strip_invisible(text).text == text


def check_html(html: str, *, remote_images: bool = False) -> None:
    """Only what the allow-list lets through: looked at as text, not by a parser that might share a fault."""
    check_text(html)
    rest = _TAG.sub("", html)
    assert "<" not in rest
    assert ">" not in rest
    for tag in _TAG.finditer(html):
        assert tag[2] in ALLOWED_TAGS
        for attribute, value in _ATTRIBUTE.findall(tag[3]):
            assert not attribute.startswith("on")
            assert attribute not in ("style", "class", "id", "look", "quote", "srcset")
            if attribute == "href":
                assert re.match(r"\s*(?:https?|mailto|tel):", value, re.IGNORECASE)
            if attribute == "src":
                schemes = "cid|https?" if remote_images else "cid"
                assert re.match(rf"\s*(?:{schemes}):", value, re.IGNORECASE)


def sanitize(data: bytes) -> None:
    """Sanitise, derive text, strip what is hidden."""
    markup = data.decode("utf-8", "replace").replace("\0", "")
    found = read_html(markup)
    check_text(found.text)
    for link in found.links:
        check_text(link.text)
        check_text(link.url)
    if found.new_text is not None:
        check_text(found.new_text)
    if found.html is not None:
        check_html(found.html)
        assert sanitise(found.html) == found.html
        assert sanitise(markup) == found.html
    shown = sanitise(markup, remote_images=True)
    if shown is not None:
        check_html(shown, remote_images=True)
        assert sanitise(shown, remote_images=True) == shown


def quote_strip(data: bytes) -> None:
    """New text is never empty when there is text, and is made of its lines."""
    text = data.decode("utf-8", "replace").replace("\r", "\n")
    marked, _, rest = text.partition("\n\n")
    for found in (new_text(text), new_text(text, marked), new_text(rest, marked)):
        found.encode()
    found = new_text(text)
    assert bool(found) == bool(text.strip())
    assert found == found.strip()
    lines = {line.strip() for line in text.split("\n")}
    assert all(line.strip() in lines for line in found.split("\n"))


def refs_extract(data: bytes) -> None:
    """Bounded numbers of short values in normal form, which are found again."""
    text = data.decode("utf-8", "replace")
    found = extract([("subject", text[:100]), ("body", text)], RULES)
    assert len(found) <= MAX_REFS
    kinds = [ref.kind for ref in found]
    assert all(kinds.count(kind) <= MAX_PER_KIND for kind in set(kinds))
    for ref in found:
        assert 0 < len(ref.value) <= MAX_VALUE
        assert not any(unicodedata.category(char) == "Cc" for char in ref.value)
        assert ref.source in ("subject", "body")
    assert len({(ref.kind, ref.value) for ref in found}) == len(found)
