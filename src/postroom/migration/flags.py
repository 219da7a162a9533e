"""Flags in other forms: IMAP words, suffix letters of Maildir, status fields of mbox (mail-server D5, E1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from postroom.base.errors import PostroomError
from postroom.mailbox.models import (
    FLAG_ANSWERED,
    FLAG_DELETED,
    FLAG_DRAFT,
    FLAG_FLAGGED,
    FLAG_SEEN,
    MAX_FLAGS,
    SYSTEM_FLAGS,
)
from postroom.mailbox.rules import flag_word

FORWARDED: Final = "$forwarded"
RECENT: Final = "\\recent"

_LETTERS: Final[Mapping[str, str]] = MappingProxyType(
    {"D": FLAG_DRAFT, "F": FLAG_FLAGGED, "R": FLAG_ANSWERED, "S": FLAG_SEEN, "T": FLAG_DELETED}
)
_IMAP: Final = MappingProxyType(
    {
        "\\seen": FLAG_SEEN,
        "\\answered": FLAG_ANSWERED,
        "\\flagged": FLAG_FLAGGED,
        "\\deleted": FLAG_DELETED,
        "\\draft": FLAG_DRAFT,
    }
)
_STATUS: Final = MappingProxyType({"R": FLAG_SEEN})
_X_STATUS: Final = MappingProxyType({"A": FLAG_ANSWERED, "F": FLAG_FLAGGED, "D": FLAG_DELETED, "T": FLAG_DRAFT})
_MOZILLA: Final = ((0x0001, FLAG_SEEN), (0x0002, FLAG_ANSWERED), (0x0004, FLAG_FLAGGED), (0x1000, FORWARDED))
MOZILLA_EXPUNGED: Final = 0x0008


def storable(words: Iterable[str]) -> tuple[tuple[str, ...], bool]:
    """Flags that can be stored, canonical; and whether some could not: what is no IMAP atom, or beyond 64 keywords."""
    kept: set[str] = set()
    lost = False
    for raw in words:
        lowered = raw.lower()
        if lowered == RECENT or not raw:
            continue
        if lowered.startswith("\\"):
            if (word := _IMAP.get(lowered)) is not None:
                kept.add(word)
            else:
                lost = True
            continue
        try:
            kept.add(flag_word(raw))
        except PostroomError:
            lost = True
    keywords = sorted(kept - SYSTEM_FLAGS)
    return tuple(sorted((kept & SYSTEM_FLAGS) | set(keywords[:MAX_FLAGS]))), lost or len(keywords) > MAX_FLAGS


def of_letters(letters: str, keywords: Mapping[str, str]) -> list[str]:
    """Words of a Maildir suffix: `P` (passed) is read; small letters are Dovecot's keywords; others mean nothing."""
    words = {"P": FORWARDED, **_LETTERS}
    return [word for letter in letters if (word := words.get(letter) or keywords.get(letter))]


def letters_of(flags: Sequence[str], keywords: Mapping[str, str]) -> str:
    """The suffix of a file's name, in the order of the alphabet; `P` is never written. `keywords`: word → letter."""
    found = [letter for letter, word in _LETTERS.items() if word in flags]
    return "".join(found + sorted(keywords[word] for word in flags if word in keywords))


def of_status(status: str, x_status: str, x_keywords: str, mozilla: str) -> list[str]:
    """Words of the status fields of a message in an mbox."""
    words = [word for letter, word in _STATUS.items() if letter in status.upper()]
    words += [word for letter, word in _X_STATUS.items() if letter in x_status.upper()]
    words += x_keywords.replace(",", " ").split()
    bits = mozilla_bits(mozilla)
    return words + [word for bit, word in _MOZILLA if bits & bit]


def mozilla_bits(text: str) -> int:
    """X-Mozilla-Status, four hexadecimal digits; 0 when it is none."""
    text = text.strip()
    return int(text, 16) if len(text) == 4 and all(c in "0123456789abcdefABCDEF" for c in text) else 0


def status_of(flags: Sequence[str]) -> tuple[str, str, str]:
    """Status, X-Status and X-Keywords; what is exported was seen by some program before, so it is `O`."""
    status = "RO" if FLAG_SEEN in flags else "O"
    x_status = "".join(letter for letter, word in _X_STATUS.items() if word in flags)
    return status, x_status, " ".join(word for word in flags if word not in SYSTEM_FLAGS)
