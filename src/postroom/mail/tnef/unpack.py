"""A TNEF stream to attachments and body (MS-OXTNEF, MS-OXCMSG), under caps; what is malformed is kept whole (B6)."""

import re
from dataclasses import dataclass
from typing import Final

from postroom.mail import body, charset, mime
from postroom.mail.reports import one_line
from postroom.mail.tnef import rtf
from postroom.mail.tnef.letter import Enclosed, Letter, token_of, write_letter
from postroom.mail.tnef.stream import (
    SIGNATURE,
    Attribute,
    Level,
    Malformed,
    Property,
    Type,
    attributes,
    number,
    properties,
)

MAX_ATTACHMENTS: Final = 500
MAX_NESTING: Final = 3
"""Messages within messages, the outermost included."""
MAX_TEXT_BYTES: Final = 1024 * 1024
FRAME_BYTES: Final = 64 * 1024
"""What may come out beside twice the stream's octets: the headers of messages within it."""
MEDIA_TYPES: Final = frozenset(("application/ms-tnef", "application/vnd.ms-tnef"))
FILE_NAME: Final = "winmail.dat"
UNNAMED_MESSAGE: Final = "forwarded.eml"

_MESSAGE_OBJECT: Final = bytes.fromhex("0703020000000000c000000000000046")  # IID_IMessage, before an embedded message
_PATH_PARTS: Final = re.compile(r"[/\\]")
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9!#$&^_.+-]{1,64}/[a-z0-9!#$&^_.+-]{1,127}")
_ANY_TYPE: Final = "application/octet-stream"
_MESSAGE_TYPE: Final = "message/rfc822"
_HEAD_BYTES: Final = 64 * 1024


class _Tag:
    """Property ids (MS-OXPROPS)."""

    SUBJECT: Final = 0x0037
    SUBMITTED: Final = 0x0039
    AUTHOR: Final = 0x0042
    AUTHOR_ADDRESS: Final = 0x0065
    AUTHOR_SMTP: Final = 0x5D02
    HEADERS: Final = 0x007D
    SENDER: Final = 0x0C1A
    SENDER_ADDRESS: Final = 0x0C1F
    SENDER_SMTP: Final = 0x5D01
    DELIVERED: Final = 0x0E06
    BODY: Final = 0x1000
    RTF: Final = 0x1009
    HTML: Final = 0x1013
    MESSAGE_ID: Final = 0x1035
    DISPLAY_NAME: Final = 0x3001
    DATA: Final = 0x3701
    FILENAME: Final = 0x3704
    LONG_FILENAME: Final = 0x3707
    MIME_TYPE: Final = 0x370E
    CONTENT_ID: Final = 0x3712
    CODEPAGE: Final = 0x3FDE


@dataclass(frozen=True, slots=True)
class UnpackedAttachment:
    """`filename` is safe to store and show, `content_type` what was declared, `content_id` without angle brackets.

    `inside`: what a message holds that was part of the stream; `data` is then a message of RFC 5322 made of it.
    """

    filename: str | None
    content_type: str
    data: bytes
    content_id: str | None = None
    inside: "tuple[UnpackedAttachment, ...]" = ()


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What a stream carries. `text` and `html` are decoded and at most 1 MiB of octets each, not sanitised; rich text
    is turned into `text` when it is all there is.

    A message within it is one attachment, `{subject}.eml`, that holds its own (inbound §28.6). `complete` is False when
    something was left out at a cap.
    """

    text: str | None
    html: str | None
    attachments: tuple[UnpackedAttachment, ...]
    complete: bool


def is_tnef(data: bytes) -> bool:
    """Whether content is TNEF by its first octets."""
    return data[:4] == SIGNATURE


def says_tnef(content_type: str, filename: str | None) -> bool:
    """Whether a part says that it is TNEF, by its type or by the name that Outlook gives it."""
    return content_type in MEDIA_TYPES or (filename is not None and filename.lower() == FILE_NAME)


def unpack(data: bytes, *, max_bytes: int | None = None) -> Unpacked | None:
    """What the stream `data` carries; None when it is malformed, so that it is kept as it is. Never raises on content.

    At most 500 attachments from messages nested three deep, and `max_bytes` octets in all: twice the stream's and
    64 KiB, unless said otherwise. Time and memory are linear in what goes in.
    """
    room = _Room(MAX_ATTACHMENTS, 2 * len(data) + FRAME_BYTES if max_bytes is None else max_bytes)
    try:
        return _message(memoryview(data), room, 1).finish(room)
    except Malformed:
        return None


class _Room:
    """What may still come out of a stream."""

    __slots__ = ("attachments", "complete", "octets", "rich")

    def __init__(self, attachments: int, octets: int, rich: int = rtf.MAX_RTF_BYTES) -> None:
        self.attachments = attachments
        self.octets = octets
        self.rich = rich  # octets of rich text, of all messages: a little that is compressed takes a second
        self.complete = True

    def take(self, size: int) -> bool:
        if self.attachments < 1 or size > self.octets:
            self.complete = False
            return False
        self.attachments -= 1
        self.octets -= size
        return True

    def within(self) -> "_Room":
        """The same room, for a message whose attachments come out in it."""
        return _Room(self.attachments, self.octets, self.rich)


class _Attachment:
    def __init__(self) -> None:
        self.title: str | None = None
        self.transport_name: str | None = None
        self.data: memoryview | None = None
        self.found: dict[int, Property] = {}


class _Message:
    def __init__(self) -> None:
        self.codepage = "cp1252"
        self.subject: str | None = None
        self.plain: str | None = None
        self.found: dict[int, Property] = {}
        self.attachments: list[UnpackedAttachment] = []

    def text(self) -> str | None:
        item = self.found.get(_Tag.BODY)
        return (None if item is None else _string(item, self.codepage)) or self.plain

    def html(self) -> str | None:
        item = self.found.get(_Tag.HTML)
        if item is None:
            return None
        return _string(item, self._internet_codepage()) or None

    def rich(self, room: "_Room") -> str | None:
        item = self.found.get(_Tag.RTF)
        if item is None:
            return None
        if not room.rich:
            room.complete = False
            return None
        found = rtf.decompress(bytes(item.value), room.rich)
        if found is None:
            return None
        room.rich -= len(found)
        return rtf.rtf_text(found) or None

    def named(self) -> str:
        """The subject; empty without one."""
        return self.string(_Tag.SUBJECT) or self.subject or ""

    def string(self, *tags: int) -> str:
        """The first of these properties that says something."""
        texts = (_string(item, self.codepage) for tag in tags if (item := self.found.get(tag)) is not None)
        return next((text for found in texts if (text := found.replace("\x00", "")).strip()), "")

    def time(self, *tags: int) -> int:
        """The first of these properties that is a time, as it stands; 0 without one."""
        values = (item.value for tag in tags if (item := self.found.get(tag)) is not None and item.type == Type.TIME)
        return next((int.from_bytes(value, "little") for value in values), 0)

    def _internet_codepage(self) -> str:
        """Of HTML in octets (PidTagInternetCodepage)."""
        item = self.found.get(_Tag.CODEPAGE)
        if item is None or item.type != Type.INTEGER:
            return "utf-8"
        return _codec(number(item.value, 0), "utf-8")

    def finish(self, room: _Room) -> Unpacked:
        text, html = self.text(), self.html()
        if text is None and html is None:
            text = self.rich(room)
        return Unpacked(text, html, tuple(self.attachments), room.complete)


def _message(data: memoryview, room: _Room, depth: int) -> _Message:
    made = _Message()
    current: _Attachment | None = None
    for level, name, value in attributes(data):
        if level == Level.ATTACHMENT:
            if name == Attribute.ATTACH_REND_DATA or current is None:
                _add(made, current, room, depth)
                current = _Attachment()
            _attachment_attribute(current, name, value, made.codepage)
        elif name == Attribute.OEM_CODEPAGE:
            made.codepage = _codec(number(value, 0), "cp1252")
        elif name == Attribute.SUBJECT:
            made.subject = _text(value, made.codepage)
        elif name == Attribute.BODY:
            made.plain = _text(value, made.codepage) or None
        elif name == Attribute.MESSAGE_PROPERTIES:
            for item in properties(value):
                made.found.setdefault(item.id, item)
    _add(made, current, room, depth)
    return made


def _attachment_attribute(current: _Attachment, name: int, value: memoryview, codepage: str) -> None:
    if name == Attribute.ATTACH_TITLE:
        current.title = _text(value[:2048], codepage)
    elif name == Attribute.ATTACH_TRANSPORT_FILENAME:
        current.transport_name = _text(value[:2048], codepage)
    elif name == Attribute.ATTACH_DATA:
        current.data = value
    elif name == Attribute.ATTACH_PROPERTIES:
        for item in properties(value):
            current.found.setdefault(item.id, item)


def _add(made: _Message, current: _Attachment | None, room: _Room, depth: int) -> None:
    """What an attachment holds, to those of the message."""
    if current is None:
        return
    item = current.found.get(_Tag.DATA)
    data = current.data if item is None else item.value
    if item is not None and item.type == Type.OBJECT:
        kind, data = bytes(item.value[:16]), item.value[16:]
        if kind == _MESSAGE_OBJECT and bytes(data[:4]) == SIGNATURE:
            _embedded(made, data, room, depth)
            return
    if data is None:
        room.complete = False  # a link, or something drawn
        return
    if room.take(len(data)):
        made.attachments.append(_unpacked(current, bytes(data), made.codepage))


def _embedded(made: _Message, data: memoryview, room: _Room, depth: int) -> None:
    """A message within the message, as an attachment that has its subject for a name."""
    if depth >= MAX_NESTING:
        room.complete = False
        return
    within = room.within()
    inner = _message(data, within, depth + 1)
    room.rich = within.rich
    room.complete &= within.complete
    written = write_letter(_letter(inner, room), token_of(data))
    if room.take(len(written)):
        # What is within counts, too, or many small ones would be more than their number says.
        room.attachments = within.attachments - 1
        name = _message_name(inner.named())
        made.attachments.append(UnpackedAttachment(name, _MESSAGE_TYPE, written, None, tuple(inner.attachments)))


def _letter(inner: _Message, room: _Room) -> Letter:
    text, html = inner.text(), inner.html()
    return Letter(
        subject=inner.named(),
        text=inner.rich(room) if text is None and html is None else text,
        html=html,
        header=inner.string(_Tag.HEADERS),
        author=one_line(inner.string(_Tag.AUTHOR, _Tag.SENDER)),
        address=inner.string(_Tag.AUTHOR_SMTP, _Tag.SENDER_SMTP, _Tag.AUTHOR_ADDRESS, _Tag.SENDER_ADDRESS).strip(),
        message_id=inner.string(_Tag.MESSAGE_ID),
        sent=inner.time(_Tag.SUBMITTED, _Tag.DELIVERED),
        files=[Enclosed(one.filename, one.content_type, one.data, one.content_id) for one in inner.attachments],
    )


def _message_name(subject: str) -> str:
    """The name of a message that is attached (inbound §28.6)."""
    stem = body.sanitise_filename(_PATH_PARTS.sub("-", one_line(subject[:512])))
    return (body.sanitise_filename(f"{stem}.eml") if stem else None) or UNNAMED_MESSAGE


def _names(current: _Attachment, codepage: str) -> list[str]:
    """What an attachment may be called, best first."""
    named = [current.found.get(tag) for tag in (_Tag.LONG_FILENAME, _Tag.FILENAME)]
    strings = [_string(item, codepage) for item in named if item is not None]
    shown = current.found.get(_Tag.DISPLAY_NAME)
    strings += [current.transport_name or "", current.title or ""]
    strings.append("" if shown is None else _string(shown, codepage))
    return [text for text in strings if text.strip()]


def _unpacked(current: _Attachment, data: bytes, codepage: str) -> UnpackedAttachment:
    names = (body.sanitise_filename(one_line(text)) for text in _names(current, codepage))
    kind = current.found.get(_Tag.MIME_TYPE)
    declared = "" if kind is None else _string(kind, codepage).strip().lower()
    content_id = current.found.get(_Tag.CONTENT_ID)
    named = "" if content_id is None else one_line(_string(content_id, codepage)).strip(" <>")[:256]
    filename = next((name for name in names if name is not None), None)
    if filename is None and declared == _MESSAGE_TYPE:
        filename = _message_name(mime.parse(data[:_HEAD_BYTES], max_depth=1, max_parts=1).subject or "")
    return UnpackedAttachment(
        filename=filename,
        content_type=declared if _MEDIA_TYPE.fullmatch(declared) else _ANY_TYPE,
        data=data,
        content_id=named or None,
    )


def _string(item: Property, codepage: str) -> str:
    """A property as text; of types that are none the empty string."""
    if item.type == Type.UNICODE:
        return _clean(charset.decode(bytes(item.value[:MAX_TEXT_BYTES]), "utf-16le")[0])
    if item.type in (Type.STRING8, Type.BINARY):
        return _text(item.value, codepage)
    return ""


def _text(value: memoryview, codepage: str) -> str:
    return _clean(charset.decode(bytes(value[:MAX_TEXT_BYTES]), codepage)[0])


def _clean(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _codec(codepage: int, otherwise: str) -> str:
    """The label of a Windows codepage that `charset` knows."""
    if codepage == 65001:
        return "utf-8"
    if codepage == 20127:
        return "us-ascii"
    if 28591 <= codepage <= 28606:
        return f"iso-8859-{codepage - 28590}"
    label = f"cp{codepage}"
    return label if charset.codec_for(label) is not None else otherwise
