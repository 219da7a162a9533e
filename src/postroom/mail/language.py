"""In which language a text is written, as a BCP 47 primary tag (RFC 5646 §2.2.1)."""

import functools
import re
from typing import Final

import gcld3  # type: ignore[import-untyped]  # it has no types

MIN_LETTERS: Final = 40
"""Letters below which nothing is said; a letter that is a syllable or a word counts for three."""
_MAX_CHARS: Final = 2000
_MAX_BYTES: Final = 6000
_MIN_PROBABILITY: Final = 0.7

_NO_WORDS: Final = re.compile(r"(?:https?://|www\.|mailto:)\S{1,2048}|\S{1,64}@\S{1,255}|[\d_]+", re.IGNORECASE)
_LETTER: Final = re.compile(r"[^\W\d_]")
_DENSE: Final = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# Names that CLD3 has from earlier editions of ISO 639.
_TODAY: Final = {"iw": "he", "in": "id", "ji": "yi", "jw": "jv", "mo": "ro"}


@functools.cache
def _identifier() -> gcld3.NNetLanguageIdentifier:
    """One in each process: some 3 MiB."""
    return gcld3.NNetLanguageIdentifier(min_num_bytes=0, max_num_bytes=_MAX_BYTES)


def language(text: str) -> str | None:
    """The language of `text`; None when it is too short or too mixed to say. Looks at its first 2,000 characters."""
    words = _NO_WORDS.sub(" ", text[:_MAX_CHARS])
    letters = len(_LETTER.findall(words)) + 2 * len(_DENSE.findall(words))
    if letters < MIN_LETTERS:
        return None
    found = _identifier().FindLanguage(text=words.encode("utf-8", "replace").decode())
    if not found.is_reliable or found.probability < _MIN_PROBABILITY:
        return None
    tag = str(found.language).partition("-")[0]
    return None if tag == "und" else _TODAY.get(tag, tag)
