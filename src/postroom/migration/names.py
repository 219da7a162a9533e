"""Names of folders: theirs to ours, and ours to directories and files (mail-server D2, E1; RFC 3501 §5.1.3)."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from postroom.imap.errors import BadCommand
from postroom.imap.names import decode_name, encode_name
from postroom.mailbox.models import SpecialUse
from postroom.mailbox.rules import INBOX, MAX_PATH_BYTES, MAX_SEGMENT_BYTES, SEPARATOR
from postroom.migration.models import SourceFolder

COMMON_NAMES: Final[Mapping[str, SpecialUse]] = MappingProxyType(
    {
        "Sent": SpecialUse.SENT,
        "Sent Items": SpecialUse.SENT,
        "Sent Messages": SpecialUse.SENT,
        "Sent Mail": SpecialUse.SENT,
        "Drafts": SpecialUse.DRAFTS,
        "Trash": SpecialUse.TRASH,
        "Deleted Items": SpecialUse.TRASH,
        "Deleted Messages": SpecialUse.TRASH,
        "Junk": SpecialUse.JUNK,
        "Junk E-mail": SpecialUse.JUNK,
        "Junk Email": SpecialUse.JUNK,
        "Spam": SpecialUse.JUNK,
        "Archive": SpecialUse.ARCHIVE,
        "Archives": SpecialUse.ARCHIVE,
    }
)
"""Names that programs give to folders of a role. Other languages say it by an attribute (RFC 6154), or not at all."""

MAX_FILE_NAME: Final = 200
"""Octets of a name that we give to a directory or file, suffixes aside."""
_REPLACEMENT: Final = "_"
_SHORT: Final = 24
_DEEP: Final = 30
"""Levels that are kept of a path which is too long though each of its segments is short."""


def segment_words(raw: bytes) -> str:
    """A segment of a name as servers keep it: modified UTF-7, or UTF-8; what is neither is taken letter by letter."""
    try:
        return decode_name(raw) if raw.isascii() else raw.decode("utf-8")
    except (BadCommand, UnicodeDecodeError):
        return raw.decode("utf-8") if raw.isascii() else raw.decode("latin-1")


def our_name(path: Sequence[str]) -> str:
    """The path as one of our names: what may not stand in it becomes an underscore, what is too long is cut."""
    segments = [_our_segment(segment) for segment in path] or [_REPLACEMENT]
    if segments[0].upper() == INBOX and segments[0].isascii():
        segments[0] = INBOX
    while len(SEPARATOR.join(segments).encode()) > MAX_PATH_BYTES:
        longest = max(range(len(segments)), key=lambda at: len(segments[at].encode()))
        if len(segments[longest].encode()) <= _SHORT:  # nothing but depth: the lowest levels become one
            segments = [*segments[:_DEEP], _digest(segments)]
        else:
            segments[longest] = _cut(segments[longest], len(segments[longest].encode()) // 2)
    return SEPARATOR.join(segments)


def _our_segment(segment: str) -> str:
    text = unicodedata.normalize("NFC", segment)
    text = "".join(_REPLACEMENT if c in "/\\:" or unicodedata.category(c) in ("Cc", "Cs") else c for c in text)
    if text in ("", ".", ".."):
        return _REPLACEMENT * max(1, len(text))
    return _cut(text, MAX_SEGMENT_BYTES) if len(text.encode()) > MAX_SEGMENT_BYTES else text


def _cut(text: str, octets: int) -> str:
    """The beginning of the text and a digest of all of it, so that two long names stay two."""
    mark = _digest([text])
    room = max(0, octets - len(mark) - 1)
    return text.encode()[:room].decode(errors="ignore") + "~" + mark


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:10]


def roles_of(folders: Sequence[SourceFolder]) -> dict[bytes, SpecialUse]:
    """Which of our roles the source's folders have, by key: what the source says, else our own name, else a common one;
    at most one folder for each role.
    """
    roles: dict[bytes, SpecialUse] = {}
    taken: set[SpecialUse] = {SpecialUse.INBOX}
    common = list(COMMON_NAMES)
    says = [folder for folder in folders if folder.role in set(COMMON_NAMES.values()) and not is_inbox(folder)]
    named = [folder for folder in folders if len(folder.path) == 1 and folder.path[0] in COMMON_NAMES]
    named.sort(key=lambda folder: common.index(folder.path[0]))
    for folder, role in [(one, one.role) for one in says] + [(one, COMMON_NAMES[one.path[0]]) for one in named]:
        if role is not None and role not in taken and folder.key not in roles:
            taken.add(role)
            roles[folder.key] = role
    return roles


def is_inbox(folder: SourceFolder) -> bool:
    return len(folder.path) == 1 and folder.path[0].isascii() and folder.path[0].upper() == INBOX


# -- files -------------------------------------------------------------------------------------------------------------


def maildir_directory(name: str) -> bytes:
    """The directory of a folder in Maildir++: `.A.B` in modified UTF-7; INBOX is the root (Dovecot, Courier).

    A full stop cannot stand in a name there, nor a name of more octets than a file system takes.
    """
    if name == INBOX:
        return b"."
    segments = [encode_name(segment.replace(".", _REPLACEMENT)) for segment in name.split(SEPARATOR)]
    directory = b"." + b".".join(segments)
    if len(directory) > MAX_FILE_NAME or not all(segments):
        directory = b".long-" + _digest([name]).encode()
    return directory


def mbox_file(name: str) -> str:
    """The file of a folder, relative to the export: `Archive/2026.mbox`."""
    segments = [segment.replace(".", _REPLACEMENT, segment.startswith(".")) for segment in name.split(SEPARATOR)]
    segments = [one if len(one.encode()) <= MAX_FILE_NAME else _cut(one, MAX_FILE_NAME) for one in segments]
    # No directory has a name that a file may have.
    above = [one + _REPLACEMENT if one.casefold().endswith((".mbox", ".part")) else one for one in segments[:-1]]
    return "/".join([*above, segments[-1]]) + ".mbox"


def apart(wanted: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Name → file, where no two names have the same file, also where letters differ in case only."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name, file in wanted:
        chosen, suffix = file, ""
        if chosen.casefold() in taken:
            stem, dot, suffix = file.rpartition(".mbox") if file.endswith(".mbox") else (file, "", "")
            chosen = f"{stem}~{_digest([name])}{dot}{suffix}"
        taken.add(chosen.casefold())
        found[name] = chosen
    return found
