"""Message identifiers (RFC 5322 §3.6.4) in the one form in which they are compared and stored (inbound §28.5)."""

import re
from typing import Final

MAX_ID_BYTES: Final = 998
MAX_REFERENCES_BYTES: Final = 32 * 1024
"""Octets of the ids that are kept, with a space after each."""
MAX_REFERENCES: Final = 200
_MAX_WITH_COMMENTS: Final = 4 * MAX_ID_BYTES

_SPACE: Final = re.compile(r"[\s\x00]+")
_EDGE_COMMENT: Final = re.compile(r"\A\([^()]*+\)|\([^()]*+\)\Z")
_COMMENT: Final = re.compile(r"\([^()]*+\)")
_NO_BRACKETS: Final = str.maketrans("", "", "<>")
_ANGLED: Final = re.compile(r"<([^<>]*+)>")
_BETWEEN: Final = re.compile(r"[\s,;]+")


def normalise_message_id(value: str) -> str | None:
    """Normal form, without angle brackets: lower case after the last `@`, free of white space and comments.

    Parentheses on the left that are no comment at its edge stay: some programs make ids of them.

    Takes what stands between the first `<` and the next `>`, else the trimmed value. None when it is empty, lacks an
    `@`, or is over 998 bytes.
    """
    start = value.find("<")
    if start >= 0:
        end = value.find(">", start)
        if end >= 0:
            value = value[start + 1 : end]
    # A bracket that has no partner is none of the id, wherever it stands.
    value = _SPACE.sub("", value).translate(_NO_BRACKETS)
    if len(value) > _MAX_WITH_COMMENTS:
        return None
    while "(" in value:
        stripped = _EDGE_COMMENT.sub("", value)
        if stripped == value:
            break
        value = stripped
    if "@" not in value or value == "@":
        return None
    local, _, domain = value.rpartition("@")
    if "(" in domain:
        domain = _COMMENT.sub("", domain)  # RFC 5322 §4.5.4 allows them there
    value = f"{local}@{domain.lower()}"
    if len(value) * 4 > MAX_ID_BYTES and len(value.encode("utf-8", "replace")) > MAX_ID_BYTES:
        return None
    return value


def parse_references(value: str) -> list[str]:
    """Normalised ids of a `References` or `In-Reply-To` value in order; malformed ones are skipped.

    The last 200 are kept, as far as they fit into 32 KiB (inbound §10). A value without any angle brackets counts as a
    list of bare ids.
    """
    return kept_references(value)[0]


def kept_references(value: str) -> tuple[list[str], bool]:
    """`parse_references`, and whether that is all of them."""
    tokens = _ANGLED.findall(value) or _BETWEEN.split(value)
    ids: list[str] = []
    room = MAX_REFERENCES_BYTES
    # From the end, because the newest ancestors stand last and only they survive the caps.
    for token in reversed(tokens):
        normal = normalise_message_id(token)
        if normal is None:
            continue
        room -= len(normal) + 1 if normal.isascii() else len(normal.encode("utf-8", "replace")) + 1
        if room < 0 or len(ids) == MAX_REFERENCES:
            ids.reverse()
            return ids, False
        ids.append(normal)
    ids.reverse()
    return ids, True
