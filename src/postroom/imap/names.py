"""Mailbox names on the wire and LIST patterns (RFC 9051 §5.1, RFC 3501 §5.1.3 modified UTF-7, RFC 6855 §3, spec D2)."""

from __future__ import annotations

import re
import unicodedata
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Iterable

from postroom.imap.errors import BadCommand

SEPARATOR = "/"
INBOX = "INBOX"

_INVALID = "Invalid mailbox name"
_SHIFTED = re.compile(rb"&([^-]*+)(-?)")
_DIRECT = re.compile(rb"[\x20-\x7e]*+")
_BASE64 = re.compile(rb"[A-Za-z0-9+,]++")
_RUNS = re.compile(r"&|[^\x20-\x7e]++")


def decode_name(data: bytes, *, utf8: bool = False) -> str:
    """Unicode of a mailbox name as sent, in NFC.

    `utf8` is set once the client enabled IMAP4rev2 or UTF8=ACCEPT; then ``&`` has no meaning. Otherwise modified UTF-7,
    strictly: bad or superfluous shifts, unpaired surrogates, non-zero padding bits and encoded printable ASCII raise
    `BadCommand`, as two spellings of one name would be two names to some clients.
    """
    if utf8:
        try:
            return _clean(data.decode("utf-8"))
        except UnicodeDecodeError:
            raise BadCommand(_INVALID) from None
    if not _DIRECT.fullmatch(data):
        raise BadCommand(_INVALID)
    if b"&" not in data:
        return data.decode("ascii")
    return _clean(_decode_utf7(data))


def encode_name(name: str, *, utf8: bool = False) -> bytes:
    """The inverse of `decode_name` (not yet quoted: see `render.mailbox`)."""
    if utf8:
        return name.encode("utf-8", "replace")
    if name.isascii() and "&" not in name and name.isprintable():
        return name.encode("ascii")
    return _RUNS.sub(_encode_run, name).encode("ascii")


def canonical_name(name: str, sep: str = SEPARATOR) -> str:
    """INBOX in any case, alone or as the first segment, becomes upper case (spec D2); all else is left alone."""
    # There are letters beyond ASCII whose capitals are in it.
    if name[:5].isascii() and name[:5].upper() == INBOX and (len(name) == 5 or name[5] == sep):
        return INBOX + name[5:]
    return name


def match(pattern: str, name: str, sep: str = SEPARATOR) -> bool:
    """Whether the LIST `pattern` covers the whole of `name`: ``*`` any text, ``%`` any text without `sep` (§6.3.9)."""
    return ListPattern(pattern, sep).matches(name)


class ListPattern:
    """A compiled pattern. One pass over a name moves a bit set of pattern positions: no backtracking, however hostile.

    INBOX, and its name as first segment, is compared without regard to case.
    """

    __slots__ = ("_accept", "_any", "_level", "_literal", "_moves", "_sep", "_start", "_wild")

    def __init__(self, pattern: str, sep: str = SEPARATOR) -> None:
        tokens = re.sub(r"[*%]{2,}", lambda run: "*" if "*" in run[0] else "%", canonical_name(pattern, sep))
        self._sep = sep
        self._literal = tokens if "*" not in tokens and "%" not in tokens else None
        self._any = self._level = 0
        self._moves: defaultdict[str, int] = defaultdict(int)
        folds = _inbox_positions(tokens, sep)
        for position, token in enumerate(tokens):
            bit = 1 << position
            if token == "*":
                self._any |= bit
            elif token == "%":
                self._level |= bit
            else:
                self._moves[token] |= bit
                if position < folds and token != token.upper():
                    self._moves["\0" + token.upper()] |= bit  # used for INBOX only
        self._wild = self._any | self._level
        self._start = 1 | (self._wild & 1) << 1
        self._accept = 1 << len(tokens)

    def matches(self, name: str) -> bool:
        """True when the pattern covers all of `name`."""
        if self._literal is not None:
            return name == self._literal
        inbox = 5 if name[:5] == INBOX and name[5:6] in ("", self._sep) else 0
        state, moves, wild = self._start, self._moves, self._wild
        for position, char in enumerate(name):
            move = moves.get(char, 0)
            if position < inbox:
                move |= moves.get("\0" + char, 0)
            stay = state & (self._any if char == self._sep else wild)
            state = (state & move) << 1 | stay
            state |= (state & wild) << 1
            if not state:
                return False
        return bool(state & self._accept)


def any_match(patterns: Iterable[ListPattern], name: str) -> bool:
    """Whether one of several patterns (RFC 5258 §3) covers `name`."""
    return any(pattern.matches(name) for pattern in patterns)


def _inbox_positions(tokens: str, sep: str) -> int:
    """How many tokens of a pattern can meet the letters of INBOX: all before the first separator."""
    end = tokens.find(sep)
    return len(tokens) if end < 0 else end


def _clean(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def _decode_utf7(data: bytes) -> str:
    pieces: list[str] = []
    position = 0
    after_shift = False
    while position < len(data):
        if data[position] != 0x26:  # "&"
            end = data.find(b"&", position)
            end = len(data) if end < 0 else end
            pieces.append(data[position:end].decode("ascii"))
            position, after_shift = end, False
            continue
        shifted = _SHIFTED.match(data, position)
        if shifted is None or not shifted[2]:
            raise BadCommand(_INVALID)
        position = shifted.end()
        if not shifted[1]:
            pieces.append("&")
            after_shift = False
            continue
        if after_shift:
            raise BadCommand(_INVALID)
        pieces.append(_decode_run(shifted[1]))
        after_shift = True
    return "".join(pieces)


def _decode_run(run: bytes) -> str:
    if not _BASE64.fullmatch(run) or len(run) % 4 == 1:
        raise BadCommand(_INVALID)
    units = b64decode(run.replace(b",", b"/") + b"=" * (-len(run) % 4))
    try:
        text = units.decode("utf-16-be")
    except UnicodeDecodeError:
        raise BadCommand(_INVALID) from None
    if _base64(text) != run or any(" " <= char <= "~" for char in text):
        raise BadCommand(_INVALID)
    return text


def _base64(text: str) -> bytes:
    return b64encode(text.encode("utf-16-be")).rstrip(b"=").replace(b"/", b",")


def _encode_run(run: re.Match[str]) -> str:
    if run[0] == "&":
        return "&-"
    return "&" + _base64(run[0]).decode("ascii") + "-"
