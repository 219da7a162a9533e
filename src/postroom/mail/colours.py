"""Colours as CSS and HTML write them (CSS Color 4 §5, §6), as three numbers to compare."""

import colorsys
import re
from functools import lru_cache
from typing import Final, Literal

Colour = tuple[int, int, int]
Paint = Colour | Literal["clear"]
"""`clear` is what cannot be seen on any ground: `transparent`, or next to no opacity."""

BLACK: Final[Colour] = (0, 0, 0)
WHITE: Final[Colour] = (255, 255, 255)

_ALIKE: Final = 8  # of 256 levels, by which two colours may differ and still look like one
_OPACITY: Final = 0.05
_BARE_HEX: Final = re.compile(r"[0-9a-f]{6}|[0-9a-f]{3}")
_ARGUMENT: Final = re.compile(r"([+-]?(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}))(%|deg)?")

_COLOUR_WORDS: Final = (
    "aliceblue f0f8ff antiquewhite faebd7 aqua 00ffff aquamarine 7fffd4 azure f0ffff beige f5f5dc bisque "
    "ffe4c4 black 000000 blanchedalmond ffebcd blue 0000ff blueviolet 8a2be2 brown a52a2a burlywood "
    "deb887 cadetblue 5f9ea0 chartreuse 7fff00 chocolate d2691e coral ff7f50 cornflowerblue 6495ed "
    "cornsilk fff8dc crimson dc143c cyan 00ffff darkblue 00008b darkcyan 008b8b darkgoldenrod b8860b "
    "darkgray a9a9a9 darkgreen 006400 darkgrey a9a9a9 darkkhaki bdb76b darkmagenta 8b008b darkolivegreen "
    "556b2f darkorange ff8c00 darkorchid 9932cc darkred 8b0000 darksalmon e9967a darkseagreen 8fbc8f "
    "darkslateblue 483d8b darkslategray 2f4f4f darkslategrey 2f4f4f darkturquoise 00ced1 darkviolet "
    "9400d3 deeppink ff1493 deepskyblue 00bfff dimgray 696969 dimgrey 696969 dodgerblue 1e90ff firebrick "
    "b22222 floralwhite fffaf0 forestgreen 228b22 fuchsia ff00ff gainsboro dcdcdc ghostwhite f8f8ff gold "
    "ffd700 goldenrod daa520 gray 808080 green 008000 greenyellow adff2f grey 808080 honeydew f0fff0 "
    "hotpink ff69b4 indianred cd5c5c indigo 4b0082 ivory fffff0 khaki f0e68c lavender e6e6fa "
    "lavenderblush fff0f5 lawngreen 7cfc00 lemonchiffon fffacd lightblue add8e6 lightcoral f08080 "
    "lightcyan e0ffff lightgoldenrodyellow fafad2 lightgray d3d3d3 lightgreen 90ee90 lightgrey d3d3d3 "
    "lightpink ffb6c1 lightsalmon ffa07a lightseagreen 20b2aa lightskyblue 87cefa lightslategray 778899 "
    "lightslategrey 778899 lightsteelblue b0c4de lightyellow ffffe0 lime 00ff00 limegreen 32cd32 linen "
    "faf0e6 magenta ff00ff maroon 800000 mediumaquamarine 66cdaa mediumblue 0000cd mediumorchid ba55d3 "
    "mediumpurple 9370db mediumseagreen 3cb371 mediumslateblue 7b68ee mediumspringgreen 00fa9a "
    "mediumturquoise 48d1cc mediumvioletred c71585 midnightblue 191970 mintcream f5fffa mistyrose ffe4e1 "
    "moccasin ffe4b5 navajowhite ffdead navy 000080 oldlace fdf5e6 olive 808000 olivedrab 6b8e23 orange "
    "ffa500 orangered ff4500 orchid da70d6 palegoldenrod eee8aa palegreen 98fb98 paleturquoise afeeee "
    "palevioletred db7093 papayawhip ffefd5 peachpuff ffdab9 peru cd853f pink ffc0cb plum dda0dd "
    "powderblue b0e0e6 purple 800080 rebeccapurple 663399 red ff0000 rosybrown bc8f8f royalblue 4169e1 "
    "saddlebrown 8b4513 salmon fa8072 sandybrown f4a460 seagreen 2e8b57 seashell fff5ee sienna a0522d "
    "silver c0c0c0 skyblue 87ceeb slateblue 6a5acd slategray 708090 slategrey 708090 snow fffafa "
    "springgreen 00ff7f steelblue 4682b4 tan d2b48c teal 008080 thistle d8bfd8 tomato ff6347 turquoise "
    "40e0d0 violet ee82ee wheat f5deb3 white ffffff whitesmoke f5f5f5 yellow ffff00 yellowgreen 9acd32 "
    "canvas ffffff window ffffff canvastext 000000 windowtext 000000"
)
_COLOURS: Final = _COLOUR_WORDS.split()
_NAMED: Final[dict[str, Colour]] = {
    name: (int(value[:2], 16), int(value[2:4], 16), int(value[4:], 16))
    for name, value in zip(_COLOURS[::2], _COLOURS[1::2], strict=True)
}


def alike(one: Paint, other: Paint) -> bool:
    """Whether a text of one colour on a ground of the other cannot be read. A clear ground is not known here."""
    if one == "clear" or other == "clear":
        return one == "clear"
    return all(abs(a - b) <= _ALIKE for a, b in zip(one, other, strict=True))


@lru_cache(maxsize=1024)
def colour(text: str) -> Paint | None:
    """The colour that `text`, in lower case, names: a word, `#rgb` and longer, `rgb()`, `hsl()`; None if it is none."""
    named = _NAMED.get(text)
    if named is not None:
        return named
    if text == "transparent":
        return "clear"
    if text.startswith("#"):
        return _hex(text[1:])
    if text.startswith(("rgb", "hsl")) and text.endswith(")"):
        return _function(text)
    return None


def attribute_colour(text: str) -> Paint | None:
    """The colour of a `bgcolor` or `color` attribute, where `#` may be missing (HTML §2.3.6)."""
    text = text.strip().lower()[:64]
    return _hex(text) if _BARE_HEX.fullmatch(text) else colour(text)


def _hex(digits: str) -> Paint | None:
    if len(digits) in (3, 4):
        digits = "".join(digit * 2 for digit in digits)
    try:
        values = bytes.fromhex(digits)
    except ValueError:
        return None
    if len(values) == 4 and values[3] / 255 <= _OPACITY:
        return "clear"
    return (values[0], values[1], values[2]) if len(values) in (3, 4) else None


def _function(text: str) -> Paint | None:
    found = _ARGUMENT.findall(text[text.find("(") :])
    if len(found) not in (3, 4):
        return None
    numbers = [float(number) for number, _ in found]
    if len(found) == 4 and numbers[3] / (100 if found[3][1] == "%" else 1) <= _OPACITY:
        return "clear"
    if text.startswith("rgb"):
        channels = [
            number * 2.55 if unit == "%" else number for number, (_, unit) in zip(numbers[:3], found, strict=False)
        ]
    else:
        hue, saturation, lightness = numbers[0] % 360 / 360, _share(numbers[1]), _share(numbers[2])
        channels = [channel * 255 for channel in colorsys.hls_to_rgb(hue, lightness, saturation)]
    red, green, blue = (round(min(max(channel, 0), 255)) for channel in channels)
    return red, green, blue


def _share(percent: float) -> float:
    return min(max(percent / 100, 0.0), 1.0)
