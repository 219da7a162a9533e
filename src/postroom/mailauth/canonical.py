"""The form of a message that DKIM and ARC hash (RFC 6376 §3.4, §3.7, §5.4.2).

Both are defined over lines that end in CRLF, so a bare LF counts as CRLF everywhere. A bare CR is an ordinary character
to a verifier; a signer replaces it first (`to_wire`, §5.3), for it must not be sent.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from postroom.mail.header import FIELD
from postroom.mail.mime import MAX_FIELDS, MAX_HEADER_BYTES

# Each begins with the octet that is rare, which makes a search fast.
_BARE_LF: Final = re.compile(rb"\n(?<!\r\n)")
_BARE_CR: Final = re.compile(rb"\r(?!\n)")
# Not `From : …`, an obsolete form of the field (RFC 5322 §4.5.2): readers show whom it names.
_MBOX_LINE: Final = re.compile(rb">?From (?![ \t]*:)[^\n]*+\n")
PIECE: Final = 256 * 1024
"""Octets of a body that are worked on at a time."""
_BLANK_LINES: Final = b"\r\n" * 4096


class Canonicalisation(StrEnum):
    """The two algorithms of RFC 6376 §3.4, for header and body alike."""

    SIMPLE = "simple"
    RELAXED = "relaxed"


class MalformedHeaderError(ValueError):
    """The header block is not made of fields (RFC 5322 §2.2), or is larger than what is read of a message."""


class HeaderField(NamedTuple):
    """One field as it stands in the message: its name in lower case, its octets with line end, start of the value."""

    name: str
    raw: bytes
    value_start: int

    @property
    def value(self) -> bytes:
        """All after the colon, folding and line end included."""
        return self.raw[self.value_start :]


def to_wire(raw: bytes) -> bytes:
    """`raw` with every bare CR and bare LF made CRLF (RFC 5322 §2.3, RFC 6376 §5.3)."""
    if _BARE_LF.search(raw) is None and _BARE_CR.search(raw) is None:
        return raw
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\r\n")


def find_body(raw: bytes) -> int:
    """Offset of the body: behind the first empty line (RFC 5322 §2.1); the length of `raw` when there is none."""
    if raw.startswith((b"\r\n", b"\n")):
        return 2 if raw.startswith(b"\r") else 1
    whole = raw.find(b"\n\r\n")
    bare = raw.find(b"\n\n") if whole < 0 else raw.find(b"\n\n", 0, whole + 1)
    if bare >= 0:
        return bare + 2
    return len(raw) if whole < 0 else whole + 3


def parse_fields(header: bytes, *, mbox: bool = False) -> list[HeaderField]:
    """The fields of a header block, its blank line included or not; `mbox`: a `From ` line may stand before them.

    Raises `MalformedHeaderError` when anything else stands between them: what a reader makes of such lines differs, so
    a signature would vouch for what nobody knows (RFC 6376 §3.8).
    """
    if len(header) > MAX_HEADER_BYTES:
        raise MalformedHeaderError("the header is too large")
    from_line = _MBOX_LINE.match(header) if mbox else None
    at = 0 if from_line is None else from_line.end()
    fields: list[HeaderField] = []
    for match in FIELD.finditer(header, at):
        if match.start() != at:
            break
        at = match.end()
        fields.append(HeaderField(match[1].decode("ascii").lower(), match[0], match.start(2) - match.start()))
    if header[at:] not in (b"", b"\r\n", b"\n"):
        raise MalformedHeaderError("a line of the header is no field")
    if len(fields) > MAX_FIELDS:
        raise MalformedHeaderError("too many fields")
    return fields


def canonical_field(field: HeaderField, canonicalisation: Canonicalisation) -> bytes:
    """A field as it is hashed (RFC 6376 §3.4.1, §3.4.2), its CRLF included."""
    if canonicalisation is Canonicalisation.SIMPLE:
        raw = _line_feeds_paired(field.raw)
        return raw if raw.endswith(b"\r\n") else raw + b"\r\n"
    value = field.value.replace(b"\r\n", b"").replace(b"\n", b"")
    return b"%b:%b\r\n" % (field.name.encode("ascii"), _squeeze(value).strip(b" "))


def _line_feeds_paired(data: bytes) -> bytes:
    """Every LF with a CR before it."""
    if _BARE_LF.search(data) is None:
        return data
    return data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _squeeze(data: bytes) -> bytes:
    """Every run of spaces and tabs made one space."""
    data = data.replace(b"\t", b" ")
    # Each turn halves the runs: some twenty turns at the most, none for ordinary text.
    while b"  " in data:
        data = data.replace(b"  ", b" ")
    return data


def select_fields(fields: Sequence[HeaderField], names: Iterable[str]) -> list[HeaderField]:
    """The fields that the list `names`, in lower case, stands for (RFC 6376 §5.4.2).

    A name given again means the next field of that name upwards; one too many means no field.
    """
    by_name: dict[str, list[HeaderField]] = {}
    for field in fields:
        by_name.setdefault(field.name, []).append(field)
    return [by_name[name].pop() for name in names if by_name.get(name)]


def header_digest(
    fields: Sequence[HeaderField], names: Iterable[str], unsigned: HeaderField, canonicalisation: Canonicalisation
) -> bytes:
    """SHA-256 of the fields that `names` selects, then of the signature's own field (RFC 6376 §3.7).

    `unsigned` is that field with an empty `b=`; it is not to be among `fields`.
    """
    hashed = [canonical_field(field, canonicalisation) for field in select_fields(fields, names)]
    hashed.append(canonical_field(unsigned, canonicalisation)[:-2])
    return hashlib.sha256(b"".join(hashed)).digest()


class BodyHasher:
    """SHA-256 of a body in canonical form, taken piece by piece, in one pass and constant memory.

    One digest for each of `limits`, which are numbers of canonical octets (`l=`, RFC 6376 §3.5) or None for all.
    """

    __slots__ = ("_blank_lines", "_carry", "_finished", "_relaxed", "_sinks", "length")

    def __init__(self, canonicalisation: Canonicalisation, limits: Iterable[int | None] = (None,)) -> None:
        self._relaxed = canonicalisation is Canonicalisation.RELAXED
        self._sinks = {limit: hashlib.sha256() for limit in limits}
        self._carry = b""  # a space or CR, or both, whose meaning depends on what comes
        self._blank_lines = 0  # CRLFs held back: at the end of the body only one counts
        self._finished = False
        self.length = 0
        """Canonical octets so far; of the whole body once it is finished."""

    def update(self, data: bytes) -> None:
        """Take the next octets of the body."""
        if len(data) <= PIECE:
            self._update(data)
        else:
            for at in range(0, len(data), PIECE):
                self._update(data[at : at + PIECE])

    def digest(self, limit: int | None = None) -> bytes:
        """The digest for one of the limits. It ends the body: nothing may be added afterwards."""
        if not self._finished:
            self._finish()
        return self._sinks[limit].digest()

    def _update(self, data: bytes) -> None:
        if self._carry:
            data = self._carry + data
            self._carry = b""
        end = len(data) - data.endswith(b"\r")
        if self._relaxed:
            end = len(data[:end].rstrip(b" \t")) if data[end - 1 : end] in (b" ", b"\t") else end
        if end < len(data):
            self._carry = _squeeze(data[end:])
            data = data[:end]
        data = _line_feeds_paired(data)
        if self._relaxed:
            data = _squeeze(data).replace(b" \r\n", b"\r\n")
        end = _end_of_text(data)
        if end:
            self._write_blank_lines()
            self._write(data[:end])
        self._blank_lines += (len(data) - end) // 2

    def _finish(self) -> None:
        self._finished = True
        rest = self._carry.rstrip(b" ") if self._relaxed else self._carry
        if rest:
            self._write_blank_lines()
            self._write(rest)
        # The last line has its CRLF even if the message lacks it; an empty body is one to simple, nothing to relaxed.
        if self.length or not self._relaxed:
            self._write(b"\r\n")

    def _write_blank_lines(self) -> None:
        count, self._blank_lines = self._blank_lines, 0
        while count > 4096:
            self._write(_BLANK_LINES)
            count -= 4096
        if count:
            self._write(b"\r\n" * count)

    def _write(self, data: bytes) -> None:
        for limit, sink in self._sinks.items():
            if limit is None or self.length + len(data) <= limit:
                sink.update(data)
            elif self.length < limit:
                sink.update(data[: limit - self.length])
        self.length += len(data)


class BodyHashes:
    """The digests of one body that several signatures ask for, DKIM's and ARC's: each form of it is made once."""

    __slots__ = ("_hashers", "_wanted")

    def __init__(self) -> None:
        self._wanted: dict[Canonicalisation, set[int | None]] = {}
        self._hashers: dict[Canonicalisation, BodyHasher] | None = None

    @property
    def needed(self) -> bool:
        """Whether anybody asks for a digest."""
        return bool(self._wanted)

    def want(self, canonicalisation: Canonicalisation, limit: int | None) -> None:
        """Ask for a digest (`BodyHasher`). Raises ValueError when the body has begun."""
        if self._hashers is not None:
            raise ValueError("the body has begun")
        self._wanted.setdefault(canonicalisation, set()).add(limit)

    def update(self, data: bytes) -> None:
        """Take the next octets of the body, as received."""
        for hasher in self._begun().values():
            hasher.update(data)

    def digest(self, canonicalisation: Canonicalisation, limit: int | None) -> bytes:
        """A digest that was asked for. It ends the body."""
        return self._begun()[canonicalisation].digest(limit)

    def length(self, canonicalisation: Canonicalisation) -> int:
        """Canonical octets of the body, once it has ended."""
        return self._begun()[canonicalisation].length

    def _begun(self) -> dict[Canonicalisation, BodyHasher]:
        if self._hashers is None:
            self._hashers = {form: BodyHasher(form, limits) for form, limits in self._wanted.items()}
        return self._hashers


def _end_of_text(data: bytes) -> int:
    """Where the CRLFs at the end of `data` begin; every LF in it has its CR."""
    if not data.endswith(b"\n"):
        return len(data)
    end = len(data.rstrip(b"\r\n"))
    # Of the tail only CRLFs count; a CR of its own before them is text.
    bare = data.rfind(b"\r\r", end)
    return end if bare < 0 else bare + 1
