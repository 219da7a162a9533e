"""From a parsed message to what an agent reads: text, safe HTML, what is new (inbound §10–§14).

Edge rows B4, B7, B9, B11; decision D26. Pure, never raises on content, linear in the size of the message.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from html import escape
from typing import Final

from postroom.mail import cms, tnef
from postroom.mail.body import (
    HTML_LIMIT,
    TEXT_LIMIT,
    BodyParts,
    NumberedPart,
    body_parts,
    cut_text,
    filename,
    part_text,
    snippet,
)
from postroom.mail.clearsigned import unwrapped
from postroom.mail.flowed import unflow
from postroom.mail.html import MAX_LINKS, Html, Link, read_html, sanitise
from postroom.mail.invisible import TOLERATED_ZERO_WIDTH, Stripped, strip_invisible
from postroom.mail.mime import Message, Part, parse
from postroom.mail.protection import protection
from postroom.mail.quotes import TooManyCandidates, new_text
from postroom.mail.transfer import decoded

EXTRACTED_LIMIT: Final = 256 * 1024
"""Octets of new text that are kept."""
# What costs as much as a tag, some four microseconds, and how many of those other things cost.
_CHARACTERS_A_TAG: Final = 32
_FLOWED_LINES_A_TAG: Final = 8
_TAGS_AN_ATTRIBUTE: Final = 6
_TAGS_A_CANDIDATE: Final = 5
_CUTS: Final = 4
_MAX_WRAPPED: Final = 3  # signed in signed


class TooMuchToRead(Exception):
    """Reading this takes longer than the caller has."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a message says. All texts are free of hidden characters, U+0000 and lone surrogates."""

    text: str
    html: str | None
    """Safe to hand on; None when there is none, or none that can be served."""
    extracted_text: str
    """What is new: without quoted messages and signature; never empty when `text` is not."""
    snippet: str
    truncated: bool
    """Something did not fit: `text` and `html` are cut."""
    clean: bool
    """False when bytes could not be decoded (B5), or markup was too nested to be read properly."""
    hidden: bool
    """Something was hidden from the reader's eye (B11)."""
    encrypted: bool
    """There is nothing to read (B9)."""
    links: tuple[Link, ...]
    content_ids: frozenset[str]
    """Of parts that the HTML shows as images (B7)."""


EMPTY: Final = Reading("", None, "", "", False, True, False, False, (), frozenset())
ENCRYPTED: Final = replace(EMPTY, encrypted=True)


def read(
    raw: bytes,
    message: Message | Part,
    limit: int = TEXT_LIMIT,
    *,
    effort: int | None = None,
    serve: bool = True,
) -> Reading:
    """Read the body of a message, its text at most `limit` octets of UTF-8. `serve` asks for its HTML.

    `effort` is how much work may be done, in units of a tag of HTML, some four microseconds; what takes more raises
    `TooMuchToRead`.
    """
    source = _source(raw, message)
    if source is None:
        return ENCRYPTED
    return _Reader(*source, limit, effort, serve).read()


def safe_html(raw: bytes, *, remote_images: bool = False) -> str | None:
    """The HTML body of a message, sanitised; None when there is none, or none that can be served."""
    source = _source(raw, parse(raw))
    return None if source is None else _Reader(*source, TEXT_LIMIT, None, True, remote_images=remote_images).html()


def _source(raw: bytes, message: Message | Part) -> tuple[bytes, BodyParts] | None:
    """The bytes that hold the body and its parts, which may be within an opaque signature; None when it is encrypted
    (B9).
    """
    root = message if isinstance(message, Part) else message.root
    for _ in range(_MAX_WRAPPED):
        found = protection(raw, root)
        if found.encrypted:
            return None
        inner = None if found.part is None else cms.signed_content(decoded(raw, found.part))
        if inner is None:
            break
        raw, root = inner, parse(inner).root
    return raw, body_parts(root)


@dataclass(slots=True)
class _Piece:
    """A body part: its plain text, or what was read of its HTML."""

    text: str
    page: Html | None = None


class _Reader:
    def __init__(
        self,
        raw: bytes,
        parts: BodyParts,
        limit: int,
        effort: int | None,
        serve: bool,
        *,
        remote_images: bool = False,
    ) -> None:
        self._raw = raw
        self._parts = parts
        self._limit = limit
        self._left = effort
        self._serve = serve
        self._remote_images = remote_images
        self._pieces: dict[tuple[int, ...], _Piece] = {}
        self._truncated = False
        self._clean = True
        self._widths = {"plain": 0, "html": 0}
        self._hidden = False

    def read(self) -> Reading:
        plain = self._joined(item for item in self._parts.text if item.part.subtype == "plain")
        texts, pages = _texts(self._parts.text), _texts(self._parts.html)
        mixed = any(item.part.subtype == "html" for item in texts)
        # Its text is needed when there is no other, or in between, or before what is marked as quoted.
        needed = mixed or not plain.strip() or len(pages) > 1
        for item in (*texts, *pages):
            if item.part.subtype == "html":
                self._page(item, with_text=needed)
        text = self._joined(texts) if mixed else plain
        if not text.strip() and pages:
            text = self._joined(pages)
        if not text.strip():
            text = self._unpacked() or text
        # Where nothing is quoted, the new text is the text, which the writer keeps once.
        text, over = cut_text(text.rstrip("\n"), self._limit)
        self._truncated |= over
        html = self.html() if self._serve else None
        found = [piece.page for piece in self._pieces.values() if piece.page is not None]
        extracted, _ = cut_text(self._new_text(text, self._marked(pages)), EXTRACTED_LIMIT)
        return Reading(
            text=text,
            html=html,
            extracted_text=extracted,
            snippet=snippet(extracted),
            truncated=self._truncated,
            clean=self._clean and not any(page.withheld for page in found),
            hidden=self._hidden or max(self._widths.values()) > TOLERATED_ZERO_WIDTH,
            encrypted=False,
            links=tuple(link for page in found for link in page.links)[:MAX_LINKS],
            content_ids=frozenset().union(*(page.content_ids for page in found)),
        )

    def _unpacked(self) -> str:
        """Text of a message whose body is in TNEF alone (B6)."""
        for item in self._parts.attachments:
            named = tnef.says_tnef(item.part.content_type, filename(item.part))
            if not named or not tnef.is_tnef(decoded(self._raw, item.part, 64)):
                continue
            if self._left is not None:
                raise TooMuchToRead
            found = tnef.unpack(decoded(self._raw, item.part))
            if found is None or not (found.text or found.html):
                continue
            if found.html is None:
                return self._visible(strip_invisible(found.text or ""), "plain")
            page = read_html(found.html, self._limit, serve=self._serve)
            self._took(page)
            self._pieces[item.path] = _Piece("", page)
            return self._visible(strip_invisible(found.text), "plain") if found.text else page.text
        return ""

    def html(self) -> str | None:
        """The HTML of the body, parts one after the other; plain ones between them are escaped (D26)."""
        pages = _texts(self._parts.html)
        if not any(item.part.subtype == "html" for item in pages):
            packed = next((piece.page for piece in self._pieces.values() if piece.page is not None), None)
            return None if packed is None or packed.html is None else self._fitting(packed.html)
        out: list[str] = []
        for item in pages:
            if item.part.subtype == "html":
                safe = self._page(item, with_text=False).html
                if safe is None:
                    return None
                out.append(safe)
            elif text := self._plain(item).strip("\n"):
                out.append(f"<div>{'<br>'.join(escape(text, quote=False).split(chr(10)))}</div>")
        html = out[0] if len(out) == 1 else sanitise("\n".join(out), remote_images=self._remote_images)
        return None if html is None else self._fitting(html)

    def _fitting(self, html: str) -> str | None:
        """At most 1 MiB of octets, and still whole markup."""
        for _ in range(_CUTS):
            size = len(html) if html.isascii() else len(html.encode("utf-8", "replace"))
            if size <= HTML_LIMIT:
                return html
            self._truncated = True
            shorter = sanitise(html[: len(html) * HTML_LIMIT // size * 15 // 16], remote_images=self._remote_images)
            if shorter is None:
                return None
            html = shorter
        return None

    def _joined(self, items: Iterable[NumberedPart]) -> str:
        """Text of parts one after the other, each on lines of its own."""
        pieces: list[str] = []
        room = self._limit
        for item in items:
            if room <= 0:
                self._truncated |= item.part.body_end > item.part.body_start
                continue
            text = self._plain(item) if item.part.subtype == "plain" else self._page(item, with_text=True).text
            if pieces and not pieces[-1].endswith("\n"):
                pieces.append("\n")
            pieces.append(text)
            room -= len(text)
        return "".join(pieces)

    def _plain(self, item: NumberedPart) -> str:
        piece = self._pieces.get(item.path)
        if piece is None:
            text, cut, clean = part_text(self._raw, item.part, self._limit)
            if item.part.params.get("format", "").lower() == "flowed":
                self._spend(text.count("\n") // _FLOWED_LINES_A_TAG)
                text = unflow(text, delete_space=item.part.params.get("delsp", "").lower() == "yes")
            self._note(cut, clean)
            piece = self._pieces[item.path] = _Piece(self._visible(strip_invisible(unwrapped(text)), "plain"))
        return piece.text

    def _page(self, item: NumberedPart, *, with_text: bool) -> Html:
        piece = self._pieces.get(item.path)
        if piece is None or piece.page is None:
            markup, cut, clean = part_text(self._raw, item.part, HTML_LIMIT)
            self._note(cut, clean)
            tags = markup.count("<") + _TAGS_AN_ATTRIBUTE * markup.count("=")
            self._spend(max(tags, len(markup) // _CHARACTERS_A_TAG))
            page = read_html(
                markup, self._limit, serve=self._serve, with_text=with_text, remote_images=self._remote_images
            )
            self._took(page)
            piece = self._pieces[item.path] = _Piece("", page)
        assert piece.page is not None
        return piece.page

    def _took(self, page: Html) -> None:
        self._truncated |= page.truncated
        self._hidden |= page.hidden
        self._widths["html"] += page.zero_width

    def _spend(self, tags: int) -> None:
        if self._left is not None:
            self._left -= tags
            if self._left < 0:
                raise TooMuchToRead

    def _new_text(self, text: str, marked: str | None) -> str:
        if self._left is None:
            return new_text(text, marked)
        try:
            return new_text(text, marked, candidates=self._left // _TAGS_A_CANDIDATE)
        except TooManyCandidates:
            raise TooMuchToRead from None

    def _note(self, cut: bool, clean: bool) -> None:
        self._truncated |= cut
        self._clean &= clean

    def _visible(self, stripped: Stripped, kind: str) -> str:
        self._widths[kind] += stripped.zero_width
        self._hidden |= stripped.marked
        return stripped.text

    def _marked(self, pages: list[NumberedPart]) -> str | None:
        """Text of the HTML before what is marked as quoted; None without a mark (§14 step 1)."""
        before: list[str] = []
        for item in pages:
            if item.part.subtype == "plain":
                before.append(self._plain(item))
                continue
            page = self._page(item, with_text=True)
            if page.new_text is not None:
                return "\n".join((*before, page.new_text))
            before.append(page.text)
        return None


def _texts(items: Iterable[NumberedPart]) -> list[NumberedPart]:
    return [item for item in items if item.part.type == "text"]
