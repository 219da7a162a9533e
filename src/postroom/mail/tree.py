"""The part tree as stored bytes: sections and structures are served from it without reading the message again."""

from typing import Any, Final

import orjson

from postroom.mail.mime import PARSER_VERSION, Part

_PLAIN: Final = ("text", "plain")


def pack_tree(root: Part) -> bytes:
    """Compact bytes that `unpack_tree` restores to an equal tree, together with the parser's version."""
    return orjson.dumps([PARSER_VERSION, _pack(root)])


def unpack_tree(packed: bytes) -> Part:
    """Inverse of `pack_tree`, also for trees of earlier parser versions. ValueError if the bytes are no packed tree."""
    try:
        _, row = orjson.loads(packed)
        return _unpack(row)
    except (TypeError, LookupError, AttributeError) as error:
        raise ValueError("not a packed part tree") from error


def moved_tree(packed: bytes, by: int) -> bytes:
    """The packed tree of the same message with `by` bytes of further header fields before it. ValueError as above."""
    root = unpack_tree(packed)
    first = root.header_start
    parts = [root]
    while parts:
        part = parts.pop()
        part.header_start += by
        part.body_start += by
        part.body_end += by
        parts += part.children
    root.header_start = first
    return pack_tree(root)


def packed_version(packed: bytes) -> int:
    """Parser version that made a packed tree. ValueError if the bytes are no packed tree."""
    try:
        return int(orjson.loads(packed)[0])
    except (TypeError, LookupError) as error:
        raise ValueError("not a packed part tree") from error


def _pack(part: Part) -> list[Any]:
    row: list[Any] = [
        part.header_start,
        part.body_start,
        part.body_end,
        None if (part.type, part.subtype) == _PLAIN else [part.type, part.subtype],
        part.params or None,
        None if part.encoding == "7bit" else part.encoding,
        part.lines,
        [_pack(child) for child in part.children] or None,
        part.disposition,
        part.disposition_params or None,
        part.content_id,
        part.description,
        part.md5,
        part.language or None,
        part.location,
        None if part.envelope is None else part.envelope.decode("latin-1"),
    ]
    while row[-1] is None:
        row.pop()
    return row


def _unpack(row: list[Any]) -> Part:
    values = row + [None] * (16 - len(row))
    if not all(isinstance(offset, int) for offset in values[:3]):
        raise TypeError("offsets are missing")
    media = values[3] or _PLAIN
    return Part(
        header_start=values[0],
        body_start=values[1],
        body_end=values[2],
        type=media[0],
        subtype=media[1],
        params=values[4] or {},
        encoding=values[5] or "7bit",
        lines=values[6],
        children=[_unpack(child) for child in values[7] or ()],
        disposition=values[8],
        disposition_params=values[9] or {},
        content_id=values[10],
        description=values[11],
        md5=values[12],
        language=tuple(values[13] or ()),
        location=values[14],
        envelope=None if values[15] is None else values[15].encode("latin-1"),
    )
