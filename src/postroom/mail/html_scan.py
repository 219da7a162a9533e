"""Outside markup rewritten to markup that has one reading only (inbound §11, §12).

What a parser makes of hostile HTML in quadratic time (thousands of attributes on one tag, options of a list, formatting
that is taken up again in every block, nesting for the sake of it), and what two parsers read differently (comments, raw
text, foreign content, quotes that never close), does not get past this scan: it takes the tokens apart as the standard
does (HTML §13.2.5), once from left to right, and writes what is left as plain tags with quoted attributes. So a parser
needs as long as the size says, unless `costly` says that it does not.

Styles are taken from the tags on the way: `look="n"` stands for the n-th of `looks`, `quote` marks where mail programs
begin what they quote (inbound §14).
"""

import re
from dataclasses import dataclass
from html import unescape
from typing import Final, NamedTuple

from postroom.mail.colours import attribute_colour
from postroom.mail.css import PLAIN, RELEVANT, Declarations, Look, Rules, declarations, look
from postroom.mail.html_balance import VOID, Balance

_FEW_TAGS: Final = 300  # that cost little, however they nest
_MAX_ATTRIBUTES: Final = 100

_ATTRIBUTE: Final = (
    r"[\t\n\f\r /]*+([^\t\n\f\r />][^\t\n\f\r />=]*+)(?:[\t\n\f\r ]*+=[\t\n\f\r ]*+"
    r"(?:\"([^\"]*+)(?:\"|\Z)|'([^']*+)(?:'|\Z)|([^\t\n\f\r >\"'][^\t\n\f\r >]*+)|(?=>)))?+"
)
_TAG: Final = re.compile(
    rf"<(/?)([a-zA-Z][^\t\n\f\r />]*+)((?:{_ATTRIBUTE.replace('([^', '(?:[^')})*+[\t\n\f\r /]*+)(>?)"
)
_ATTRIBUTES: Final = re.compile(_ATTRIBUTE)
_OPENING: Final = re.compile(r"<(?=[a-zA-Z/!?])")
_COMMENT_END: Final = re.compile(r"--!?>")
# Comments that mail programs write, or read as markup.
_TOOL_REMARK: Final = re.compile(r"\s*(?:\[if\b|\[endif|<!\[|converted from\b|/?\*|\?xml)|\s*\Z", re.IGNORECASE)

_TAG_WORDS: Final = (
    "a abbr b bdi bdo blockquote br caption center cite code col colgroup dd del details dfn div dl dt em figcaption "
    "figure font h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q s samp small span strike strong sub summary sup "
    "table tbody td tfoot th thead time tr tt u ul var wbr"
)
_BLOCK_WORDS: Final = (
    "address article aside dialog dir fieldset footer form header hgroup legend main menu nav search section"
)
_RAW_WORDS: Final = "script style title textarea noscript iframe xmp noembed noframes"
_DROPPED_WORDS: Final = (
    "svg math select template object applet button audio video canvas datalist progress meter frameset"
)
_VOID_WORDS: Final = "area base basefont bgsound embed frame input keygen link meta param source track"
ALLOWED_TAGS: Final = frozenset(_TAG_WORDS.split())
ALLOWED_ATTRIBUTES: Final[dict[str, frozenset[str]]] = {
    "*": frozenset({"lang", "title", "dir"}),
    "a": frozenset({"href"}),
    "img": frozenset({"src", "alt", "width", "height"}),
    "td": frozenset({"colspan", "rowspan", "align", "valign", "width"}),
    "th": frozenset({"colspan", "rowspan", "align", "valign", "width"}),
    "table": frozenset({"width", "border", "cellpadding", "cellspacing", "align"}),
    "col": frozenset({"span", "width"}),
    "colgroup": frozenset({"span", "width"}),
    "ol": frozenset({"start", "type"}),
    "li": frozenset({"value"}),
    "time": frozenset({"datetime"}),
}

_UNKNOWN: Final = "x-x"  # what tags are written as that nobody knows: an inline element like any other
_BLOCK_TAGS: Final = frozenset(_BLOCK_WORDS.split())
_WRITTEN_TAGS: Final = ALLOWED_TAGS | _BLOCK_TAGS | {_UNKNOWN}
# What each tag is written as; what is None in it is left out.
_WRITTEN: Final[dict[str, str | None]] = {
    **{name: name for name in ALLOWED_TAGS | _BLOCK_TAGS},
    **dict.fromkeys(_VOID_WORDS.split()),
    **dict.fromkeys(("html", "body", "head")),
    "image": "img",
    "listing": "pre",
}
_RAW_ENDS: Final = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in _RAW_WORDS.split()}
_DROPPED_EDGES: Final = {name: re.compile(rf"<(/?){name}(?=[\s/>])", re.IGNORECASE) for name in _DROPPED_WORDS.split()}
_REL: Final = ' rel="noopener noreferrer nofollow"'
# Tags that are written as they come.
_AS_IS: Final = {f"<{name}>": "" for name in _WRITTEN_TAGS - {"a", "dialog"}} | {
    f"</{name}>": "" for name in _WRITTEN_TAGS - VOID
}
_SKIPPED: Final = frozenset({"<html>", "</html>", "<head>", "</head>", "<body>", "</body>"})
_MAX_TOKEN: Final = 512
_KEPT: Final = {name: ALLOWED_ATTRIBUTES["*"] | ALLOWED_ATTRIBUTES.get(name, frozenset()) for name in _WRITTEN_TAGS}

_QUOTE_CLASSES: Final[dict[str, str]] = {
    "gmail_quote": "wrap",
    "gmail_attr": "line",
    "moz-cite-prefix": "line",
    **dict.fromkeys(("yahoo_quoted", "protonmail_quote", "tutanota_quote", "zmail_extra"), "cut"),
    "ms-outlook-mobile-reference-message": "cut",
}
_QUOTE_IDS: Final = frozenset(
    {"divrplyfwdmsg", "appendonsend", "stopspelling", "mail-editor-reference-message-container"}
)


@dataclass(frozen=True, slots=True)
class Scan:
    """Plain markup, and what was seen on the way."""

    markup: str
    looks: tuple[Look, ...]
    """What styles say of the elements with `look="index"`; empty if none says anything."""
    base: Look
    """Of the whole document."""
    quotes: bool
    """Some element has the attribute `quote`."""
    remarks: bool
    """There was a comment that no mail program writes by itself."""
    costly: bool
    """A parser might take much longer than the size says; `markup` is incomplete then."""


def scan(markup: str) -> Scan:
    """Rewrite `markup`. Never raises; linear in its length."""
    return _Scanner(markup).run()


class _Written(NamedTuple):
    """A tag as it is written."""

    text: str
    name: str
    is_end: bool


_Key = tuple[str, str, str, str, str, str, bool]


class _Scanner:
    __slots__ = ("balance", "base", "has_sheet", "keys", "known", "markup", "out", "quotes", "remarks", "sheets")

    def __init__(self, markup: str) -> None:
        self.markup = markup
        self.out: list[str] = []
        self.has_sheet = "<style" in markup.lower()
        self.sheets: list[str] = []
        self.keys: dict[_Key, int] = {}
        self.base: list[_Key] = []
        self.known: dict[str, _Written] = {}
        self.quotes = self.remarks = False
        self.balance = Balance() if markup.count("<") > _FEW_TAGS else None

    def run(self) -> Scan:
        markup, out, known = self.markup, self.out, self.known
        find, match = markup.find, _TAG.match
        plain = {} if self.has_sheet or self.balance is not None else _AS_IS
        at = copied = 0
        strict = True
        while (opened := find("<", at)) >= 0:
            end = find(">", opened, opened + _MAX_TOKEN) + 1
            token = markup[opened:end]
            if token in plain:
                at = end  # copied with what stands around it
                continue
            if copied < opened:
                out.append(markup[copied:opened])
            if plain and token in _SKIPPED:
                at = end
            elif token in known:
                self._write(known[token])
                at = end
            elif (tag := match(markup, opened) if strict else None) is None or not tag[4]:
                # A quote or a tag that never ends: from here on tags end at the next `>`, without attributes, so that
                # what follows is not lost.
                strict = strict and tag is None
                at = self._irregular(opened)
            else:
                at = tag.end()
                name = tag[2].lower()
                written = self._end(name) if tag[1] else self._start(name, tag[3])
                if written is not None:
                    if at == end:
                        known[token] = written  # tags of one message are alike
                    self._write(written)
                elif not tag[1]:
                    at = self._after(name, tag[3], at)
            copied = at
            if self.balance is not None and self.balance.is_costly:
                return Scan("", (), PLAIN, False, self.remarks, True)
        out.append(markup[copied:])
        if self.balance is not None:
            out.append(self.balance.end())
        return self._finish()

    def _write(self, written: _Written) -> None:
        balance = self.balance
        if balance is None:
            self.out.append(written.text)
        elif written.is_end:
            self.out.append(balance.close(written.name))
        else:
            self.out += (balance.open(written.name), written.text)

    def _irregular(self, opened: int) -> int:
        """Comments and what is no tag; returns where to go on."""
        markup = self.markup
        if markup.startswith("<!--", opened):
            return self._comment(opened)
        is_end = markup.startswith("/", opened + 1)
        letter = markup[opened + 1 + is_end : opened + 2 + is_end]
        is_name = letter.isascii() and letter.isalpha()
        if not is_name and not (is_end or (letter and letter in "!?")):
            following = _OPENING.search(markup, opened + 1)
            end = len(markup) if following is None else following.start()
            self.out.append(markup[opened:end].replace("<", "&lt;"))
            return end
        closed = markup.find(">", opened)
        if closed < 0:
            return len(markup)  # the end inside a tag (HTML §13.2.5.5 and on: nothing is made of it)
        if is_name:
            name = re.split(r"[\s/>]", markup[opened + 1 + is_end : min(closed, opened + 40)], maxsplit=1)[0].lower()
            written = self._end(name) if is_end else self._start(name, "")
            if written is not None:
                self._write(written)
            elif not is_end:
                return self._after(name, "", closed + 1)
        return closed + 1

    def _comment(self, opened: int) -> int:
        markup = self.markup
        for short in ("<!-->", "<!--->"):
            if markup.startswith(short, opened):
                return opened + len(short)
        ended = _COMMENT_END.search(markup, opened + 4)
        end = len(markup) if ended is None else ended.start()
        if not self.remarks and _TOOL_REMARK.match(markup, opened + 4, end) is None:
            self.remarks = True
        return len(markup) if ended is None else ended.end()

    def _start(self, name: str, attributes: str) -> _Written | None:
        """What is written for a start tag; None if that is nothing, or not for itself alone."""
        if name in _RAW_ENDS or name in _DROPPED_EDGES:
            return None
        written = _WRITTEN.get(name, _UNKNOWN)
        if written is None:
            if name in ("html", "body"):
                self.base.append(self._key(name, _attributes(attributes)))
            return None
        text = ""
        if attributes or self.has_sheet or name == "dialog":
            text = self._attributes(name, written, _attributes(attributes))
        if written == "a":
            text += _REL
        return _Written(f"<{written}{text}>", written, False)

    def _after(self, name: str, attributes: str, at: int) -> int:
        """Pass the content of an element that is left out with it; returns where to go on."""
        if name in _RAW_ENDS:
            found = _RAW_ENDS[name].search(self.markup, at)
            end = len(self.markup) if found is None else found.start()
            if name == "style":
                self.sheets.append(self.markup[at:end])
            return end
        if name in _DROPPED_EDGES and not (attributes.endswith("/") and name in ("svg", "math")):
            return self._skip(name, at)
        return at

    @staticmethod
    def _end(name: str) -> _Written | None:
        if name in ("p", "br"):
            return _Written(f"</{name}>", name, True)
        written = _WRITTEN.get(name, _UNKNOWN)
        if written is None or written in VOID or name in _RAW_ENDS or name in _DROPPED_EDGES:
            return None
        return _Written(f"</{written}>", written, True)

    def _skip(self, name: str, at: int) -> int:
        """Pass the content of an element whose like may nest; without an end it reaches to the end of the text."""
        depth = 1
        for found in _DROPPED_EDGES[name].finditer(self.markup, at):
            depth += -1 if found[1] else 1
            if depth == 0:
                return found.start()
        return len(self.markup)

    def _attributes(self, name: str, written: str, found: dict[str, str]) -> str:
        kept = _KEPT[written]
        text = "".join(
            f' {key}="{value.replace(chr(34), "&quot;")}"' if '"' in value else f' {key}="{value}"'
            for key, value in found.items()
            if key in kept
        )
        if (
            self.has_sheet
            or "hidden" in found
            or "color" in found
            or "bgcolor" in found
            or ("style" in found and RELEVANT.search(found["style"]) is not None)
            or (name == "dialog" and "open" not in found)
        ):
            key = self._key(name, found)
            text += f' look="{self.keys.setdefault(key, len(self.keys))}"'
        if ("class" in found or "id" in found or "name" in found or "type" in found) and (
            kind := _quote_kind(written, found)
        ):
            self.quotes = True
            text += f' quote="{kind}"'
        return text

    def _key(self, name: str, found: dict[str, str]) -> _Key:
        return (
            name,
            _value(found, "style"),
            _value(found, "class") if self.has_sheet else "",
            _value(found, "id") if self.has_sheet else "",
            _value(found, "color") or (_value(found, "text") if name == "body" else ""),
            _value(found, "bgcolor"),
            "hidden" in found or (name == "dialog" and "open" not in found),
        )

    def _finish(self) -> Scan:
        rules = Rules(self.sheets)
        looks = tuple(_look(key, rules) for key in self.keys)
        base = PLAIN
        for key in self.base:
            here = _look(key, rules)
            base = Look(
                base.hides or here.hides,
                here.ink or base.ink,
                here.ground or base.ground,
                here.tiny if base.tiny is None else base.tiny,
                here.unseen if base.unseen is None else base.unseen,
            )
        if all(one is PLAIN or one == PLAIN for one in looks):
            looks = ()
        return Scan("".join(self.out), looks, base, self.quotes, self.remarks, False)


def _attributes(text: str) -> dict[str, str]:
    """Names in lower case with their values as written; of equal names the first (HTML §13.2.5.33)."""
    found: dict[str, str] = {}
    if text and not text.isspace():
        for number, match in enumerate(_ATTRIBUTES.finditer(text)):
            if number == _MAX_ATTRIBUTES:
                break
            found.setdefault(match[1].lower(), match[2] or match[3] or match[4] or "")
    return found


def _value(found: dict[str, str], name: str) -> str:
    value = found.get(name, "")
    if "&" not in value:
        return value
    try:
        return unescape(value)
    except ValueError:  # a numeric reference with thousands of digits
        return value


def _quote_kind(written: str, found: dict[str, str]) -> str:
    """What a mail program says of an element: `block` holds what is quoted, `wrap` that and perhaps answers between,
    `line` says whose words follow, and from `cut` on nothing is new.
    """
    if written == "blockquote" and _value(found, "type").lower() == "cite":
        return "block"
    for name in _value(found, "class").lower().split(None, 16):
        if (kind := _QUOTE_CLASSES.get(name)) is not None:
            return "block" if written == "blockquote" else kind
    is_cut = _value(found, "id").lower() in _QUOTE_IDS or found.get("name") == "messageReplySection"
    return "cut" if is_cut else ""


def _look(key: _Key, rules: Rules) -> Look:
    name, style, classes, identifier, ink, ground, hidden = key
    layers: list[Declarations] = [{"display": ("none", False)}] if hidden else []
    if rules:
        layers += rules.matching(name, classes, identifier)
    if style:
        layers.append(declarations(style))
    found = look(layers) if layers else PLAIN
    if ink and found.ink is None:
        found = found._replace(ink=attribute_colour(ink))
    if ground and found.ground is None:
        paint = attribute_colour(ground)
        found = found._replace(ground=None if paint == "clear" else paint)
    return found
