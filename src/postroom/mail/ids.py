"""Message identifiers (RFC 5322 §3.6.4) in the one form in which they are compared and stored (inbound §28.5)."""

import re
from typing import Final

MAX_ID_BYTES: Final = 998
MAX_REFERENCES: Final = 200
_MAX_WITH_COMMENTS: Final = 4 * MAX_ID_BYTES

_SPACE: Final = re.compile(r"[\s\x00]+")
_EDGE_COMMENT: Final = re.compile(r"\A\([^()]*+\)|\([^()]*+\)\Z")
_NO_BRACKETS: Final = str.maketrans("", "", "<>")
_ANGLED: Final = re.compile(r"<([^<>]*+)>")


def normalise_message_id(value: str) -> str | None:
    """Normal form, without angle brackets: lower case after the last `@`, free of white space and edge comments.

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
    value = f"{local}@{domain.lower()}"
    if len(value) * 4 > MAX_ID_BYTES and len(value.encode("utf-8", "replace")) > MAX_ID_BYTES:
        return None
    return value


def parse_references(value: str) -> list[str]:
    """Normalised ids of a `References` or `In-Reply-To` value in order; malformed ones are skipped.

    The last 200 are kept (inbound §10). A value without any angle brackets counts as a list of bare ids.
    """
    tokens = _ANGLED.findall(value) or value.split()
    ids: list[str] = []
    # From the end, because the newest ancestors stand last and only they survive the cap.
    for token in reversed(tokens):
        normal = normalise_message_id(token)
        if normal is not None:
            ids.append(normal)
            if len(ids) == MAX_REFERENCES:
                break
    ids.reverse()
    return ids
