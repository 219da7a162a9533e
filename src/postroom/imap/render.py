"""Responses as bytes (RFC 9051 §7, RFC 3501 §7): whole lines with CRLF, or values to put into one.

Large values are never copied: `fetch_buffers` gives a list for `writelines`, with literals as they came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from postroom.imap.errors import CommandError, Status
from postroom.imap.flags import wire_flag
from postroom.imap.names import encode_name
from postroom.imap.sequence import compress
from postroom.imap.wire import Rejected

CRLF = b"\r\n"
NIL = b"NIL"
#: Longer values go out as literals; clients read lines into small buffers.
MAX_QUOTED = 1_000

_ASTRING = re.compile(rb'[^\x00-\x20\x7f-\xff(){%*"\\]+').fullmatch
_QUOTABLE = re.compile(rb"[\x01-\x09\x0b\x0c\x0e-\x7f]*").fullmatch
_SPECIALS = re.compile(rb'(["\\])')
_TEXT = re.compile(r"[^\x20-\x7e]+")
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")

# -- values


def quoted(value: bytes) -> bytes:
    """``"…"``; the caller knows that `value` has no CR, LF or NUL."""
    return b'"' + (_SPECIALS.sub(rb"\\\1", value) if b'"' in value or b"\\" in value else value) + b'"'


def literal_header(size: int, *, binary: bool = False) -> bytes:
    """``{n}CRLF``, or ``~{n}CRLF`` of a ``literal8``; the octets follow."""
    return b"~{%d}\r\n" % size if binary else b"{%d}\r\n" % size


def literal(value: bytes) -> bytes:
    """``{n}CRLF`` and the octets."""
    return literal_header(len(value)) + value


def string(value: bytes, *, utf8: bool = False) -> bytes:
    """Quoted when the grammar allows it, else a literal. `utf8`: quoted strings may hold UTF-8 (RFC 6855, RFC 9051)."""
    if len(value) <= MAX_QUOTED and (_QUOTABLE(value) or (utf8 and _is_quotable_utf8(value))):
        return quoted(value)
    return literal(value)


def nstring(value: bytes | None, *, utf8: bool = False) -> bytes:
    """`string`, or NIL for None."""
    return NIL if value is None else string(value, utf8=utf8)


def astring(value: bytes, *, utf8: bool = False) -> bytes:
    """The plain run of characters when it is one (and is not NIL), else `string`."""
    if _ASTRING(value) and value.upper() != NIL:
        return value
    return string(value, utf8=utf8)


def mailbox(name: str, *, utf8: bool = False) -> bytes:
    """A mailbox name as astring, in modified UTF-7 unless `utf8`."""
    return astring(encode_name(name, utf8=utf8), utf8=utf8)


def number_list(numbers: Iterable[int]) -> bytes:
    """``1 2 3``."""
    return b" ".join([b"%d" % number for number in numbers])


@lru_cache(maxsize=4096)
def flags(words: tuple[str, ...], *, recent: bool = False) -> bytes:
    """``(\\Seen $label1)`` from stored words; the same few tuples occur for ever, hence the cache."""
    shown = [wire_flag(word) for word in words]
    if recent:
        shown.append(rb"\Recent")
    return b"(" + b" ".join(shown) + b")"


def internal_date(when: datetime) -> bytes:
    """``"17-Jul-1996 02:44:25 -0700"``; a naive `when` counts as UTC, parts of a minute of the offset are dropped."""
    offset = when.utcoffset()
    minutes = 0 if offset is None else int(offset.total_seconds() / 60)
    sign = b"-" if minutes < 0 else b"+"
    hours, minutes = divmod(abs(minutes), 60)
    return b'"%2d-%b-%04d %02d:%02d:%02d %b%02d%02d"' % (
        when.day,
        _MONTHS[when.month - 1],
        when.year,
        when.hour,
        when.minute,
        when.second,
        sign,
        hours,
        minutes,
    )


# -- response codes with arguments


def code_appenduid(uid_validity: int, uids: Iterable[int]) -> str:
    """``APPENDUID`` (RFC 4315 §3)."""
    return f"APPENDUID {uid_validity} {compress(uids).decode()}"


def code_copyuid(uid_validity: int, source: Iterable[int], target: Iterable[int]) -> str:
    """``COPYUID``; the n-th of `source` became the n-th of `target` (RFC 4315 §3)."""
    return f"COPYUID {uid_validity} {compress(source).decode()} {compress(target).decode()}"


def code_permanent_flags(words: Sequence[str], *, new_keywords: bool = True) -> str:
    """``PERMANENTFLAGS``, with ``\\*`` when clients may create keywords."""
    shown = [wire_flag(word).decode() for word in words] + (["\\*"] if new_keywords else [])
    return f"PERMANENTFLAGS ({' '.join(shown)})"


def code_highest_modseq(modseq: int) -> str:
    """``HIGHESTMODSEQ`` (RFC 7162 §3.1.2)."""
    return f"HIGHESTMODSEQ {modseq}"


def code_modified(numbers: Iterable[int]) -> str:
    """``MODIFIED``: what a conditional STORE left alone (RFC 7162 §3.1.3)."""
    return f"MODIFIED {compress(numbers).decode()}"


def code_message_limit(limit: int, lowest_uid: int | None = None) -> str:
    """``MESSAGELIMIT``: how many messages at once, and the lowest UID of those that were worked on (RFC 9738 §3.1)."""
    return f"MESSAGELIMIT {limit}" if lowest_uid is None else f"MESSAGELIMIT {limit} {lowest_uid}"


def code_capability(capabilities: Iterable[str]) -> str:
    """``CAPABILITY`` as a code of the greeting or of LOGIN's OK."""
    return "CAPABILITY " + " ".join(capabilities)


# -- status lines


def tagged(tag: bytes, status: Status, text: str, code: str | None = None) -> bytes:
    """``tag OK [code] text``; characters that a line cannot hold become spaces."""
    return b"%b %b\r\n" % (tag, _status_text(status, text, code))


def untagged(status: Status, text: str, code: str | None = None) -> bytes:
    """``* OK [code] text``; also the greeting and BYE."""
    return b"* %b\r\n" % _status_text(status, text, code)


def failure(tag: bytes | None, error: CommandError) -> bytes:
    """The answer to a command that failed; without a tag it is ``* BAD``."""
    if tag is None:
        return untagged(error.status, error.text, error.code)
    return tagged(tag, error.status, error.text, error.code)


def rejection(event: Rejected) -> bytes:
    """The answer to a command that the reader refused; ends in ``* BYE`` when the connection is to be closed."""
    line = _status_text(event.status, event.text, event.code)
    answer = b"%b %b\r\n" % (event.tag or b"*", line)
    return answer + untagged(Status.BYE, event.text) if event.close else answer


def continuation(text: str = "OK") -> bytes:
    """``+ text``; for SASL the caller passes base64."""
    return b"+ %b\r\n" % _clean(text)


def _status_text(status: Status, text: str, code: str | None) -> bytes:
    words = _clean(text) or b"."
    if code is None:
        return b"%b %b" % (status.encode(), words)
    return b"%b [%b] %b" % (status.encode(), _clean(code), words)


def _clean(text: str) -> bytes:
    return _TEXT.sub(" ", text).encode("ascii")


# -- data lines


def capability_line(capabilities: Iterable[str]) -> bytes:
    """``* CAPABILITY …``."""
    return b"* CAPABILITY " + " ".join(capabilities).encode("ascii") + CRLF


def enabled_line(capabilities: Iterable[str]) -> bytes:
    """``* ENABLED …``."""
    return b" ".join([b"* ENABLED", *(name.encode("ascii") for name in capabilities)]) + CRLF


def id_line(fields: Mapping[str, str | None] | None) -> bytes:
    """``* ID (…)`` or ``* ID NIL``."""
    if not fields:
        return b"* ID NIL\r\n"
    pairs = [
        string(name.encode()) + b" " + nstring(None if value is None else value.encode())
        for name, value in fields.items()
    ]
    return b"* ID (" + b" ".join(pairs) + b")\r\n"


def namespace_line(personal_prefix: str = "", others: str | None = None, sep: str = "/") -> bytes:
    """``* NAMESPACE``: one personal namespace, one of other people's mailboxes if there is one (RFC 2342)."""
    personal, *rest = [
        b"((%b %b))" % (quoted(encode_name(prefix)), quoted(sep.encode()))
        for prefix in (personal_prefix, others)
        if prefix is not None
    ]
    return b"* NAMESPACE %b %b NIL\r\n" % (personal, *(rest or [NIL]))


def list_line(
    attributes: Iterable[str],
    name: str,
    *,
    sep: str | None = "/",
    utf8: bool = False,
    command: str = "LIST",
    extended: bytes = b"",
) -> bytes:
    """``* LIST (\\HasNoChildren \\Sent) "/" Sent``; `extended` is a rendered extended-item list (RFC 5258 §4)."""
    return b"* %b (%b) %b %b%b\r\n" % (
        command.encode("ascii"),
        " ".join(attributes).encode("ascii"),
        NIL if sep is None else quoted(sep.encode("ascii")),
        mailbox(name, utf8=utf8) if name else b'""',
        b" " + extended if extended else b"",
    )


def status_line(name: str, items: Iterable[tuple[str, int | str]], *, utf8: bool = False) -> bytes:
    """``* STATUS name (MESSAGES 3 …)``; a value of `str` is put as it is (``(mailboxid)``, NIL)."""
    pairs = " ".join(f"{item} {value}" for item, value in items)
    return b"* STATUS %b (%b)\r\n" % (mailbox(name, utf8=utf8), pairs.encode("ascii"))


def metadata_line(name: str, values: Iterable[tuple[str, bytes | None]], *, utf8: bool = False) -> bytes:
    """``* METADATA INBOX (/shared/comment "x")``; an empty name is the server (RFC 5464 §4.4.1)."""
    shown = []
    for entry, value in values:
        binary = value is not None and b"\0" in value
        text = literal_header(len(value), binary=True) + value if binary and value is not None else nstring(value)
        shown.append(astring(entry.encode()) + b" " + text)
    return b"* METADATA %b (%b)\r\n" % (mailbox(name, utf8=utf8) if name else b'""', b" ".join(shown))


def my_rights_line(name: str, rights: str, *, utf8: bool = False) -> bytes:
    """``* MYRIGHTS INBOX lr`` (RFC 4314 §3.8)."""
    return b"* MYRIGHTS %b %b\r\n" % (mailbox(name, utf8=utf8), astring(rights.encode()))


def acl_line(name: str, rights: Iterable[tuple[str, str]], *, utf8: bool = False) -> bytes:
    """``* ACL INBOX anna lr``: pairs of who and what (RFC 4314 §3.6)."""
    words = [mailbox(name, utf8=utf8)]
    for pair in rights:
        words += [astring(word.encode(), utf8=utf8) for word in pair]
    return b"* ACL " + b" ".join(words) + CRLF


def list_rights_line(
    name: str, identifier: str, required: str, optional: Iterable[str], *, utf8: bool = False
) -> bytes:
    """``* LISTRIGHTS INBOX anna "" lr a``: what is always granted, and what can be, tied rights together (§3.7)."""
    words = [mailbox(name, utf8=utf8)]
    words += [astring(word.encode(), utf8=utf8) for word in (identifier, required, *optional)]
    return b"* LISTRIGHTS " + b" ".join(words) + CRLF


def metadata_changed_line(name: str, entries: Iterable[str], *, utf8: bool = False) -> bytes:
    """``* METADATA INBOX /shared/x /shared/y``: entries that are not what they were (RFC 5464 §4.4.2)."""
    shown = b" ".join(astring(entry.encode()) for entry in entries)
    return b"* METADATA %b %b\r\n" % (mailbox(name, utf8=utf8) if name else b'""', shown)


def quota_root_line(name: str, root: str, *, utf8: bool = False) -> bytes:
    """``* QUOTAROOT INBOX root`` (RFC 9208 §4.2.2)."""
    return b"* QUOTAROOT %b %b\r\n" % (mailbox(name, utf8=utf8), astring(root.encode(), utf8=utf8))


def quota_line(root: str, resources: Iterable[tuple[str, int, int]]) -> bytes:
    """``* QUOTA root (STORAGE 10 512)``: each resource with its use and its limit (RFC 9208 §4.2.1)."""
    shown = " ".join(f"{name} {used} {limit}" for name, used, limit in resources)
    return b"* QUOTA %b (%b)\r\n" % (astring(root.encode()), shown.encode("ascii"))


def flags_line(words: Sequence[str]) -> bytes:
    """``* FLAGS (…)`` of SELECT."""
    return b"* FLAGS " + flags(tuple(words)) + CRLF


def exists(count: int) -> bytes:
    """``* n EXISTS``."""
    return b"* %d EXISTS\r\n" % count


def recent(count: int) -> bytes:
    """``* n RECENT``."""
    return b"* %d RECENT\r\n" % count


def expunge(sequence: int) -> bytes:
    """``* n EXPUNGE``."""
    return b"* %d EXPUNGE\r\n" % sequence


def vanished(uids: bytes, *, earlier: bool = False) -> bytes:
    """``* VANISHED 300:303`` of a compressed set (RFC 7162 §3.2.10); `earlier`: before the session knew the mailbox."""
    return b"* VANISHED %b%b\r\n" % (b"(EARLIER) " if earlier else b"", uids)


def found_line(word: bytes, numbers: Sequence[bytes], modseq: int | None = None) -> list[bytes]:
    """``* SEARCH 1 2 3`` (or SORT) of parts of its list of numbers, as buffers.

    With the highest modseq of what was found where it was asked about (RFC 7162 §3.1.5, §3.1.6).
    """
    tail = b"\r\n" if modseq is None or not numbers else b" (MODSEQ %d)\r\n" % modseq
    return [b"* " + word, *(b" " + part for part in numbers), tail]


def esearch_line(tag: bytes, results: Iterable[tuple[str, bytes]], *, uid: bool = False) -> bytes:
    """``* ESEARCH (TAG "a1") UID ALL 1:3`` (RFC 4731); `results` in the order they shall stand."""
    parts = [b"* ESEARCH (TAG " + quoted(tag) + b")"]
    if uid:
        parts.append(b"UID")
    parts.extend(b"%b %b" % (name.encode("ascii"), value) for name, value in results)
    return b" ".join(parts) + CRLF


def fetch_buffers(sequence: int, items: Iterable[bytes | tuple[bytes, bytes | memoryview]]) -> list[bytes | memoryview]:
    """``* n FETCH (…)`` of rendered items such as ``b'UID 4'``, as buffers.

    An item may be (label, octets), whose octets become a literal without being copied.
    """
    buffers: list[bytes | memoryview] = [b"* %d FETCH (" % sequence]
    gap = b""
    for item in items:
        if isinstance(item, tuple):
            label, octets = item
            buffers.append(b"%b%b %b" % (gap, label, literal_header(len(octets))))
            buffers.append(octets)
        else:
            buffers.append(gap + item)
        gap = b" "
    buffers.append(b")\r\n")
    return buffers


def _is_quotable_utf8(value: bytes) -> bool:
    if b"\r" in value or b"\n" in value or b"\0" in value:
        return False
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
