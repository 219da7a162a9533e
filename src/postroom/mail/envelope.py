"""IMAP strings and ENVELOPE (RFC 3501 §7.4.2, §9; RFC 9051 §7.5.2) from header fields.

Values go out as they were written, unfolded. What IMAP4rev1 cannot carry in a quoted string is made safe: raw 8-bit
text becomes RFC 2047 encoded words where such words may stand, else a literal in UTF-8; NUL is dropped.
"""

import re
from base64 import b64encode
from typing import Final

from postroom.mail import charset
from postroom.mail.address import RawMailbox, read_raw_list
from postroom.mail.header import Headers, decode_words, unfold

_WORD_BYTES: Final = 45  # 60 characters of base64: a word stays below the 75 of RFC 2047 §2
_UNQUOTABLE: Final = re.compile(r"[\x00-\x1f\x7f]")
_TO_ESCAPE: Final = re.compile(r'(["\\])')


def imap_string(text: str) -> str:
    """`text` as a quoted string, or as a literal when it is not ASCII. The result's characters are bytes (latin-1)."""
    if not text.isascii():
        data = text.replace("\x00", "").encode("utf-8", "replace")
        return f"{{{len(data)}}}\r\n{data.decode('latin-1')}"
    if not text.isprintable():
        text = _UNQUOTABLE.sub(lambda m: "" if m[0] == "\x00" else " ", text)
    if '"' in text or "\\" in text:
        text = _TO_ESCAPE.sub(r"\\\1", text)
    return f'"{text}"'


def imap_text(text: str) -> str:
    """Like `imap_string` for unstructured text and display names: non-ASCII becomes encoded words (RFC 2047)."""
    if text.isascii():
        return imap_string(text)
    return f'"{encode_words(decode_words(text))}"'


def encode_words(text: str) -> str:
    """The whole of `text` as base64 encoded words in UTF-8, split between characters (RFC 2047 §5)."""
    words: list[str] = []
    data = text.encode("utf-8", "replace")
    at = 0
    while at < len(data):
        cut = min(at + _WORD_BYTES, len(data))
        while cut < len(data) and data[cut] & 0xC0 == 0x80:
            cut -= 1
        words.append(f"=?UTF-8?B?{b64encode(data[at:cut]).decode('ascii')}?=")
        at = cut
    return " ".join(words)


def _from_latin1(text: str, label: str | None = None) -> str:
    if text.isascii() and "\x1b" not in text:
        return text
    return charset.decode_raw_text(text.encode("latin-1"), label)


def _structured(value: bytes | None) -> str:
    return "NIL" if value is None else imap_string(charset.decode_raw_text(unfold(value)))


def _unstructured(value: bytes | None, label: str | None) -> str:
    return "NIL" if value is None else imap_text(charset.decode_raw_text(unfold(value), label))


def _mailbox(box: RawMailbox, label: str | None) -> str:
    name, route, local, domain = box.name, box.route, box.local, box.domain
    return (
        f"({'NIL' if name is None else imap_text(_from_latin1(name, label))} "
        f"{'NIL' if route is None else imap_string(_from_latin1(route))} "
        f"{'NIL' if local is None else imap_string(_from_latin1(local))} "
        f"{'NIL' if domain is None else imap_string(_from_latin1(domain))})"
    )


def _address_list(headers: Headers, name: str) -> str:
    values = headers.get_all_raw(name)
    if not values:
        return "NIL"
    # Repeated fields are served as one list: a client must see every author that there is.
    listed = "".join([_mailbox(box, headers.label) for box in read_raw_list(values).boxes])
    return f"({listed})" if listed else "NIL"


def render_envelope(headers: Headers) -> bytes:
    """The parenthesised ENVELOPE. Sender and Reply-To default to From (RFC 3501 §7.4.2).

    A mailbox without domain has the empty string as host, because NIL there would mean a group.
    """
    author = _address_list(headers, "from")
    sender = _address_list(headers, "sender")
    reply_to = _address_list(headers, "reply-to")
    parts = (
        _structured(headers.get_raw("date")),
        _unstructured(headers.get_raw("subject"), headers.label),
        author,
        author if sender == "NIL" else sender,
        author if reply_to == "NIL" else reply_to,
        _address_list(headers, "to"),
        _address_list(headers, "cc"),
        _address_list(headers, "bcc"),
        _structured(headers.get_raw("in-reply-to")),
        _structured(headers.get_raw("message-id")),
    )
    return f"({' '.join(parts)})".encode("latin-1")
