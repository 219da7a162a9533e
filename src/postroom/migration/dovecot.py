"""The files by which Dovecot remembers what a Maildir cannot hold: UIDs, keywords, subscriptions.

Formats as https://doc.dovecot.org/2.3/developer_manual/design/indexes/ and its pages on Maildir describe them. What
cannot be made sense of counts as not there: a message then gets a new UID, or loses a keyword.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

UIDLIST: Final = "dovecot-uidlist"
KEYWORDS: Final = "dovecot-keywords"
SUBSCRIPTIONS: Final = "subscriptions"
MAX_FILE: Final = 64 * 1024 * 1024
"""Octets of one of these files that are read."""
MAX_UID: Final = 2**32 - 1
KEYWORD_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"

_HEADER_3: Final = re.compile(rb"3((?: [A-Za-z][^ \r\n]*)*)")
_HEADER_1: Final = re.compile(rb"1 (\d{1,10}) (\d{1,10})")
_ENTRY_3: Final = re.compile(rb"(\d{1,10}) (?:[A-Za-z][^ :]* )*:(.+)")
_ENTRY_1: Final = re.compile(rb"(\d{1,10}) (.+)")
_KEYWORD: Final = re.compile(rb"(\d{1,2}) (\S+)")


@dataclass(frozen=True, slots=True)
class UidList:
    """UIDVALIDITY, UIDNEXT, and the UID of each file by the part of its name that stays."""

    uid_validity: int
    uid_next: int
    uids: Mapping[bytes, int]


def base_name(name: bytes) -> bytes:
    """The part of a file's name that stays when flags change."""
    return split_name(name)[0]


def split_name(name: bytes) -> tuple[bytes, str]:
    """The lasting part of a file's name and its flags. `:2,` separates; `;`, and a missing `2,`, are read too (D5)."""
    for separator in (b":", b";"):
        base, found, info = name.rpartition(separator)
        if found and b"," not in info.removeprefix(b"2,") and not info.startswith(b"1,"):
            return base, info.removeprefix(b"2,").decode("latin-1")
        if found and info[:2] in (b"1,", b"2,"):
            return base, info[2:].decode("latin-1") if info[:1] == b"2" else ""
    return name, ""


def parse_uidlist(data: bytes) -> UidList | None:
    """Version 3 or 1 of the file; None when it is neither, or its UIDs are not what UIDs are."""
    lines = data.split(b"\n")
    head = _header(lines[0].rstrip(b"\r"))
    if head is None:
        return None
    uid_validity, uid_next, entry = head
    uids: dict[bytes, int] = {}
    last = 0
    for line in lines[1:]:
        if not line:
            continue
        found = entry.fullmatch(line.rstrip(b"\r"))
        if found is None:
            continue  # the last line may have been cut off
        uid = int(found[1])
        if not last < uid <= MAX_UID:
            return None
        last = uid
        uids[base_name(found[2])] = uid
    uid_next = max(uid_next, last + 1)
    if not (0 < uid_validity <= MAX_UID and uid_next <= MAX_UID):
        return None
    return UidList(uid_validity, uid_next, uids)


def _header(line: bytes) -> tuple[int, int, re.Pattern[bytes]] | None:
    if found := _HEADER_1.fullmatch(line):
        return int(found[1]), int(found[2]), _ENTRY_1
    if found := _HEADER_3.fullmatch(line):
        fields = {field[:1]: field[1:] for field in found[1].split()}
        validity, following = fields.get(b"V", b""), fields.get(b"N", b"1")
        if validity.isdigit() and following.isdigit() and len(validity) <= 10 and len(following) <= 10:
            return int(validity), int(following), _ENTRY_3
    return None


def parse_keywords(data: bytes) -> dict[str, str]:
    """Letter → keyword, of lines `0 $Label1`."""
    found: dict[str, str] = {}
    for line in data.split(b"\n"):
        if (entry := _KEYWORD.fullmatch(line.strip())) and int(entry[1]) < len(KEYWORD_LETTERS):
            found[KEYWORD_LETTERS[int(entry[1])]] = entry[2].decode("ascii", "replace")
    return found


def parse_subscriptions(data: bytes) -> list[tuple[bytes, ...]]:
    """The names, by segments as they stand: version 2 parts them by tabs, the older form by the separator."""
    lines = [line.rstrip(b"\r") for line in data.split(b"\n")]
    if lines[0] == b"V\t2":
        return [tuple(line.split(b"\t")) for line in lines[1:] if line]
    return [tuple(re.split(rb"[./]", line)) for line in lines if line]


def format_uidlist(uid_validity: int, uid_next: int, entries: Iterable[tuple[int, bytes]]) -> bytes:
    """Version 3; entries are UIDs, ascending, and the lasting parts of names."""
    lines = [b"3 V%d N%d\n" % (uid_validity, uid_next)]
    lines += [b"%d :%s\n" % (uid, base) for uid, base in entries]
    return b"".join(lines)


def format_keywords(keywords: Sequence[str]) -> bytes:
    """Up to 26 keywords, in the order of their letters."""
    return b"".join(b"%d %s\n" % (at, word.encode()) for at, word in enumerate(keywords))


def format_subscriptions(names: Iterable[Sequence[bytes]]) -> bytes:
    """Version 2, which Dovecot reads since 2.2."""
    return b"V\t2\n\n" + b"".join(b"\t".join(segments) + b"\n" for segments in names)
