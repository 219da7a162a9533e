"""HTML from outside made safe to hand on (inbound §11): an allow-list of tags and attributes, no remote content.

The sanitiser builds a document tree, whose making takes quadratic time on markup that nests for the sake of it. So what
the nesting would cost is estimated first, in one linear pass, and such markup is not served as HTML at all.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import nh3

from postroom.mail import body, mime

MAX_MARKUP: Final = 1024 * 1024
"""Characters of markup that are read."""

_TREE_BUDGET: Final = 20_000_000
_FORMAT_BUDGET: Final = 1_000_000

_TAGS: Final = frozenset(
    [
        "a",
        "abbr",
        "b",
        "bdi",
        "bdo",
        "blockquote",
        "br",
        "caption",
        "center",
        "cite",
        "code",
        "col",
        "colgroup",
        "dd",
        "del",
        "details",
        "dfn",
        "div",
        "dl",
        "dt",
        "em",
        "figcaption",
        "figure",
        "font",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "i",
        "img",
        "ins",
        "kbd",
        "li",
        "mark",
        "ol",
        "p",
        "pre",
        "q",
        "s",
        "samp",
        "small",
        "span",
        "strike",
        "strong",
        "sub",
        "summary",
        "sup",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "time",
        "tr",
        "tt",
        "u",
        "ul",
        "var",
        "wbr",
    ]
)
_DROPPED: Final = frozenset(
    [
        "script",
        "style",
        "title",
        "noscript",
        "template",
        "iframe",
        "frame",
        "frameset",
        "object",
        "embed",
        "applet",
        "svg",
        "math",
        "select",
        "textarea",
        "button",
    ]
)
_ATTRIBUTES: Final[dict[str, set[str]]] = {
    "*": {"lang", "title", "dir"},
    "a": {"href"},
    "img": {"src", "alt", "width", "height"},
    "td": {"colspan", "rowspan", "align", "valign", "width"},
    "th": {"colspan", "rowspan", "align", "valign", "width"},
    "table": {"width", "border", "cellpadding", "cellspacing", "align"},
    "col": {"span", "width"},
    "colgroup": {"span", "width"},
    "ol": {"start", "type"},
    "li": {"value"},
    "time": {"datetime"},
}
_SCHEMES: Final = frozenset({"http", "https", "mailto", "tel", "cid"})
_LINK: Final = re.compile(r"\s*(?:https?|mailto|tel):", re.IGNORECASE)
_INLINE_IMAGE: Final = re.compile(r"\s*cid:", re.IGNORECASE)
_TAG: Final = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]{0,15})")
_VOID: Final = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"]
)
# An open one is closed by the next of its kind, so that any number of them nests once.
_SELF_CLOSING: Final = frozenset(
    ["p", "li", "dt", "dd", "tr", "td", "th", "thead", "tbody", "tfoot", "option", "colgroup"]
)
_FORMATTING: Final = frozenset(
    ["a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"]
)


def safe_html(raw: bytes) -> str | None:
    """The HTML body of a message, sanitised; None when there is none, or none that can be served."""
    found = body.html_body(raw, mime.parse(raw))
    return None if found is None else sanitise(found.text)


def sanitise(markup: str) -> str | None:
    """Safe HTML, or None for markup that is not worth its nesting. Takes milliseconds for long markup: not for the
    event loop. Releases the interpreter for most of it.
    """
    markup = markup[:MAX_MARKUP]
    if _is_costly(markup):
        return None
    return nh3.clean(
        markup,
        tags=set(_TAGS),
        clean_content_tags=set(_DROPPED),
        attributes=_ATTRIBUTES,
        attribute_filter=_filter,
        strip_comments=True,
        link_rel="noopener noreferrer nofollow",
        url_schemes=set(_SCHEMES),
    )


def _filter(tag: str, attribute: str, value: str) -> str | None:
    if attribute == "href":
        return value if _LINK.match(value) else None
    if attribute == "src":
        return value if _INLINE_IMAGE.match(value) else None
    return value


def _is_costly(markup: str) -> bool:
    """Whether building the tree would take steps beyond the budget: those open at each tag, all together."""
    opened: Counter[str] = Counter()
    depth = formats = tree_cost = format_cost = 0
    for slash, written in _TAG.findall(markup):
        tag = written.lower()
        if tag in _VOID:
            continue
        formatting = tag in _FORMATTING
        if slash:
            if opened[tag]:
                opened[tag] -= 1
                depth -= 1
                formats -= formatting
        elif tag not in _SELF_CLOSING or not opened[tag]:
            opened[tag] += 1
            depth += 1
            formats += formatting
        tree_cost += depth
        format_cost += formats
        if tree_cost > _TREE_BUDGET or format_cost > _FORMAT_BUDGET:
            return True
    return False
