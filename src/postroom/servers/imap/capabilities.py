"""What the server offers, and when (mail-server D1). Only what works is named here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    "ACL",
    "RIGHTS=kxte",
    "LIST-MYRIGHTS",
)

#: What ENABLE turns on, each with what it brings along (RFC 5161, RFC 7162 §3.2.3).
ENABLES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"CONDSTORE": ("CONDSTORE",), "QRESYNC": ("QRESYNC", "CONDSTORE"), "UTF8=ACCEPT": ("UTF8=ACCEPT",)}
    | {"IMAP4REV2": ("IMAP4REV2",)}
)

_ALWAYS: Final = (
    "IMAP4rev1",
    "IMAP4rev2",
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

#: Where each is described, and what a reader has to know of ours.
SAID_OF: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "IMAP4rev1": ("RFC 3501", ""),
        "IMAP4rev2": ("RFC 9051", "after `ENABLE IMAP4rev2`"),
        "LITERAL+": ("RFC 7888", ""),
        "SASL-IR": ("RFC 4959", "before sign-in"),
        "STARTTLS": ("RFC 9051 §6.2.1", "on ports without TLS, before sign-in"),
        "AUTH=PLAIN": ("RFC 4616", "where a password may travel (`allow_plaintext_auth`)"),
        "AUTH=SCRAM-SHA-256": ("RFC 5802, RFC 7677", "with application passwords; as above, and with `offer_scram`"),
        "AUTH=SCRAM-SHA-256-PLUS": ("RFC 5802, RFC 5929", "under TLS; channel binding `tls-server-end-point`"),
        "LOGINDISABLED": ("RFC 3501 §6.2.3", "where it may not"),
        "ID": ("RFC 2971", ""),
        "ENABLE": ("RFC 5161", ""),
        "IDLE": ("RFC 2177", "ends after `imap.max_idle_secs`"),
        "NAMESPACE": ("RFC 2342", "personal; for people also `Other Users/`, with the mailboxes granted to them"),
        "CHILDREN": ("RFC 3348", ""),
        "UIDPLUS": ("RFC 4315", ""),
        "UNSELECT": ("RFC 3691", ""),
        "MOVE": ("RFC 6851", ""),
        "SPECIAL-USE": ("RFC 6154", ""),
        "CREATE-SPECIAL-USE": ("RFC 6154", "one use for one folder"),
        "LIST-EXTENDED": ("RFC 5258", ""),
        "LIST-STATUS": ("RFC 5819", ""),
        "STATUS=SIZE": ("RFC 8438", ""),
        "WITHIN": ("RFC 5032", ""),
        "OBJECTID": ("RFC 8474", "ids are those of REST"),
        "SAVEDATE": ("RFC 8514", ""),
        "CONDSTORE": ("RFC 7162", ""),
        "QRESYNC": ("RFC 7162", "what went is told from a log of months; beyond it, all that is not there"),
        "QUOTA": ("RFC 9208", 'one root of a mailbox; that of the one which was opened is named `""`'),
        "QUOTA=RES-STORAGE": ("RFC 9208", "limits are set by who runs the server"),
        "COMPRESS=DEFLATE": ("RFC 4978", "until the connection is compressed"),
        "METADATA": ("RFC 5464", "unasked responses after NOTIFY"),
        "MULTIAPPEND": ("RFC 3502", "all of the messages or none"),
        "APPENDLIMIT": ("RFC 7889", "`imap.max_append_size`"),
        "MESSAGELIMIT": ("RFC 9738", "`imap.message_limit`; not of EXPUNGE, CLOSE, SORT and THREAD"),
        "CATENATE": ("RFC 4469", "URLs of the same mailbox"),
        "REPLACE": ("RFC 8508", "not with an API key"),
        "BINARY": ("RFC 3516", ""),
        "UTF8=ACCEPT": ("RFC 6855, RFC 9755", "messages are served as they are to every client"),
        "PREVIEW": ("RFC 8970", "always there, LAZY or not"),
        "ESEARCH": ("RFC 4731", ""),
        "SEARCHRES": ("RFC 5182", ""),
        "SEARCH=FUZZY": ("RFC 6203", "by the word index"),
        "PARTIAL": ("RFC 9394", ""),
        "SORT": ("RFC 5256", ""),
        "SORT=DISPLAY": ("RFC 5957", ""),
        "ESORT": ("RFC 5267", ""),
        "CONTEXT=SEARCH": ("RFC 5267", "16 of a session, 100,000 results"),
        "CONTEXT=SORT": ("RFC 5267", "as above"),
        "NOTIFY": ("RFC 5465", "no AnnotationChange"),
        "INPROGRESS": ("RFC 9585", "of commands that write whole lines"),
        "ACL": ("RFC 4314", "three sets of rights, of a mailbox as a whole; changed on its INBOX"),
        "RIGHTS=kxte": ("RFC 4314 §2.2", ""),
        "LIST-MYRIGHTS": ("RFC 8440", ""),
        "THREAD=ORDEREDSUBJECT": ("RFC 5256", ""),
        "THREAD=REFERENCES": ("RFC 5256", ""),
    }
)

#: With one of these enabled, names and quoted strings are UTF-8.
UTF8_WORDS: Final = frozenset({"UTF8=ACCEPT", "IMAP4REV2"})


@lru_cache(maxsize=64)
def options(enabled: frozenset[str]) -> ParserOptions:
    """What a session may say that has enabled so much."""
    return ParserOptions(
        utf8=not enabled.isdisjoint(UTF8_WORDS),
        capabilities=frozenset((*EXTENSIONS, "APPENDLIMIT", "MESSAGELIMIT", "IMAP4rev2")),
        charsets="UTF8=ACCEPT" not in enabled,
    )


def capabilities(
    *,
    signed_in: bool,
    may_sign_in: bool,
    may_start_tls: bool,
    append_limit: int | None = None,
    message_limit: int | None = None,
    scram: Sequence[str] = (),
    compressed: bool = False,
    may_replace: bool = True,
) -> tuple[str, ...]:
    """The list as it stands now: before sign-in it says how one may sign in.

    `append_limit`: octets of a message that may be appended to any folder (RFC 7889 §3.1). `message_limit`: messages
    that one command works on (RFC 9738 §3). `scram`: the mechanisms of that name there are. `compressed`: whether the
    connection is, which it can be once. `may_replace`: whether the session may remove messages for good.
    """
    if signed_in:
        limits = (("APPENDLIMIT", append_limit), ("MESSAGELIMIT", message_limit))
        refused = {*(("COMPRESS=DEFLATE",) if compressed else ()), *(() if may_replace else ("REPLACE",))}
        offered = tuple(word for word in _AFTER_LOGIN if word not in refused) if refused else _AFTER_LOGIN
        return (*offered, *(f"{word}={limit}" for word, limit in limits if limit is not None))
    how = tuple(f"AUTH={name}" for name in ("PLAIN", *scram)) if may_sign_in else ("LOGINDISABLED",)
    return (*_BEFORE_LOGIN, *(("STARTTLS",) if may_start_tls else ()), *how)
