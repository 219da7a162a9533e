"""How text is compared without case: one folding for what is stored beside a message and for what is asked."""

from __future__ import annotations

import unicodedata


def fold(text: str) -> str:
    """Compatibility-composed and case-folded, so that `Straße`, `STRASSE` and full-width letters meet (D7)."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
