"""Tags so written that each end tag ends what was opened last (HTML §13.2.6), and what that costs a parser.

Where tags are nested properly, an element that is closed is off a parser's stack, and nothing is taken up again in the
next block; so the depth counted here is the depth that there will be. End tags that the standard lets close more, or
nothing, do so here; only formatting that goes on beyond the block it began in ends with the block.
"""

from typing import Final

MAX_DEPTH: Final = 512
_BUDGET: Final = 20_000_000
_FORMAT_BUDGET: Final = 250_000
_REACH: Final = 100  # open elements that an end tag is looked for in

VOID: Final = frozenset({"br", "col", "hr", "img", "wbr"})
# Between the parts of a table, all that is open may be taken up again for each text (HTML §13.2.6.1).
_FORMATTING: Final = frozenset({"a", "b", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u"})
_HEADINGS: Final = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_BLOCKS: Final = _HEADINGS | {
    *("address", "article", "aside", "blockquote", "caption", "center", "colgroup", "dd", "details", "dialog", "dir"),
    *("div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hgroup", "hr", "li", "main"),
    *("menu", "nav", "ol", "p", "pre", "search", "section", "summary", "table", "tbody", "td", "tfoot", "th", "thead"),
    *("tr", "ul"),
}
_TABLE_PARTS: Final = frozenset({"td", "th", "tr", "tbody", "thead", "tfoot", "caption", "colgroup"})
_ENDS_PARAGRAPH: Final = _BLOCKS - _TABLE_PARTS
_TABLE: Final = frozenset({"table"})
_SCOPE: Final = _TABLE | {"td", "th", "caption"}
_LIST_SCOPE: Final = _SCOPE | {"ol", "ul"}
_ITEM_SCOPE: Final = _BLOCKS - {"div", "p", "address"}
_SECTIONS: Final = frozenset({"tbody", "thead", "tfoot", "caption", "colgroup"})

# What a start tag ends, and how far out that is looked for.
_IMPLIED: Final[dict[str, tuple[frozenset[str], frozenset[str]]]] = {
    "li": (frozenset({"li"}), _ITEM_SCOPE - {"li"}),
    **dict.fromkeys(("dd", "dt"), (frozenset({"dd", "dt"}), _ITEM_SCOPE - {"dd", "dt"})),
    **dict.fromkeys(("td", "th"), (frozenset({"td", "th"}), _TABLE | {"tr"})),
    "tr": (frozenset({"tr"}), _TABLE),
    **dict.fromkeys(("tbody", "thead", "tfoot"), (_SECTIONS, _TABLE)),
    "a": (frozenset({"a"}), _BLOCKS),
}
_NAMES: Final = {name: frozenset({name}) for name in _BLOCKS}
_PARAGRAPH: Final = _NAMES["p"]


class Balance:
    """The open elements. Each tag costs steps in proportion to what is closed, and 100 at most beside."""

    __slots__ = ("formats", "is_costly", "repeated", "stack", "walked")

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.formats = 0
        self.walked = self.repeated = 0
        self.is_costly = False
        """Nesting beyond 512, or more steps for a parser than are worth it."""

    def open(self, name: str) -> str:
        """Take note of a start tag; returns the end tags that come before it."""
        stack = self.stack
        ended = ""
        if stack:
            if name in _ENDS_PARAGRAPH and stack[-1] != "div":
                ended = self._pop(_PARAGRAPH, _SCOPE)
                if name in _HEADINGS and stack and stack[-1] in _HEADINGS:
                    ended += self._pop(_HEADINGS, _SCOPE)
            if (implied := _IMPLIED.get(name)) is not None:
                ended += self._pop(*implied)
        if name not in VOID:
            stack.append(name)
            self.formats += name in _FORMATTING
        self.walked += len(stack)
        self.repeated += self.formats
        if len(stack) > MAX_DEPTH or self.walked > _BUDGET or self.repeated > _FORMAT_BUDGET:
            self.is_costly = True
        return ended

    def close(self, name: str) -> str:
        """What is written for an end tag: the end tags of all that it ends, nothing if that is nothing."""
        stack = self.stack
        if stack and stack[-1] == name:
            stack.pop()
            self.formats -= name in _FORMATTING
            return f"</{name}>"
        if name in _TABLE_PARTS:
            barrier = _TABLE
        elif name == "table":
            barrier = frozenset()
        elif name == "li":
            barrier = _LIST_SCOPE
        else:
            barrier = _SCOPE if name in _BLOCKS else _BLOCKS
        return self._pop(_HEADINGS if name in _HEADINGS else _NAMES.get(name) or frozenset({name}), barrier)

    def end(self) -> str:
        """The end tags of all that is open."""
        ended = "".join(f"</{name}>" for name in reversed(self.stack))
        self.stack.clear()
        return ended

    def _pop(self, names: frozenset[str], barrier: frozenset[str]) -> str:
        """End the nearest of `names` and what is open in it, unless a barrier stands before it."""
        stack = self.stack
        for back in range(1, min(_REACH, len(stack)) + 1):
            name = stack[-back]
            if name in names:
                ended = ""
                for gone in reversed(stack[-back:]):
                    self.formats -= gone in _FORMATTING
                    ended += f"</{gone}>"
                del stack[-back:]
                return ended
            if name in barrier:
                return ""
        return ""
