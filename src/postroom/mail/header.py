"""Header fields (RFC 5322 §2.2, §3.6.8): field list, unfolding, encoded words (RFC 2047), raw 8-bit (RFC 6532).

Nothing here raises on malformed input; what cannot be decoded comes back as written.
"""

import binascii
import functools
import re
from collections.abc import Iterator
from typing import Final

from postroom.mail import charset

# A field; its value runs over folded lines (RFC 5322 §2.2.3). A line that starts with `--` is a boundary, never a
# field, though `:` may occur in a boundary (RFC 2046 §5.1.1).
FIELD: Final = re.compile(rb"(?m)^(?!--)([!-9;-~]++)[ \t]*+:([^\n]*+(?:\n[ \t][^\n]*+)*+)(?:\n|\Z)")

_FOLD: Final = re.compile(rb"\r*\n")
# Some programs leave question marks and blanks in the text of a word: it ends at `?=`, and never runs over the
# beginning of another, so that the time stays linear.
_ENCODED_WORD: Final = re.compile(r"=\?([^?\s]*+)\?([bBqQ])\?((?:[^?=]++|=(?!\?(?!=))|\?(?!=))*+)\?=")
_Q_HEX: Final = re.compile(rb"=([0-9A-Fa-f]{2})")
_CONTROLS: Final = re.compile(r"[\x01-\x08\x0a-\x1f\x7f]+")
_NOT_BASE64: Final = bytes(set(range(256)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"))


def unfold(value: bytes) -> bytes:
    """Remove the line breaks of folding, keep the white space after them (RFC 5322 §2.2.3), trim the ends."""
    if b"\n" in value:
        value = _FOLD.sub(b"", value)
    return value.strip(b" \t\r\n\x00")


def decode_value(value: bytes, label: str | None = None) -> str:
    """Unfolded, decoded text of an unstructured field value; without NUL, other control characters made spaces.

    `label` is the charset of the body, for octets beyond ASCII that stand there as they are.
    """
    value = unfold(value)
    if value.isascii() and b"\x1b" not in value:
        return decode_words(value.decode("ascii"))
    return decode_words(charset.decode_raw_text(value, label))


def decode_words(text: str) -> str:
    """Replace the encoded words of `text` (RFC 2047 §6.2); white space between adjacent words disappears.

    Adjacent words of one charset are joined before decoding, because many senders split characters between words.
    """
    if "=?" in text:
        text = "".join(_pieces(text))
    if "\x00" in text:
        text = text.replace("\x00", "")
    if not text.isprintable():
        text = _CONTROLS.sub(" ", text)
    return text


def _pieces(text: str) -> Iterator[str]:
    at = 0
    run: list[tuple[str, str]] = []
    run_label = ""
    for match in _ENCODED_WORD.finditer(text):
        label, encoding, payload = match.groups()
        label = label.partition("*")[0].lower() or "us-ascii"  # RFC 2231 §5: a language may follow
        gap = text[at : match.start()]
        if run and (label != run_label or (gap and not gap.isspace())):
            yield _decode_run(run, run_label)
            joined, run = bool(run), []
        else:
            joined = bool(run)
        if gap and not (joined and gap.isspace()):
            yield gap
        run.append((encoding, payload))
        run_label = label
        at = match.end()
    if run:
        yield _decode_run(run, run_label)
    yield text[at:]


def _decode_run(words: list[tuple[str, str]], label: str) -> str:
    """Text of adjacent words of one charset. Characters may be split between words, in spite of RFC 2047 §5."""
    chunks: list[bytes] = []
    rest = ""
    for encoding, payload in words:
        if encoding in "bB":
            payload = rest + payload
            length = len(payload.rstrip("= "))
            # Four characters make three octets; one over was cut off from what follows.
            rest = payload if length % 4 == 1 else ""
            if rest:
                continue
        elif rest:
            chunks.append(_word_bytes("b", rest))
            rest = ""
        chunks.append(_word_bytes(encoding, payload))
    if rest:
        chunks.append(_word_bytes("b", rest))
    if len(chunks) > 1 and charset.is_stateful(label):
        # Each word begins in the initial state (RFC 2047 §3), whether or not the one before returned to it.
        apart = [charset.decode(chunk, label) for chunk in chunks]
        if all(clean for _, clean in apart):
            return "".join(text for text, _ in apart)
    return charset.decode(b"".join(chunks), label)[0]


def _word_bytes(encoding: str, payload: str) -> bytes:
    data = payload.encode("utf-8", "replace")
    if encoding in "qQ":
        data = data.replace(b"_", b" ")
        return _Q_HEX.sub(lambda m: bytes((int(m[1], 16),)), data) if b"=" in data else data
    data = data.translate(None, _NOT_BASE64)
    if len(data) % 4 == 1:
        data = data[:-1]
    return binascii.a2b_base64(data + b"=" * (-len(data) % 4))


@functools.lru_cache(1024)  # names are asked for by the same few callers, for each message
def _key(name: str) -> bytes:
    return name.lower().encode("utf-8", "replace")


class Headers:
    """The fields of one header block, in order; names compare without case (RFC 5322 §1.2.2)."""

    __slots__ = ("_index", "fields", "label")

    def __init__(self, fields: list[tuple[bytes, bytes]]) -> None:
        """`fields`: pairs of name and raw value (all after the colon, folding included)."""
        self.fields = fields
        self.label: str | None = None
        """Charset of the body, in which values are read that are neither ASCII nor UTF-8."""
        self._index: dict[bytes, list[bytes]] | None = None

    @classmethod
    def parse(cls, block: bytes) -> "Headers":
        """Fields of a header block such as `raw[part.header_start:part.body_start]`; other lines are skipped."""
        return cls(FIELD.findall(block))

    def _values(self, name: str) -> list[bytes]:
        index = self._index
        if index is None:
            index = {}
            for key, value in self.fields:
                key = key.lower()
                if key in index:
                    index[key].append(value)
                else:
                    index[key] = [value]
            self._index = index
        return index.get(_key(name), [])

    def get_raw(self, name: str) -> bytes | None:
        """Value of the first field of that name as it stands in the message, folding included, or None."""
        values = self._values(name)
        return values[0] if values else None

    def get_all_raw(self, name: str) -> list[bytes]:
        """Raw values of every field of that name, in order."""
        return list(self._values(name))

    def get(self, name: str) -> str | None:
        """Decoded, unfolded text of the first field of that name, or None."""
        values = self._values(name)
        return decode_value(values[0], self.label) if values else None

    def get_all(self, name: str) -> list[str]:
        """Decoded, unfolded text of every field of that name, in order."""
        return [decode_value(value, self.label) for value in self._values(name)]

    def __contains__(self, name: str) -> bool:
        return bool(self._values(name))

    def __len__(self) -> int:
        return len(self.fields)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Pairs of name as written and decoded value."""
        for name, value in self.fields:
            yield name.decode("ascii", "replace"), decode_value(value, self.label)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headers) and self.fields == other.fields

    __hash__ = None  # type: ignore[assignment]  # mutable list inside
