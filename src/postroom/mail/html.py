"""HTML from outside (inbound §11–§13): what of it may be handed on, and what a reader of it sees.

`html_scan` rewrites the markup first, so that what follows takes time in proportion to its size; what nests for the
sake of it goes no further. Then a document tree loses what is hidden and remote, and an allow-list has the last word.
Everything here takes milliseconds for long markup: not for the event loop.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import nh3
from selectolax.lexbor import LexborHTMLParser, LexborNode

from postroom.mail.colours import BLACK, WHITE, Paint, alike
from postroom.mail.css import PLAIN, Look
from postroom.mail.html_scan import ALLOWED_ATTRIBUTES, ALLOWED_TAGS, Scan, scan
from postroom.mail.html_text import html_to_text
from postroom.mail.invisible import strip_invisible, visible
from postroom.mail.quote_lines import is_forward_line

MAX_MARKUP: Final = 1024 * 1024
"""Characters of markup that are read."""
MAX_LINKS: Final = 500
MAX_IMAGES: Final = 500
_MAX_URL: Final = 2048
_MAX_LINK_TEXT: Final = 512
_ROUNDS: Final = 4
_FEW_REFERENCES: Final = 500
_REFERENCES: Final = ("&lt;", "&gt;", "&quot;", "&nbsp;", "&amp;")  # as they are written in HTML §13.3
_MAX_MARKS: Final = 32

_DROPPED: Final = frozenset(
    [
        *("script", "style", "title", "noscript", "template", "iframe", "frame", "frameset", "object", "embed"),
        *("applet", "svg", "math", "select", "textarea", "button"),
    ]
)
_LINK: Final = re.compile(r"\s*(?:https?|mailto|tel):", re.IGNORECASE)
_INLINE_IMAGE: Final = re.compile(r"\s*cid:", re.IGNORECASE)
_ANY_IMAGE: Final = re.compile(r"\s*(?:cid|https?):", re.IGNORECASE)
# What may hide something in markup that is too nested to say.
_HIDING: Final = re.compile(
    r"display\s?:\s?none|visibility\s?:\s?(?:hidden|collapse)|opacity\s?:\s?\.?0|font-size\s?:\s?\.?[01](?!\d)"
    r"|color\s?:\s?(?:transparent|white|#fff)|overflow\s?:\s?hidden|\bhidden\b|-\d{4}(?:px|em)",
    re.IGNORECASE,
)
_LINK_COLOUR: Final = (0, 0, 238)


class Link(NamedTuple):
    """A link to somewhere else, as a reader sees it and as it is."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class Html:
    """What was read of HTML. `text` is what its visible part says (§13)."""

    html: str | None
    """Safe to hand on; None if it was not asked for, or cannot be served."""
    text: str
    new_text: str | None
    """The text before what a mail program marked as quoted (§14 step 1); None without such a mark."""
    hidden: bool
    """What was left out as hidden held more than space, or there were characters that only hide (§12)."""
    zero_width: int
    """Zero-width characters that were taken out."""
    truncated: bool
    """The markup was longer than is read."""
    withheld: bool
    """The markup nests for the sake of it: nothing was served, and `text` may hold what is hidden."""
    links: tuple[Link, ...]
    content_ids: frozenset[str]
    """Of the parts that images show, without angle brackets."""


def sanitise(markup: str, *, remote_images: bool = False) -> str | None:
    """Safe HTML, or None for markup that is not worth its nesting (§11).

    `remote_images` leaves images from elsewhere in, for a reader who asks for them; who fetches them tells the sender.
    The result of sanitising a result is the same.
    """
    scanned = scan(markup[:MAX_MARKUP])
    if scanned.costly:
        return None
    body = _visible_body(scanned)[0]
    return _clean(visible(body.inner_html or ""), remote_images)


def read_html(
    markup: str, limit: int = MAX_MARKUP, *, serve: bool = True, with_text: bool = True, remote_images: bool = False
) -> Html:
    """Everything that is known of HTML, its texts about `limit` characters at most.

    `serve` asks for safe HTML; without `with_text` the text is left out, unless some of it is marked as quoted.
    """
    truncated = len(markup) > MAX_MARKUP
    markup = markup[:MAX_MARKUP]
    scanned = scan(markup)
    if scanned.costly:
        shown = strip_invisible(html_to_text(markup, limit))
        hidden = scanned.remarks or shown.marked or _HIDING.search(markup) is not None
        return Html(None, shown.text, None, hidden, shown.zero_width, truncated, True, (), frozenset())
    body, hidden = _visible_body(scanned)
    inner, width, marked = strip_invisible(body.inner_html or "")
    html = _clean(inner, remote_images) if serve else None
    text = html_to_text(inner, limit) if with_text or scanned.quotes else ""
    links, content_ids = _links(body, inner), _content_ids(body, inner)
    new_text = None
    if scanned.quotes:
        changed = _drop_quotes(body)
        new_text = html_to_text(visible(body.inner_html or ""), limit) if changed else text
    return Html(
        html=html,
        text=text,
        new_text=new_text,
        hidden=hidden or marked or scanned.remarks,
        zero_width=width,
        truncated=truncated,
        withheld=serve and html is None,  # what is read differently each time is nothing to hand on
        links=links,
        content_ids=content_ids,
    )


def _visible_body(scanned: Scan) -> tuple[LexborNode, bool]:
    """The body of the tree without what is hidden, and whether that held anything."""
    tree = LexborHTMLParser(scanned.markup)
    body = tree.body
    assert body is not None  # plain markup has no frameset, without which the standard makes a body
    if not scanned.looks and scanned.base == PLAIN:
        return body, False
    if scanned.base.hides:
        hidden = _says_something(body)
        body = LexborHTMLParser("").body
        assert body is not None
        return body, hidden
    return body, _hide(body, scanned.looks, scanned.base)


class _State(NamedTuple):
    """What text inherits."""

    ink: Paint
    ground: Paint
    tiny: bool
    unseen: bool

    @property
    def hides(self) -> bool:
        return self.tiny or self.unseen or alike(self.ink, self.ground)

    def with_look(self, look: Look) -> "_State":
        return _State(
            look.ink or self.ink,
            look.ground or self.ground,
            self.tiny if look.tiny is None else look.tiny,
            self.unseen if look.unseen is None else look.unseen,
        )


def _hide(body: LexborNode, looks: tuple[Look, ...], base: Look) -> bool:
    """Take hidden elements and texts out of the tree; whether they held anything but space (§12)."""
    found = False
    state = _State(BLACK, WHITE, False, False).with_look(base)
    hides = state.hides
    above: list[tuple[LexborNode | None, _State]] = []
    node = body.first_child
    while node is not None or above:
        if node is None:
            node, state = above.pop()
            hides = state.hides
            continue
        following = node.next
        if node.is_element_node:
            attributes = node.attributes
            index = attributes.get("look") if attributes else None
            look = PLAIN if index is None or not looks else looks[int(index)]
            if look.hides:
                found = found or _says_something(node)
                node.decompose()
            elif (first := node.first_child) is not None:
                above.append((following, state))
                if look.ink is None and "href" in attributes:
                    state = state._replace(ink=_LINK_COLOUR)
                if look is not PLAIN:
                    state = state.with_look(look)
                hides = state.hides
                node = first
                continue
        elif hides:
            found = found or _says_something(node)
            node.decompose()
        node = following
    return found


def _says_something(node: LexborNode) -> bool:
    return bool(strip_invisible(node.text(deep=True)).text.strip())


def _links(body: LexborNode, inner: str) -> tuple[Link, ...]:
    if " href=" not in inner:
        return ()
    found: list[Link] = []
    for node in body.css("a[href]"):
        url = "".join((node.attributes.get("href") or "").split())
        if _LINK.match(url) and len(url) <= _MAX_URL:
            found.append(Link(" ".join(visible(node.text(deep=True)[:_MAX_LINK_TEXT]).split()), visible(url)))
            if len(found) == MAX_LINKS:
                break
    return tuple(found)


def _content_ids(body: LexborNode, inner: str) -> frozenset[str]:
    if " src=" not in inner:
        return frozenset()
    found: set[str] = set()
    for node in body.css("img[src]"):
        source = node.attributes.get("src") or ""
        if (match := _INLINE_IMAGE.match(source)) and len(found) < MAX_IMAGES:
            found.add(source[match.end() :].strip()[:_MAX_URL])
    return frozenset(found)


def _drop_quotes(body: LexborNode) -> bool:
    """Take out what a mail program put under the new text; False if there is nothing to take out.

    What stands in a quoting block becomes lines with `>`, so that answers between such blocks are kept.
    """
    lines: list[LexborNode] = []
    cut: LexborNode | None = None
    for mark in body.css("[quote=cut], [quote=wrap], [quote=line]")[:_MAX_MARKS]:
        kind = mark.attributes.get("quote")
        if kind == "wrap" and mark.css_first("[quote=block]") is not None and not _is_forwarded(mark):
            continue
        if kind != "line" or _is_forwarded(mark):
            cut = mark
            break
        lines.append(mark)
    if cut is not None:
        _cut(body, cut)
    for line in reversed(lines):  # what is within another one first
        line.decompose()
    return cut is not None or bool(lines)


def _is_forwarded(mark: LexborNode) -> bool:
    text = mark.text(deep=True)[:400].strip()
    return is_forward_line(text[:100].split("\n", 1)[0]) or "forwarded message" in text[:60].lower()


def _cut(body: LexborNode, mark: LexborNode) -> None:
    """Take `mark` out and all that comes after it."""
    node: LexborNode | None = mark
    while node is not None and node != body:
        while (following := node.next) is not None:
            following.decompose()
        node = node.parent
    mark.decompose()


@lru_cache(maxsize=2)
def _cleaner(remote_images: bool) -> nh3.Cleaner:
    image = _ANY_IMAGE if remote_images else _INLINE_IMAGE

    def filtered(tag: str, attribute: str, value: str) -> str | None:
        if attribute == "href":
            return value if _LINK.match(value) else None
        if attribute == "src":
            return value if image.match(value) else None
        return value

    return nh3.Cleaner(
        tags=set(ALLOWED_TAGS),
        clean_content_tags=set(_DROPPED),
        attributes={tag: set(names) for tag, names in ALLOWED_ATTRIBUTES.items()},
        attribute_filter=filtered,
        strip_comments=True,
        link_rel="noopener noreferrer nofollow",  # as `html_scan` writes it
        url_schemes={"http", "https", "mailto", "tel", "cid"},
    )


def _clean(inner: str, remote_images: bool) -> str | None:
    """The allow-list pass, repeated until it changes nothing; None if it never comes to that."""
    cleaner = _cleaner(remote_images)
    inner = inner.lstrip(" \t\n\f\r")  # which a parser drops at the beginning (HTML §13.2.6.4.3)
    clean = _pass(cleaner, inner)
    if clean == inner:
        return clean  # what one parser writes as another one reads it is read so again
    for _ in range(_ROUNDS):
        body = LexborHTMLParser(clean).body
        again = _pass(cleaner, body.inner_html or "") if body is not None else ""
        if again == clean:
            return clean
        clean = again
    return None


def _pass(cleaner: nh3.Cleaner, inner: str) -> str:
    """One pass over what lexbor wrote.

    The serialiser of nh3 takes quadratic time for references in one text, so that where there are many, characters
    stand for them that occur nowhere else and mean nothing (Unicode §23.7).
    """
    if inner.count("&") <= _FEW_REFERENCES:
        return cleaner.clean(inner)
    free = (char for char in map(chr, range(0xFDD0, 0xFDF0)) if char not in inner)
    stand_ins = list(zip(_REFERENCES, free, strict=False))
    if len(stand_ins) < len(_REFERENCES):
        return ""
    for reference, char in stand_ins:
        inner = inner.replace(reference, char)
    clean = cleaner.clean(inner)
    for reference, char in stand_ins:
        clean = clean.replace(char, reference)
    return clean
