"""Pure decisions of the mailbox: what a folder may be called, what a flag is, what a change of flags makes of a set."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from postroom.base.errors import PostroomError
from postroom.mail.compose.reply import without_detail
from postroom.mail.thread_token import looks_like_token
from postroom.mailbox.models import FLAG_SEEN, MAX_FLAGS, SYSTEM_FLAGS

INBOX: Final = "INBOX"
QUARANTINE: Final = "Quarantine"
"""The folder of an agent's quarantined mail, for those who review it (A6); nobody else knows of it or what is below."""
SEPARATOR: Final = "/"

MAX_SEGMENT_BYTES: Final = 255
MAX_PATH_BYTES: Final = 1024
MAX_FOLDERS: Final = 2000
"""Folders of one mailbox."""

MAX_FLAG_LENGTH: Final = 100
"""Characters of a keyword, `$` included."""

_REFUSED_SEGMENTS: Final = frozenset({"", ".", ".."})
# `/` separates; the rest has a meaning in paths of some file system or in Maildir names.
_REFUSED_CHARACTERS: Final = frozenset("\\:")
# Controls and surrogates; line and paragraph separators (RFC 6855 §3).
_REFUSED_CATEGORIES: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
# An IMAP atom (RFC 3501 §9) in lower case, so that every flag can be told to every client; `$` begins a system flag or
# keyword.
_FLAG: Final = re.compile(r"[!#$&'+,\-./0-9:;<=>?@\[^_`a-z|}~]+")
_LABEL: Final = re.compile(r"[a-z0-9][a-z0-9_:-]{0,63}")

Flags = tuple[str, ...]
"""The flags of a placement: lower-case words, each once, sorted."""


class FlagMode(StrEnum):
    """How a list of flags changes a set: `+FLAGS`, `-FLAGS`, `FLAGS` of STORE (RFC 3501 §6.4.6)."""

    ADD = "add"
    REMOVE = "remove"
    REPLACE = "replace"


class LimitExceeded(PostroomError):
    """More of something than a mailbox may hold: `invalid_request`, and `NO [LIMIT]` to IMAP (RFC 9738 §3)."""

    def __init__(self, path: str, limit: int) -> None:
        message = f"there may be at most {limit}"
        super().__init__("invalid_request", details={"errors": [{"path": path, "message": message}], "limit": limit})


def invalid(path: str, message: str) -> PostroomError:
    """The error of one value that a caller got wrong."""
    return PostroomError("invalid_request", details={"errors": [{"path": path, "message": message}]})


def folder_name(raw: str) -> str:
    """The canonical form of a folder's path: NFC, INBOX in capitals wherever it is the first segment (D2).

    INBOX may have children. Raises `invalid_request`.
    """
    # Normalising may lengthen a text threefold at the most, so what is far too long is refused before.
    if len(raw) > MAX_PATH_BYTES:
        raise invalid("name", f"a path has at most {MAX_PATH_BYTES} bytes")
    segments = unicodedata.normalize("NFC", raw).split(SEPARATOR)
    if segments[0].isascii() and segments[0].upper() == INBOX:
        segments[0] = INBOX
    for segment in segments:
        _check_segment(segment)
    name = SEPARATOR.join(segments)
    if len(name.encode()) > MAX_PATH_BYTES:
        raise invalid("name", f"a path has at most {MAX_PATH_BYTES} bytes")
    return name


def _check_segment(segment: str) -> None:
    if segment in _REFUSED_SEGMENTS:
        raise invalid("name", "a name is empty, `.` or `..`")
    if any(c in _REFUSED_CHARACTERS or unicodedata.category(c) in _REFUSED_CATEGORIES for c in segment):
        raise invalid("name", "a name has a backslash, colon, control character or line separator")
    if len(segment.encode()) > MAX_SEGMENT_BYTES:
        raise invalid("name", f"a name has at most {MAX_SEGMENT_BYTES} bytes")


def ancestors(name: str) -> list[str]:
    """The paths above `name`, from the top: `a/b/c` gives `a`, `a/b`."""
    segments = name.split(SEPARATOR)
    return [SEPARATOR.join(segments[:depth]) for depth in range(1, len(segments))]


def is_within(name: str, folder: str) -> bool:
    """Whether `name` is `folder` or stands below it."""
    return name == folder or name.startswith(folder + SEPARATOR)


def is_quarantine(name: str) -> bool:
    """Whether `name` is the folder of quarantined mail or stands below it."""
    return name.partition(SEPARATOR)[0] == QUARANTINE


def folder_order(name: str) -> tuple[bool, list[str]]:
    """Sort key of a folder list: INBOX and what is under it first, then by the alphabet, children after their parent
    (D2).
    """
    segments = name.split(SEPARATOR)
    return segments[0] != INBOX, segments


def flag_word(raw: str) -> str:
    """The stored form of a flag: lower case.

    Raises `invalid_request` when it is no IMAP atom of at most 100 characters.
    """
    if len(raw) > MAX_FLAG_LENGTH or not raw.isascii():
        raise invalid("flags", "a flag is at most 100 ASCII characters")
    word = raw.lower()
    if _FLAG.fullmatch(word) is None:
        raise invalid("flags", "a flag is a word without spaces, quotes, brackets or wildcards")
    return word


def flag_words(raw: Iterable[str]) -> frozenset[str]:
    """`flag_word` of each."""
    return frozenset(map(flag_word, raw))


def change_flags(old: Sequence[str], mode: FlagMode, flags: frozenset[str]) -> Flags:
    """The set after the change, canonical. Raises `LimitExceeded` when it grows beyond 64 keywords (D5)."""
    match mode:
        case FlagMode.ADD:
            new = flags.union(old)
        case FlagMode.REMOVE:
            new = frozenset(old) - flags
        case FlagMode.REPLACE:
            new = flags
    # A set that is too large already (from an earlier limit) may still shrink.
    if len(new) > MAX_FLAGS and len(new - SYSTEM_FLAGS) > MAX_FLAGS and not new.issubset(old):
        raise LimitExceeded("flags", MAX_FLAGS)
    return tuple(sorted(new))


def edit_flags(old: Sequence[str], add: frozenset[str], remove: frozenset[str]) -> Flags:
    """`remove`, then `add`: what is in both is there afterwards. Raises `LimitExceeded`."""
    return change_flags(change_flags(old, FlagMode.REMOVE, remove), FlagMode.ADD, add)


def labels(flags: Iterable[str]) -> tuple[str, ...]:
    """The flags that are labels of the API: keywords without `$` that fit the pattern of a label (A5, D5), sorted."""
    return tuple(sorted(flag for flag in flags if _LABEL.fullmatch(flag)))


def is_read(flags: Iterable[str]) -> bool:
    """Whether the message counts as read."""
    return FLAG_SEEN in flags


MAX_PARTICIPANTS: Final = 50
MAX_PARTICIPANT_NAME: Final = 78


def without_token(address: str) -> str:
    """The address without a thread token, which says which thread, not who: with and without it, it is one person."""
    if "+" not in address:
        return address
    local, _, domain = address.rpartition("@")
    base, _, detail = local.partition("+")
    return f"{base}@{domain}" if looks_like_token(detail) else address


def is_own(address: str, own: frozenset[str]) -> bool:
    """Whether an address is one of `own`, the mailbox's, with or without a detail: thread tokens are details (A2)."""
    return address in own or ("+" in address and without_detail(address) in own)


def participants(appearances: Iterable[tuple[str, str]], own: frozenset[str]) -> list[dict[str, str]]:
    """The first 50 people of a thread from (address, name) in order of appearance, without the mailbox's own addresses.

    The newest name that is not empty wins (inbound.md §28.10).
    """
    people: dict[str, str] = {}
    for written, name in appearances:
        address = without_token(written)
        if not address or is_own(address, own):
            continue
        if address in people:
            people[address] = name[:MAX_PARTICIPANT_NAME] or people[address]
        elif len(people) < MAX_PARTICIPANTS:
            people[address] = name[:MAX_PARTICIPANT_NAME]
    return [{"address": address, "name": name} for address, name in people.items()]
