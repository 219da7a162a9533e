"""British number plates and penalty charge notices (pack `uk_vehicle`)."""

import re
from collections.abc import Iterator
from typing import Final

_MAX_MATCHES: Final = 1000
_PLATE: Final = re.compile(
    r"(?<![^\W_])(?:[A-Z]{2}[0-9]{2}[ -]?[A-Z]{3}|[A-Z][0-9]{1,3}[ -]?[A-Z]{3}|[A-Z]{3}[ -]?[0-9]{1,3}[A-Z])(?![^\W_])",
    re.IGNORECASE,
)
_PCN: Final = re.compile(r"(?<![^\W_])[A-Z]{2}[0-9]{8}(?![^\W_])", re.IGNORECASE)
_PCN_WORD: Final = re.compile(r"(?<![^\W_])(?:PCN|penalty\ charge)(?![^\W_])", re.IGNORECASE)
_PCN_AFTER: Final = re.compile(r"(?<![^\W_])(?=[A-Z]{0,11}[0-9])[A-Z0-9]{8,12}(?![^\W_])", re.IGNORECASE)
_NEAR: Final = 20


def find(text: str) -> Iterator[tuple[str, str]]:
    """Kinds `uk_plate` and `pcn`, upper case, without spaces and dashes."""
    for number, found in enumerate(_PLATE.finditer(text)):
        if number == _MAX_MATCHES:
            break
        yield "uk_plate", plate(found[0])
    for number, found in enumerate(_PCN.finditer(text)):
        if number == _MAX_MATCHES:
            break
        yield "pcn", found[0].upper()
    for number, word in enumerate(_PCN_WORD.finditer(text)):
        if number == _MAX_MATCHES:
            break
        near = _PCN_AFTER.search(text, word.end(), word.end() + _NEAR + 13)
        if near is not None and near.start() <= word.end() + _NEAR:
            yield "pcn", near[0].upper()


def plate(text: str) -> str:
    """The normal form: `AB12CDE` for `ab12 cde`."""
    return re.sub(r"[ -]", "", text).upper()


def spaced(value: str) -> str:
    """As it is printed, which is indexed, too: `AB12 CDE` for `AB12CDE`."""
    found = re.fullmatch(r"([A-Z]{2}[0-9]{2}|[A-Z][0-9]{1,3}|[A-Z]{3}(?=[0-9]))([A-Z]{3}|[0-9]{1,3}[A-Z])", value)
    return value if found is None else f"{found[1]} {found[2]}"
