"""Tag lists, `name=value; …` (RFC 6376 §3.2), of signature fields and key records."""

import binascii
import re
from typing import Final, NamedTuple

MAX_TAGS: Final = 100

_FWS: Final = b" \t\r\n"
# Values are VALCHAR, white space of folding, and UTF-8 (RFC 8616 §4).
_TAG: Final = re.compile(rb"[ \t\r\n]*+([A-Za-z][A-Za-z0-9_]*+)[ \t\r\n]*+=([\t\n\r -:<-~\x80-\xff]*+)(?:;|\Z)")


class TagListError(ValueError):
    """Not a tag list."""


class Tag(NamedTuple):
    """A value without the white space around it; `start` and `end` bound it with that white space in the list."""

    value: bytes
    start: int
    end: int

    @property
    def compact(self) -> bytes:
        """The value without any white space, for values in which it means nothing."""
        return b"".join(self.value.split())


def parse_tags(text: bytes) -> dict[str, Tag]:
    """The tags by name, in order. Raises `TagListError`: syntax, a name twice (RFC 6376 §3.2), over `MAX_TAGS`."""
    tags: dict[str, Tag] = {}
    at = 0
    for match in _TAG.finditer(text):
        if match.start() != at:
            break
        name, value = match.groups()
        key = name.decode("ascii")
        if key in tags:
            raise TagListError("a tag twice")
        if len(tags) == MAX_TAGS:
            raise TagListError("too many tags")
        tags[key] = Tag(value.strip(_FWS), *match.span(2))
        at = match.end()
    if text[at:].strip(_FWS):
        raise TagListError("what stands between two semicolons is no tag")
    return tags


def decode_base64(tag: Tag) -> bytes:
    """The octets of a base64 value, folded or not (RFC 6376 §2.10). Raises `TagListError`."""
    try:
        return binascii.a2b_base64(tag.compact, strict_mode=True)
    except binascii.Error:
        raise TagListError("not base64") from None
