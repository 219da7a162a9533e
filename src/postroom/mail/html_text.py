"""HTML to plain text (inbound §13) in one linear pass over the markup.

Of mail, what passes here is the markup of the visible tree; and, as it is, markup that is too nested for a tree.
No document tree is built here: every HTML parser that follows the standard takes quadratic time on deep nesting (200 KB
of `<div>` cost a second or more), and plain text needs only the order of tags. Scripts, styles, comments and embedded
objects are dropped, blocks end lines, quotes, lists, links, tables and preformatted text keep their shape.
"""

import re
from html import unescape
from typing import Final

MAX_HTML_CHARS: Final = 1024 * 1024
_MAX_QUOTE_DEPTH: Final = 16
_MAX_LINK_CHARS: Final = 2048
_MAX_ATTRIBUTES: Final = 16 * 1024

_TAG: Final = re.compile(r"</?([a-zA-Z][^\s/>]*+)((?:[^>=]++|=\s*+(?:\"[^\"]*+\"|'[^']*+'|(?![\"'])))*+)>", re.DOTALL)
_ATTRIBUTE: Final = re.compile(r"(?<![^\s/\"'])([^\s=/\"'<>]++)\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s>]++))")
_LONG_REFERENCE: Final = re.compile(r"&#\d{8,}+;?")

_BLOCK_NAMES: Final = (
    "address article aside blockquote body caption center dd details div dl dt fieldset figcaption figure footer form "
    "h1 h2 h3 h4 h5 h6 header hr html legend li main nav ol p pre section summary table tbody tfoot thead tr ul"
)
_SPACED_NAMES: Final = "p h1 h2 h3 h4 h5 h6"
_RAW_TEXT_NAMES: Final = "script style title textarea noscript iframe xmp noembed noframes"
_DROPPED_NAMES: Final = "template object svg math select button audio video canvas applet"
_BLOCKS: Final = frozenset(_BLOCK_NAMES.split())
_SPACED: Final = frozenset(_SPACED_NAMES.split())
_RAW_ENDS: Final = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in _RAW_TEXT_NAMES.split()}
_DROPPED_EDGES: Final = {name: re.compile(rf"<(/?){name}(?=[\s/>])", re.IGNORECASE) for name in _DROPPED_NAMES.split()}
_LINK_SCHEMES: Final = ("http://", "https://", "mailto:")


def html_to_text(markup: str, limit: int = MAX_HTML_CHARS) -> str:
    """Text of `markup`, of which the first 1 Mi characters are read; stops once about `limit` characters are made.

    At most two blank lines stand in a row; the ends are trimmed. Never raises; linear time.
    """
    return _Converter(markup[:MAX_HTML_CHARS], limit).convert()


class _Converter:
    __slots__ = (
        "href",
        "in_cell",
        "limit",
        "line",
        "lines",
        "link_at",
        "lists",
        "made",
        "markup",
        "pending_blank",
        "pre",
        "quoted",
        "quotes",
    )

    def __init__(self, markup: str, limit: int) -> None:
        self.markup = markup
        self.limit = limit
        self.lines: list[str] = []
        self.line: list[str] = []  # pieces of the line being made
        self.made = 0
        self.pending_blank = False
        self.in_cell = False
        self.quotes = 0
        self.quoted = 0  # quote depth of the last line made
        self.pre = 0
        self.lists: list[int] = []  # per open list: next number, or 0 for bullets
        self.href: str | None = None
        self.link_at = 0

    def convert(self) -> str:
        markup, end = self.markup, len(self.markup)
        at = 0
        strict = True
        while at < end and self.made <= self.limit:
            opened = markup.find("<", at)
            if opened < 0:
                self._text(markup[at:])
                break
            if opened > at:
                self._text(markup[at:opened])
            following = markup[opened + 1 : opened + 3]
            if not following or not (following[0] in "!/?" or (following[0].isascii() and following[0].isalpha())):
                self._text("<")
                at = opened + 1
                continue
            if markup.startswith("<!--", opened):
                closed = markup.find("-->", opened + 2)
                at = end if closed < 0 else closed + 3
                continue
            found = _TAG.match(markup, opened) if strict else None
            if found is not None:
                at = self._tag(found[1].lower(), found[2], following[0] == "/", found.end())
                continue
            closed = markup.find(">", opened)
            if closed < 0:
                break  # the end of the text inside a tag
            at = closed + 1
            if following[0] not in "!?" and following[:2] != "</" and following[0] != "/":
                # A quote that never closes: from here on tags end at the next `>`, so that nothing is scanned twice.
                strict = False
            if following[0] not in "!?":
                name = markup[opened + 1 : min(closed, opened + 32)].lstrip("/").split(" ", 1)[0].lower()
                at = self._tag(name, "", following[0] == "/", at)
        self._break()
        return "\n".join(self.lines).strip("\n").strip()

    def _tag(self, name: str, attributes: str, closing: bool, at: int) -> int:
        """Act on a tag that ends before `at`; returns where to go on."""
        if not closing:
            if name in _RAW_ENDS:
                closer = _RAW_ENDS[name].search(self.markup, at)
                return len(self.markup) if closer is None else closer.start()
            if name in _DROPPED_EDGES:
                return self._skip(name, at)
        if name == "br":
            self._break(hard=True)
        elif name in ("td", "th"):
            if not closing:
                if self.in_cell:
                    self.line.append(" | ")
                self.in_cell = True
        elif name == "a":
            self._link(attributes, closing)
        elif name == "img":
            if not closing and (alt := _attribute(attributes, "alt").strip()):
                self.line.append(f"[image: {_collapse(alt)}]")
        elif name in _BLOCKS:
            self._block(name, closing)
        return at

    def _skip(self, name: str, at: int) -> int:
        """Pass the content of an element whose like may nest; without an end it reaches to the end of the text."""
        depth = 1
        for found in _DROPPED_EDGES[name].finditer(self.markup, at):
            depth += -1 if found[1] else 1
            if depth == 0:
                return found.start()
        return len(self.markup)

    def _block(self, name: str, closing: bool) -> None:
        self._break()
        if name in _SPACED:
            self.pending_blank = True
        elif name == "blockquote":
            self.quotes = max(0, self.quotes - 1) if closing else self.quotes + 1
        elif name == "pre":
            self.pre = max(0, self.pre - 1) if closing else self.pre + 1
        elif name in ("ul", "ol"):
            if not closing:
                self.lists.append(1 if name == "ol" else 0)
            elif self.lists:
                self.lists.pop()
        elif name == "li" and not closing:
            self._bullet()
        if name in ("tr", "table"):
            self.in_cell = False

    def _bullet(self) -> None:
        number = self.lists[-1] if self.lists else 0
        if number:
            self.line.append(f"{number}. ")
            self.lists[-1] = number + 1
        else:
            self.line.append("- ")

    def _link(self, attributes: str, closing: bool) -> None:
        if self.href is not None:
            shown = "".join(self.line[self.link_at :]).strip()
            target = self.href.removeprefix("mailto:")
            if shown and shown not in (self.href, target) and shown.rstrip("/") != target.rstrip("/"):
                self.line.append(f" ({target})")
            self.href = None
        if not closing:
            href = _attribute(attributes, "href").strip()
            if href[:8].lower().startswith(_LINK_SCHEMES) and len(href) <= _MAX_LINK_CHARS:
                self.href = "".join(href.split())
                self.link_at = len(self.line)

    def _text(self, text: str) -> None:
        if "&" in text:
            text = _unescape(text)
        if self.pre:
            first, *rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            self.line.append(first)
            for piece in rest:
                self._break(hard=True)
                self.line.append(piece)
            return
        text = _collapse(text)
        if text == " " and (not self.line or self.line[-1].endswith(" ")):
            return
        self.line.append(text)

    def _break(self, hard: bool = False) -> None:
        """End the current line; `hard` makes an empty one count."""
        text = "".join(self.line)
        text = text.rstrip() if self.pre else _collapse(text).strip()
        self.line.clear()
        self.link_at = 0
        if not text.strip(" |"):
            text = ""
            if not hard:
                return
        prefix = "> " * min(self.quotes, _MAX_QUOTE_DEPTH)
        if self.pending_blank and text:
            self.pending_blank = False
            if self.lines and self.lines[-1].strip("> "):
                self._emit(("> " * min(self.quoted, self.quotes, _MAX_QUOTE_DEPTH)).rstrip())
        if not text and len(self.lines) >= 2 and not self.lines[-1].strip("> ") and not self.lines[-2].strip("> "):
            return
        self.quoted = self.quotes
        self._emit((prefix + text).rstrip())

    def _emit(self, line: str) -> None:
        self.lines.append(line)
        self.made += len(line) + 1


def _collapse(text: str) -> str:
    """White space in a row as one space. Several looks in C, which take a tenth of the time of one pattern."""
    for char in "\n\t\r\f":
        if char in text:
            text = text.replace(char, " ")
    while "  " in text:  # halves each run
        text = text.replace("  ", " ")
    return text


def _attribute(attributes: str, name: str) -> str:
    for found in _ATTRIBUTE.finditer(attributes[:_MAX_ATTRIBUTES]):
        if found[1].lower() == name:
            return _unescape(found[2] or found[3] or found[4] or "")
    return ""


def _unescape(text: str) -> str:
    try:
        return unescape(text)
    except ValueError:  # a numeric reference with thousands of digits
        return unescape(_LONG_REFERENCE.sub("\ufffd", text))
