"""What the server offers, and when (mail-server D1). Only what works is named here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from postroom.imap.cursor import ParserOptions

#: Extensions beyond the grammar of mail-server D1 whose words the parser reads.
EXTENSIONS: Final = (
    "ESEARCH",
    "LIST-STATUS",
    "STATUS=SIZE",
    "CREATE-SPECIAL-USE",
    "WITHIN",
    "OBJECTID",
    "SAVEDATE",
    "CONDSTORE",
    "QRESYNC",
    "QUOTA",
    "QUOTA=RES-STORAGE",
    "COMPRESS=DEFLATE",
    "METADATA",
    "MULTIAPPEND",
    "CATENATE",
    "REPLACE",
    "BINARY",
    "UTF8=ACCEPT",
    "PREVIEW",
    "SORT",
    "SORT=DISPLAY",
    "ESORT",
    "THREAD=ORDEREDSUBJECT",
    "THREAD=REFERENCES",
    "SEARCHRES",
    "PARTIAL",
    "CONTEXT=SEARCH",
    "CONTEXT=SORT",
    "SEARCH=FUZZY",
    "NOTIFY",
    "INPROGRESS",
)

#: What ENABLE turns on, each with what it brings along (RFC 5161, RFC 7162 §3.2.3).
ENABLES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"CONDSTORE": ("CONDSTORE",), "QRESYNC": ("QRESYNC", "CONDSTORE"), "UTF8=ACCEPT": ("UTF8=ACCEPT",)}
)

_ALWAYS: Final = (
    "IMAP4rev1",
    "LITERAL+",
    "ID",
    "ENABLE",
    "IDLE",
    "NAMESPACE",
    "CHILDREN",
    "UIDPLUS",
    "UNSELECT",
    "MOVE",
    "SPECIAL-USE",
)
_BEFORE_LOGIN: Final = (*_ALWAYS, "SASL-IR")
_AFTER_LOGIN: Final = (*_ALWAYS, "LIST-EXTENDED", *EXTENSIONS)

#: With one of these enabled, names and quoted strings are UTF-8.
UTF8_WORDS: Final = frozenset({"UTF8=ACCEPT", "IMAP4REV2"})


@lru_cache(maxsize=64)
def options(enabled: frozenset[str]) -> ParserOptions:
    """What a session may say that has enabled so much."""
    return ParserOptions(
        utf8=not enabled.isdisjoint(UTF8_WORDS),
        capabilities=frozenset((*EXTENSIONS, "APPENDLIMIT")),
        charsets="UTF8=ACCEPT" not in enabled,
    )


def capabilities(
    *, signed_in: bool, may_sign_in: bool, may_start_tls: bool, append_limit: int | None = None
) -> tuple[str, ...]:
    """The list as it stands now: before sign-in it says how one may sign in.

    `append_limit`: octets of a message that may be appended to any folder (RFC 7889 §3.1).
    """
    if signed_in:
        return _AFTER_LOGIN if append_limit is None else (*_AFTER_LOGIN, f"APPENDLIMIT={append_limit}")
    how = ("AUTH=PLAIN",) if may_sign_in else ("LOGINDISABLED",)
    return (*_BEFORE_LOGIN, *(("STARTTLS",) if may_start_tls else ()), *how)
