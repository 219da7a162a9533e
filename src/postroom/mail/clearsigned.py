"""Text that is signed where it stands (RFC 9580 §7): what was signed, without the armour around it."""

from __future__ import annotations

import re
from typing import Final

_BEGIN: Final = "-----BEGIN PGP SIGNED MESSAGE-----"
# Header lines of the armour, and the blank line that ends them.
_HEADERS: Final = re.compile(r"(?:[A-Za-z-]{1,30}: [^\n]{0,200}\n){0,20}\n")
_SIGNATURE: Final = "\n-----BEGIN PGP SIGNATURE-----\n"
_END: Final = "-----END PGP SIGNATURE-----"


def unwrapped(text: str) -> str:
    """The text with its signed parts as they were before they were signed. Linear; anything else comes back as it is.

    What is not whole stays as it is: nobody verifies the signature, so that nothing is gained by guessing.
    """
    if _BEGIN not in text:
        return text
    pieces: list[str] = []
    at = 0
    while True:
        begin = text.find(f"{_BEGIN}\n", at)
        found = None if begin < 0 else _HEADERS.match(text, begin + len(_BEGIN) + 1)
        signature = -1 if found is None else text.find(_SIGNATURE, found.end() - 1)
        end = -1 if signature < 0 else text.find(_END, signature)
        if found is None or end < 0 or (begin > 0 and text[begin - 1] != "\n"):
            pieces.append(text[at:])
            return "".join(pieces)
        signed = text[found.end() : max(found.end(), signature)]
        pieces += (text[at:begin], re.sub(r"(?m)^- ", "", signed), "\n")
        at = end + len(_END)
        at += text.startswith("\n", at)
