"""As much of CSS as tells whether a reader sees a text (inbound §12): declarations and simple rules.

A style that hides takes its element away whole, with what is inside. What is inherited and can be undone further in
(colour, size of type, visibility) hides the text that directly has it: many newsletters set `font-size:0` on a cell and
the size of the type on the blocks within.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from postroom.mail.colours import Paint, colour

MAX_SHEET_CHARS: Final = 128 * 1024
MAX_RULES: Final = 2000
_MAX_DECLARATIONS: Final = 100
_MAX_CLASSES: Final = 16
_MAX_STYLE_CHARS: Final = 16 * 1024

# Pixels of each unit, roughly: the limits are far from what is used in good faith.
_PIXELS: dict[str, float] = dict.fromkeys(("rem", "em"), 16.0) | dict.fromkeys(("ex", "ch"), 8.0)
_PIXELS |= {"": 1.0, "px": 1.0, "pt": 4 / 3, "pc": 16.0, "in": 96.0, "cm": 37.8, "mm": 3.78, "%": 0.16}
_PIXELS |= dict.fromkeys(("vw", "vh", "vmin", "vmax"), 10.0)
_RELATIVE: Final = frozenset({"em", "ex", "ch", "%"})
_FAR_AWAY: Final = -999.0
_SMALL: Final = 1.0
_FAINT: Final = 0.05

RELEVANT: Final = re.compile(
    r"display|visib|opacity|color|background|font|height|width|position|clip|indent|margin-[lt]|\\|/\*", re.IGNORECASE
)
"""Found in every style that can hide something."""
_NAME_WORDS: Final = (
    "display visibility opacity color background background-color font font-size height max-height width max-width "
    "overflow overflow-x overflow-y position left top right bottom text-indent margin-left margin-top clip clip-path"
)
_NAMES: Final = frozenset(_NAME_WORDS.split())
_LENGTH: Final = re.compile(r"([+-]?(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}))([a-z%]{0,4})")
_COMMENT: Final = re.compile(r"/\*(?:[^*]++|\*(?!/))*+(?:\*/|\Z)")
_ESCAPE: Final = re.compile(r"\\(?:([0-9a-fA-F]{1,6})[ \t\r\n\f]?|([^\r\n\f]))")
_SELECTOR: Final = re.compile(r"([a-z][a-z0-9]*)?(?:([.#])([\w-]+))?", re.IGNORECASE)
_PAINT: Final = re.compile(r"#[0-9a-f]{3,8}|(?:rgb|hsl)a?\([^()]{1,64}\)|[a-z]{3,24}")
_URL: Final = re.compile(r"url\([^()]*+\)?")
_TYPE_SIZE: Final = re.compile(r"(?:^|\s)(0|[0-9.]{1,9}(?:px|pt|em|rem|%))(?=[\s/]|$)")

Declarations = dict[str, tuple[str, bool]]
"""Value, in lower case, and whether it is important."""


class Look(NamedTuple):
    """What a style says of an element. None where it says nothing."""

    hides: bool = False
    """Nobody sees the element and what is in it."""
    ink: Paint | None = None
    ground: Paint | None = None
    tiny: bool | None = None
    unseen: bool | None = None


PLAIN: Final = Look()


class Rules:
    """The rules of a message's style sheets whose selector is `tag`, `.class`, `#id` or `tag.class`."""

    def __init__(self, sheets: Iterable[str] = ()) -> None:
        # What rules with one selector say is put together, so that an element costs the same however many there are.
        self._rules: dict[str, Declarations] = {}
        for selector, found in _rules(sheets):
            _put_on(self._rules.setdefault(selector, {}), found)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def matching(self, tag: str, classes: str, name: str) -> Iterator[Declarations]:
        """What applies to an element, the weakest first (CSS Cascade 4 §6.1)."""
        names = classes.lower().split(None, _MAX_CLASSES)[:_MAX_CLASSES] if classes else ()
        selectors = [tag, *(f".{one}" for one in names), *(f"{tag}.{one}" for one in names)]
        if name:
            selectors += (f"#{name.lower()}", f"{tag}#{name.lower()}")
        for selector in selectors:
            if (found := self._rules.get(selector)) is not None:
                yield found


def _rules(sheets: Iterable[str]) -> Iterator[tuple[str, Declarations]]:
    room, left = MAX_SHEET_CHARS, MAX_RULES
    for sheet in sheets:
        text = _COMMENT.sub("", sheet[:room]).replace("<!--", "").replace("-->", "")
        room -= len(sheet)
        at = 0
        while left > 0 and (opened := text.find("{", at)) >= 0:
            prelude = text[at:opened].rpartition(";")[2].strip()
            closed = text.find("}", opened)
            if closed < 0:
                closed = len(text)
            if prelude.startswith("@"):
                at = _end_of_block(text, opened)
                continue
            at = closed + 1
            left -= 1
            body = text[opened + 1 : closed]
            if RELEVANT.search(body) is None:
                continue
            found = declarations(body)
            for selector in prelude[:4096].split(","):
                match = _SELECTOR.fullmatch(selector.strip())
                if match and match[0] and found:
                    yield match[0].lower(), found
        if room <= 0:
            return


def _end_of_block(text: str, opened: int) -> int:
    depth = 0
    for brace in re.compile("[{}]").finditer(text, opened):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    return len(text)


def declarations(style: str) -> Declarations:
    """The declarations in a style attribute that matter here."""
    style = style[:_MAX_STYLE_CHARS]
    if "/*" in style:
        style = _COMMENT.sub("", style)
    if "\\" in style:
        style = _ESCAPE.sub(_unescape, style)
    found: Declarations = {}
    for declaration in style.split(";", _MAX_DECLARATIONS):
        name, colon, value = declaration.partition(":")
        name = name.strip().lower()
        if not colon or name not in _NAMES:
            continue
        value, bang, _ = value.strip().lower().partition("!")
        if bang or not found.get(name, ("", False))[1]:
            found[name] = value.strip(), bool(bang)
    return found


def _unescape(match: re.Match[str]) -> str:
    if match[1] is None:
        return match[2]
    point = int(match[1], 16)
    return chr(point) if 0 < point < 0x110000 and not 0xD800 <= point < 0xE000 else "\ufffd"


def _put_on(found: Declarations, layer: Declarations) -> None:
    for name, (value, important) in layer.items():
        if important or not found.get(name, ("", False))[1]:
            found.pop(name, None)  # so that of a shorthand and its part the later one counts
            found[name] = value, important


def look(layers: Iterable[Declarations]) -> Look:
    """What declarations, the weakest first, say together."""
    found: Declarations = {}
    for layer in layers:
        _put_on(found, layer)
    if not found:
        return PLAIN
    values = {name: value for name, (value, _) in found.items()}
    visibility = values.get("visibility")
    return Look(
        hides=_hides(values),
        ink=_paint(values.get("color")),
        ground=_ground(values),
        tiny=_tiny(values),
        unseen=None if visibility in (None, "inherit") else visibility in ("hidden", "collapse"),
    )


def _hides(values: dict[str, str]) -> bool:
    if values.get("display") == "none":
        return True
    if (opacity := values.get("opacity")) and (number := _LENGTH.match(opacity)):
        share = float(number[1]) / (100 if number[2] == "%" else 1)
        if share <= _FAINT:
            return True
    if any(values.get(name, "").startswith("hidden") for name in ("overflow", "overflow-x", "overflow-y")) and any(
        _is_nothing(values.get(name)) for name in ("height", "max-height", "width", "max-width")
    ):
        return True
    if any(_pixels(values.get(name)) <= _FAR_AWAY for name in ("text-indent", "margin-left", "margin-top")):
        return True
    if values.get("position") in ("absolute", "fixed") and any(
        _pixels(values.get(name)) <= _FAR_AWAY for name in ("left", "top", "right", "bottom")
    ):
        return True
    return _is_clipped(values.get("clip", "")) or _is_inset(values.get("clip-path", ""))


def _pixels(value: str | None) -> float:
    found = _LENGTH.match(value) if value else None
    return 0.0 if found is None else float(found[1]) * _PIXELS.get(found[2], 1.0)


def _is_nothing(value: str | None) -> bool:
    found = _LENGTH.match(value) if value else None
    return found is not None and float(found[1]) == 0


def _is_clipped(value: str) -> bool:
    """`rect()` of no size."""
    if not value.startswith("rect("):
        return False
    sides = [float(number) for number, _ in _LENGTH.findall(value)]
    return len(sides) == 4 and (sides[2] <= sides[0] or sides[1] <= sides[3])


def _is_inset(value: str) -> bool:
    """`inset()` by half or more, or a circle of no size."""
    found = _LENGTH.search(value)
    if found is None:
        return False
    if value.startswith("inset("):
        return found[2] == "%" and float(found[1]) >= 50
    return value.startswith("circle(") and float(found[1]) == 0


def _tiny(values: dict[str, str]) -> bool | None:
    tiny = None
    for name in ("font", "font-size"):
        value = values.get(name)
        if value is None:
            continue
        found = _TYPE_SIZE.search(value) if name == "font" else None
        number = _LENGTH.match(found[1] if found else value)
        if number is None:
            tiny = False if name == "font-size" and value not in ("inherit", "smaller", "larger") else tiny
        elif float(number[1]) * _PIXELS.get(number[2], 1.0) <= (_SMALL * 4 / 3 if number[2] == "pt" else _SMALL):
            tiny = True
        elif number[2] not in _RELATIVE:
            tiny = False  # a multiple of nothing is nothing
    return tiny


def _paint(value: str | None) -> Paint | None:
    return colour(value) if value else None


def _ground(values: dict[str, str]) -> Paint | None:
    """A colour of the background; an image is not loaded and so does not count."""
    ground: Paint | None = None
    for name in values:
        if name == "background-color":
            ground = _paint(values[name]) or ground
        elif name == "background":
            for found in _PAINT.finditer(_URL.sub(" ", values[name])):
                if (paint := colour(found[0])) is not None:
                    ground = paint
                    break
    return None if ground == "clear" else ground
