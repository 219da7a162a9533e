"""In which language a text is written, as a BCP 47 primary tag (RFC 5646 §2.2.1)."""

import functools
import re
from typing import Final

import gcld3  # type: ignore[import-untyped]  # it has no types

MIN_LETTERS: Final = 40
"""Letters below which nothing is said; a letter that is a syllable or a word counts for three."""
_MAX_CHARS: Final = 160
_MAX_BYTES: Final = 1000
_MIN_PROBABILITY: Final = 0.7

_DENSE: Final = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# Names that CLD3 has from earlier editions of ISO 639.
_TODAY: Final = {"iw": "he", "in": "id", "ji": "yi", "jw": "jv", "mo": "ro"}


@functools.cache
def _identifier() -> gcld3.NNetLanguageIdentifier:
    """One in each process: some 3 MiB."""
    return gcld3.NNetLanguageIdentifier(min_num_bytes=0, max_num_bytes=_MAX_BYTES)


def language(text: str) -> str | None:
    """The language of `text`; None when it is too short or too mixed to say. Looks at its first 160 characters."""
    # Addresses and numbers are no words of any language.
    words = " ".join(word for word in text[:_MAX_CHARS].split() if "@" not in word and "://" not in word)
    letters = sum(map(str.isalpha, words)) + (0 if words.isascii() else 2 * len(_DENSE.findall(words)))
    if letters < MIN_LETTERS:
        return None
    found = _identifier().FindLanguage(text=words.encode("utf-8", "replace").decode())
    if not found.is_reliable or found.probability < _MIN_PROBABILITY:
        return None
    tag, _, script = str(found.language).partition("-")
    # Languages that are hardly ever written in Latin letters are found in short English as often as in themselves.
    return None if tag == "und" or script else _TODAY.get(tag, tag)
