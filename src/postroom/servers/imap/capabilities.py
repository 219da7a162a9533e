"""What the server offers, and when (mail-server D1). Only what works is named here."""

from __future__ import annotations

from collections.abc import Mapping
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
)

#: What ENABLE turns on, each with what it brings along (RFC 5161, RFC 7162 §3.2.3).
ENABLES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"CONDSTORE": ("CONDSTORE",), "QRESYNC": ("QRESYNC", "CONDSTORE")}
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

OPTIONS: Final = ParserOptions(capabilities=frozenset(EXTENSIONS))


def capabilities(*, signed_in: bool, may_sign_in: bool, may_start_tls: bool) -> tuple[str, ...]:
    """The list as it stands now: before sign-in it says how one may sign in."""
    if signed_in:
        return _AFTER_LOGIN
    how = ("AUTH=PLAIN",) if may_sign_in else ("LOGINDISABLED",)
    return (*_BEFORE_LOGIN, *(("STARTTLS",) if may_start_tls else ()), *how)
