"""Macros of SPF records (RFC 7208 §7), and the names that come of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import quote

import idna

MAX_NAME: Final = 253
"""Octets of a domain name (RFC 1035 §2.3.4), as text without the final dot."""

_TOKEN: Final = re.compile(
    r"%\{([A-Za-z])([0-9]*+)([Rr]?)([.+,/_=-]*+)\}"  # letter, digits, r, delimiters
    r"|%([%_-])"
    r"|([ !-$&-~]++)"  # literal; the space is one only in explanations
)
_LETTERS: Final = "sloditphcrv"
_ONLY_EXPLAINING: Final = frozenset("crt")
_FIXED: Final = {"%": "%", "_": " ", "-": "%20"}
_TOP_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?")
# As DNS has them, not as hosts do: `_spf`, and what macros make of local parts.
_NAME: Final = re.compile(r"[!-\-/-~]{1,63}(?:\.[!-\-/-~]{1,63})*+")
_DOMAIN: Final = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})++")
_DOTS: Final = re.compile("[.\u3002\uff0e\uff61]")


class MacroError(ValueError):
    """Not a macro string."""


@dataclass(frozen=True, slots=True)
class Macro:
    """`%{…}`."""

    letter: str
    """Lower case."""
    escape: bool
    """The letter was upper case: the value is percent-encoded (RFC 7208 §7.3)."""
    parts: int
    """How many parts are kept, counted from the right; 0: all."""
    reverse: bool
    delimiters: str

    def apply(self, value: str) -> str:
        """`value` transformed (RFC 7208 §7.1, §7.3)."""
        if self.parts or self.reverse or self.delimiters:
            delimiters = self.delimiters or "."
            for other in delimiters[1:]:
                value = value.replace(other, delimiters[0])
            parts = value.split(delimiters[0])
            if self.reverse:
                parts.reverse()
            value = ".".join(parts[-self.parts :])
        return quote(value, safe="", errors="replace") if self.escape else value


MacroString: TypeAlias = tuple[str | Macro, ...]
"""Literal text, `%%`, `%_` and `%-` resolved, and macros."""


def parse_domain_spec(text: str) -> MacroString:
    """A `domain-spec` (RFC 7208 §7.1): it ends in a macro or in a dot and a top label. Raises `MacroError`."""
    tokens, ends_literally = _tokens(text, explaining=False)
    if not tokens:
        raise MacroError("empty")
    if ends_literally:
        _, dot, label = text.removesuffix(".").rpartition(".")
        if not dot or label.isdigit() or _TOP_LABEL.fullmatch(label) is None:
            raise MacroError("no top label at its end")
    return tokens


def parse_explanation(text: str) -> MacroString:
    """An explanation (RFC 7208 §6.2), in which spaces and all letters are allowed. Raises `MacroError`."""
    return _tokens(text, explaining=True)[0]


def check_macros(text: str) -> None:
    """The value of a modifier that nobody knows (RFC 7208 §12: `macro-string`). Raises `MacroError`."""
    if " " in text:
        raise MacroError("a space")
    _tokens(text, explaining=True)


def _tokens(text: str, *, explaining: bool) -> tuple[MacroString, bool]:
    tokens: list[str | Macro] = []
    at, ends_literally = 0, False
    for match in _TOKEN.finditer(text):
        if match.start() != at:
            break
        at = match.end()
        letter, _, _, _, fixed, literal = match.groups()
        if letter is not None:
            tokens.append(_macro(match, explaining=explaining))
        else:
            tokens.append(literal or _FIXED[fixed])
        ends_literally = literal is not None
    if at != len(text):
        raise MacroError("a percent sign, or a character, that means nothing")
    return tuple(tokens), ends_literally


def _macro(match: re.Match[str], *, explaining: bool) -> Macro:
    given, digits, reverse, delimiters = match.group(1, 2, 3, 4)
    letter = given.lower()
    if letter not in _LETTERS or (letter in _ONLY_EXPLAINING and not explaining):
        raise MacroError("no such macro here")
    # More digits than any number of parts has: all of them, without reading it as a number.
    parts = int(digits.lstrip("0")[:6] or "0") if digits else 0
    if digits and not parts:
        raise MacroError("no parts are none")  # RFC 7208 §7.3: nonzero
    return Macro(letter, given != letter, parts, bool(reverse), delimiters)


def uses(tokens: MacroString, letters: str) -> bool:
    """Whether one of the macros `letters` is there."""
    return any(isinstance(token, Macro) and token.letter in letters for token in tokens)


def expand_text(tokens: MacroString, values: Mapping[str, str], most: int) -> str:
    """The text with values in the place of macros, its first `most` characters."""
    made: list[str] = []
    length = 0
    for token in tokens:
        made.append(token if isinstance(token, str) else token.apply(values[token.letter]))
        length += len(made[-1])
        if length >= most:
            break
    return "".join(made)[:most]


def expand_name(tokens: MacroString, values: Mapping[str, str]) -> str | None:
    """The `target_name` of a `domain-spec`."""
    made: list[str] = []
    length = 0
    # From its end, of which alone something is left when it is too long.
    for token in reversed(tokens):
        made.append(token if isinstance(token, str) else token.apply(values[token.letter]))
        length += len(made[-1])
        if length > MAX_NAME + 1:
            break
    return target_name("".join(reversed(made)))


def target_name(text: str) -> str | None:
    """The name to look up: without a final dot, in lower case, cut to 253 octets by whole labels from the left.

    None when no such name can be asked for: an empty label or one over 63 octets, a space, characters that are no
    printable ASCII (RFC 7208 §4.8, §7.3).
    """
    name = text.removesuffix(".")
    if len(name) > MAX_NAME:
        _, dot, name = name[-MAX_NAME - 1 :].partition(".")
        if not dot:
            return None
    return name.lower() if _NAME.fullmatch(name) is not None else None


def ascii_domain(text: str) -> str | None:
    """What SMTP took for a domain, in A-labels and lower case (RFC 8616 §4); None if it is no name of several labels.

    RFC 7208 §4.3. Address literals and bare addresses are no names; the underscore, which some hosts have, is let pass.
    """
    if len(text) > MAX_NAME + 1:
        return None
    name = text
    if not text.isascii():
        try:
            labels = _DOTS.split(text)
            name = ".".join(
                label if label.isascii() else idna.encode(label, uts46=True).decode("ascii") for label in labels
            )
        except UnicodeError:  # idna's errors are such
            return None
    name = name.removesuffix(".").lower()
    if len(name) > MAX_NAME or _DOMAIN.fullmatch(name) is None or name.rpartition(".")[2].isdigit():
        return None
    return name
