"""Which parts are the body (RFC 8621 §4.1.4, decision D26; inbound §10; edge row B5), and what is attached."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from postroom.mail import charset
from postroom.mail.header import decode_words
from postroom.mail.mime import Message, Part, nested_subject, walk
from postroom.mail.transfer import decoded, decoded_size

TEXT_LIMIT: Final = 512 * 1024
HTML_LIMIT: Final = 1024 * 1024
SNIPPET_CHARS: Final = 240
MAX_FILENAME_BYTES: Final = 255
_SOURCE_FACTOR: Final = 12  # encoded octets that one octet of text may take: 4 (UTF-32) times 3 (quoted-printable)
_LONGEST_CHARACTER: Final = 8  # octets, escape sequences included

_PATH_PARTS: Final = re.compile(r"[/\\]")
# Controls, and the invisible characters of inbound §12 that can disguise an extension.
_INVISIBLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)
_META_CHARSET: Final = re.compile(rb"<meta[^>]{0,256}charset\s*=\s*[\"']?([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)


class NumberedPart(NamedTuple):
    """A part with its IMAP number."""

    path: tuple[int, ...]
    part: Part


@dataclass(frozen=True, slots=True)
class BodyParts:
    """`textBody`, `htmlBody` and `attachments` of RFC 8621 §4.1.4; the first two may hold inline media."""

    text: tuple[NumberedPart, ...]
    html: tuple[NumberedPart, ...]
    attachments: tuple[NumberedPart, ...]


@dataclass(frozen=True, slots=True)
class AttachmentInfo:
    """A leaf that is no body text. `size` is of the decoded content, exact when the raw message was at hand."""

    path: tuple[int, ...]
    filename: str | None
    content_type: str
    size: int
    disposition: str | None
    content_id: str | None
    header_start: int
    body_start: int
    body_end: int
    encoding: str


def body_parts(root: Part) -> BodyParts:
    """Sort the leaves of a message. Nested messages are leaves.

    As RFC 8621 §4.1.4, and in a multipart/alternative the last part of each type wins (inbound §10); those before it
    count as attachments.
    """
    chosen = _Chooser()
    if root.is_multipart and root.children:
        chosen.multipart(root, (), in_alternative=False)
    else:
        chosen.siblings([NumberedPart((1,), root)], "mixed", in_alternative=False)
    return BodyParts(tuple(chosen.text), tuple(chosen.html), tuple(chosen.attachments))


class _Chooser:
    def __init__(self) -> None:
        self.text: list[NumberedPart] = []
        self.html: list[NumberedPart] = []
        self.attachments: list[NumberedPart] = []
        self.to_text = True
        self.to_html = True

    def multipart(self, part: Part, path: tuple[int, ...], *, in_alternative: bool) -> None:
        numbered = [NumberedPart((*path, n), child) for n, child in enumerate(part.children, start=1)]
        alternative = part.subtype == "alternative"
        if alternative:
            numbered = self._last_of_each_type(numbered)
        texts, htmls = len(self.text), len(self.html)
        saved = self.to_text, self.to_html
        self.siblings(numbered, part.subtype, in_alternative=in_alternative or alternative)
        if alternative:
            # What a branch switched off holds for that branch of alternatives only.
            self.to_text, self.to_html = saved
            new_text, new_html = self.text[texts:], self.html[htmls:]
            if saved == (True, True) and not new_text:
                self.text += new_html
            elif saved == (True, True) and not new_html:
                self.html += new_text

    def _last_of_each_type(self, numbered: list[NumberedPart]) -> list[NumberedPart]:
        last: dict[str, tuple[int, ...]] = {}
        for path, part in numbered:
            if _is_body_text(part):
                last[part.content_type] = path
        kept: list[NumberedPart] = []
        for item in numbered:
            if _is_body_text(item.part) and last[item.part.content_type] != item.path:
                self.attachments.append(item)
            else:
                kept.append(item)
        return kept

    def siblings(self, numbered: Iterable[NumberedPart], kind: str, *, in_alternative: bool) -> None:
        for index, item in enumerate(numbered):
            part = item.part
            if part.is_multipart and part.children:
                self.multipart(part, item.path, in_alternative=in_alternative)
                continue
            media = part.type in ("image", "audio", "video")
            inline = (_is_body_text(part) or (media and part.disposition != "attachment")) and (
                index == 0 or (kind != "related" and (media or not _has_name(part)))
            )
            if not inline:
                self.attachments.append(item)
                continue
            if kind == "alternative":
                if media:
                    self.attachments.append(item)
                else:
                    (self.text if part.subtype == "plain" else self.html).append(item)
                continue
            if in_alternative and part.type == "text":
                if part.subtype == "plain":
                    self.to_html = False
                else:
                    self.to_text = False
            if self.to_text:
                self.text.append(item)
            if self.to_html:
                self.html.append(item)
            if media and not (self.to_text and self.to_html):
                self.attachments.append(item)


def _is_body_text(part: Part) -> bool:
    return part.type == "text" and part.subtype in ("plain", "html") and part.disposition != "attachment"


def _has_name(part: Part) -> bool:
    return bool(part.disposition_params.get("filename") or part.params.get("name"))


def part_text(raw: bytes, part: Part, limit: int = TEXT_LIMIT) -> tuple[str, bool, bool]:
    """Decoded text of a text part, LF line ends: (text, whether its source was cut, whether it is clean).

    Looks at no more of the source than `limit` octets of text can come from.
    """
    source = limit * _SOURCE_FACTOR
    cut = part.body_end - part.body_start > source
    data = decoded(raw, part, source)
    label = part.params.get("charset")
    if label is None and part.subtype == "html" and (meta := _META_CHARSET.search(data[:2048])):
        label = meta[1].decode("ascii")
    text, clean = charset.decode(data, label)
    if cut and not clean:
        # The cut may have fallen inside a character; that is no fault of the message.
        for spare in range(1, _LONGEST_CHARACTER):
            shorter, clean = charset.decode(data[:-spare], label)
            if clean:
                text = shorter
                break
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text, cut, clean


def cut_text(text: str, limit: int) -> tuple[str, bool]:
    """At most `limit` octets of UTF-8, whole characters."""
    if len(text) * 4 <= limit:
        return text, False
    limit = max(limit, 0)
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return text, False
    return data[:limit].decode("utf-8", "ignore"), True


def snippet(text: str) -> str:
    """The first 240 characters with white space collapsed."""
    # A word and its space are two characters at the least, so half as many words are enough.
    words = text[: SNIPPET_CHARS * 16].split(None, SNIPPET_CHARS // 2 + 1)[: SNIPPET_CHARS // 2 + 1]
    return " ".join(words)[:SNIPPET_CHARS].rstrip()


def sanitise_filename(name: str) -> str | None:
    """A file name safe to store and show: no path parts, controls or invisible characters, at most 255 octets.

    The extension survives the cut. None when nothing is left (inbound §25).
    """
    name = _INVISIBLE.sub("", _PATH_PARTS.split(name.rstrip("/\\ "))[-1]).strip()
    if not name.strip("."):
        return None
    stem, dot, extension = name.rpartition(".")
    if not dot or len(extension.encode("utf-8")) > 32:
        stem, dot, extension = name, "", ""
    room = MAX_FILENAME_BYTES - len(f"{dot}{extension}".encode())
    return cut_text(stem, room)[0].rstrip() + dot + extension


def filename(part: Part) -> str | None:
    """File name of a part, decoded (RFC 2231, and encoded words as many programs write them) and sanitised."""
    return next(iter(filenames(part)), None)


def filenames(part: Part) -> Iterator[str]:
    """All names that a part gives itself, the one that most programs show first."""
    for found in (part.disposition_params.get("filename"), part.params.get("name")):
        if found and (name := sanitise_filename(decode_words(found))):
            yield name


def attachments(message: Message, raw: bytes | None = None) -> list[AttachmentInfo]:
    """Every leaf that is no body text, inline images included, in order of appearance (inbound §10).

    With `raw` the sizes are exact and nested messages get their subject as name; without it sizes are estimated from
    the encoded length and a nested message is `forwarded.eml` (inbound §28.6).
    """
    parts = body_parts(message.root)
    listed = {item.path: item for item in (*parts.attachments, *parts.text, *parts.html)}
    body = {item.path for item in (*parts.text, *parts.html) if item.part.type == "text"}
    return [_describe(item, raw) for path, item in sorted(listed.items()) if path not in body]


def named_texts(message: Message, raw: bytes) -> list[AttachmentInfo]:
    """Body texts that give themselves the name of a file: they are read, and a program may be called a text."""
    if not any("name" in part.params or "filename" in part.disposition_params for _, part in walk(message.root)):
        return []  # as in nearly all mail
    parts = body_parts(message.root)
    named = {item.path: item for item in (*parts.text, *parts.html) if item.part.type == "text" and filename(item.part)}
    return [_describe(item, raw) for _, item in sorted(named.items())]


def _describe(item: NumberedPart, raw: bytes | None) -> AttachmentInfo:
    path, part = item
    name = filename(part)
    if name is None and part.type == "message" and part.subtype in ("rfc822", "global"):
        subject = nested_subject(raw, part) if raw is not None else None
        base = sanitise_filename(_PATH_PARTS.sub("-", subject)) if subject else None
        name = sanitise_filename(f"{base}.eml") if base else "forwarded.eml"
    if raw is not None:
        size = decoded_size(raw, part)
    else:
        size = part.body_end - part.body_start
        if part.encoding == "base64":
            size = size * 76 // 78 * 3 // 4  # lines of 76 characters and CRLF
    return AttachmentInfo(
        path=path,
        filename=name,
        content_type=part.content_type,
        size=size,
        disposition=part.disposition,
        content_id=part.content_id.strip(" <>") if part.content_id else None,
        header_start=part.header_start,
        body_start=part.body_start,
        body_end=part.body_end,
        encoding=part.encoding,
    )
