"""Message flags: the words of the wire and the words of the store (RFC 9051 §2.3.2, spec D5, decision A5).

Inside, a flag is a lower-case word; the system flags are ``$seen``, ``$answered``, ``$flagged``, ``$deleted``,
``$draft``. So the keyword ``$Seen`` and the flag ``\\Seen`` are one and the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from postroom.imap.errors import BadCommand

SEEN = "$seen"
ANSWERED = "$answered"
FLAGGED = "$flagged"
DELETED = "$deleted"
DRAFT = "$draft"

#: Octets of one keyword (our limit).
MAX_KEYWORD = 255

#: Stored word → what a client sees.
SYSTEM_FLAGS: Mapping[str, bytes] = MappingProxyType(
    {ANSWERED: rb"\Answered", FLAGGED: rb"\Flagged", DELETED: rb"\Deleted", SEEN: rb"\Seen", DRAFT: rb"\Draft"}
)
_FROM_WIRE = {wire.lower(): word for word, wire in SYSTEM_FLAGS.items()}


def flag_word(token: bytes) -> str | None:
    """The stored word of one flag as sent, None for ``\\Recent``, which clients cannot alter.

    `token` is an atom or a backslash and an atom. Raises `BadCommand` for an unknown ``\\Foo``, for ``\\*`` and for a
    keyword that is too long.
    """
    lowered = token.lower()
    if lowered[:1] == b"\\":
        if lowered == rb"\recent":
            return None
        word = _FROM_WIRE.get(lowered)
        if word is None:
            raise BadCommand("Invalid system flag")
        return word
    if len(lowered) > MAX_KEYWORD:
        raise BadCommand("Keyword too long")
    return lowered.decode("ascii")


def wire_flag(word: str) -> bytes:
    """What a client sees of a stored word; keywords are shown as they are."""
    return SYSTEM_FLAGS.get(word) or word.encode("ascii")
