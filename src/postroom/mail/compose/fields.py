"""Header fields as bytes: folding (RFC 5322 §2.2.3), encoded words (RFC 2047), parameters (RFC 2231, RFC 2045 §5.1).

Every function refuses controls in what it is given, so that no value can start a field of its own. Lines are folded at
78 characters, at 76 where encoded words stand (RFC 2047 §2), and never exceed 998 octets (RFC 5322 §2.1.1).
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

import idna

from postroom.mail.address import Address
from postroom.mail.compose.errors import ComposeError, Reason

FOLD_AT: Final = 78
FOLD_ENCODED_AT: Final = 76
MAX_LINE: Final = 998
MAX_NAME_CHARS: Final = 1000
MAX_PART_OCTETS: Final = 255
"""Of a local part and of a domain. RFC 5321 §4.5.3.1 promises 64 for the former; signed return paths are longer."""
MAX_ID_OCTETS: Final = 900
MAX_TEXT_CHARS: Final = 16 * 1024
MAX_ADDRESSES: Final = 1000

_WORD_LIMIT: Final = 75  # RFC 2047 §2
_WORD_FRAME: Final = len("=?utf-8?q??=")
_LEAST_ROOM: Final = 30  # below this the first encoded word goes to a line of its own
_LONGEST_GAP: Final = 20  # longer runs of blanks are encoded: a folded line must not look empty
_LONGEST_PROSE: Final = 70

_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CONTROLS_BUT_TAB: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_WORD: Final = re.compile(r"([ \t]*+)([^ \t]++|\Z)")
_ATOMS: Final = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]++(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]++)*+")
_Q_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!*+-/")  # RFC 2047 §5 (3)
_PARAM_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$&+-.^_`{}~")
_DOMAIN: Final = re.compile(r"[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]++)*+")
_LITERAL: Final = re.compile(r"\[[!-Z^-~]++\]")
_MESSAGE_ID: Final = re.compile(r"[!-;=?-~]++")
_FIELD_NAME: Final = re.compile(r"[!-9;-~]{1,100}")  # RFC 5322 §3.6.8
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$&+^_`{|}~.-]{1,100}")  # an attribute, RFC 2231 §7
_PLAIN_VALUE: Final = re.compile(r"[A-Za-z0-9._-]+")  # more may stand bare, but not every reader knows it

_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

Token = tuple[str, str]
"""White space at which a line may be folded (empty: it may not), and the text after it."""


def whole_characters(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD, so that it has a UTF-8 form."""
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def refuse_controls(text: str, field: str, *, tab: bool = False) -> str:
    """`text` with whole characters; ComposeError if it holds a control character (with `tab`: another than tab)."""
    if not text.isprintable() and (_CONTROLS_BUT_TAB if tab else _CONTROLS).search(text):
        raise ComposeError(field, Reason.CONTROL_CHARACTER)
    return whole_characters(text)


def fold(name: str, tokens: Iterable[Token], limit: int = FOLD_AT, *, bare_name: bool = True) -> bytes:
    """The field `name` with its tokens, folded greedily, ending in CRLF.

    With `bare_name` the first line may end after the colon. ComposeError when a line cannot be kept within 998 octets.
    """
    if _FIELD_NAME.fullmatch(name) is None:
        raise ComposeError("header", Reason.SYNTAX)
    lines: list[bytes] = []
    line, empty = f"{name}:".encode(), True
    for blank, text in tokens:
        piece = ((" " if empty else blank) + text).encode()
        if len(line) + len(piece) > limit and (bare_name if empty else blank):
            lines.append(line)
            line = piece
        else:
            line += piece
        empty = False
    lines.append(line)
    if max(map(len, lines)) > MAX_LINE:
        raise ComposeError(name, Reason.TOO_LONG)
    return b"\r\n".join(lines) + b"\r\n"


def unstructured(name: str, value: str, *, machine: bool = False) -> bytes:
    """A field of unstructured text (RFC 5322 §3.2.5), words encoded where they need it.

    `machine` marks values that programs read: their long words stay as they are while a line can hold them.
    """
    value = refuse_controls(value, name, tab=True)
    if len(value) > MAX_TEXT_CHARS:
        raise ComposeError(name, Reason.TOO_LONG)
    longest = MAX_LINE - len(name) - 2 if machine else _LONGEST_PROSE
    tokens = _text_tokens(value, FOLD_ENCODED_AT - len(name) - 2, longest)
    encoded = any(text.startswith("=?") for _, text in tokens)
    return fold(name, tokens, FOLD_ENCODED_AT if encoded else FOLD_AT, bare_name=encoded)


def _text_tokens(value: str, room: int, longest: int) -> list[Token]:
    """Words of `value`; from the first to the last that cannot stand as written, one run of encoded words."""
    found = list(_WORD.finditer(value))
    if found and not found[-1][0]:
        found.pop()  # the empty match at the end
    odd: list[int] = []
    for at, match in enumerate(found):
        blank, word = match.groups()
        if (blank and not (at and word)) or len(blank) > _LONGEST_GAP:
            odd += (max(0, at - 1), at)  # blanks that unfolding would lose belong to an encoded word
        elif not word.isascii() or "=?" in word or len(word) > longest:
            odd.append(at)
    plain: list[Token] = [(match[1], match[2]) for match in found]
    if not odd:
        return plain
    first, last = min(odd), max(odd)
    start = found[first].start(2) if first else 0
    words = list(encode_words(value[start : found[last].end()], _WORD_LIMIT if first else room))
    lead = plain[first][0] if first else " "
    return [*plain[:first], (lead, words[0]), *((" ", word) for word in words[1:]), *plain[last + 1 :]]


def encode_words(text: str, room: int = _WORD_LIMIT, limit: int = _WORD_LIMIT) -> Iterator[str]:
    """Encoded words in UTF-8, each at most `limit` characters, the first at most `room` if that is worth a word.

    Characters are never split; Q or B is taken by length (RFC 2047 §4, with the alphabet of §5 (3), valid anywhere).
    """
    text = whole_characters(text)
    costs = [1 if char in _Q_PLAIN or char == " " else 3 * len(char.encode()) for char in text]
    quoted = sum(costs) <= 4 * ((len(text.encode()) + 2) // 3)
    if not quoted:
        costs = [len(char.encode()) for char in text]
    if room < _LEAST_ROOM:
        room = limit
    start = used = 0
    for at, cost in enumerate(costs):
        inside = min(room, limit) - _WORD_FRAME
        if used + cost > (inside if quoted else inside // 4 * 3):
            yield _word(text[start:at], quoted)
            start, used, room = at, 0, limit
        used += cost
    yield _word(text[start:], quoted)


def _word(text: str, quoted: bool) -> str:
    if not quoted:
        return f"=?utf-8?b?{b64encode(text.encode()).decode('ascii')}?="
    inside = "".join(
        char if char in _Q_PLAIN else "_" if char == " " else "".join(f"={octet:02X}" for octet in char.encode())
        for char in text
    )
    return f"=?utf-8?q?{inside}?="


def _phrase_tokens(name: str, field: str, room: int) -> list[Token]:
    """A display name: atoms, a quoted string, or encoded words (RFC 5322 §3.2.5, RFC 2047 §5 (3))."""
    name = refuse_controls(name, field)
    if len(name) > MAX_NAME_CHARS:
        raise ComposeError(field, Reason.TOO_LONG)
    if name.isascii() and "=?" not in name and len(name) <= _LONGEST_PROSE:
        if _ATOMS.fullmatch(name):
            return [(" ", word) for word in name.split(" ")]
        return [(" ", quote(name))]
    return [(" ", word) for word in encode_words(name, room)]


def quote(text: str) -> str:
    """A quoted string (RFC 5322 §3.2.4) of text without controls."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def ascii_domain(domain: str, field: str) -> str:
    """`domain` in A-labels (RFC 5890 §2.3.2.1), its case kept when it is ASCII; ComposeError if it is none."""
    if not domain.isascii():
        if len(domain) > MAX_PART_OCTETS:
            raise ComposeError(field, Reason.TOO_LONG)
        try:
            domain = idna.encode(domain, uts46=True).decode("ascii")
        except (idna.IDNAError, UnicodeError):
            raise ComposeError(field, Reason.SYNTAX) from None
    if len(domain) > MAX_PART_OCTETS:
        raise ComposeError(field, Reason.TOO_LONG)
    if _DOMAIN.fullmatch(domain) is None and _LITERAL.fullmatch(domain) is None:
        raise ComposeError(field, Reason.SYNTAX)
    return domain


def addr_spec(address: Address, field: str) -> str:
    """The address without its name (RFC 5322 §3.4.1); a local part that is not ASCII stays so (RFC 6532 §3.2)."""
    local = refuse_controls(address.local, field)
    if not local or len(local.encode()) > MAX_PART_OCTETS:
        raise ComposeError(field, Reason.TOO_LONG if local else Reason.SYNTAX)
    return Address("", local, ascii_domain(address.domain, field)).address


def address_list(name: str, addresses: Sequence[Address]) -> bytes:
    """An address field (RFC 5322 §3.6.2, §3.6.3). ComposeError when there are over 1,000 or one is malformed."""
    if len(addresses) > MAX_ADDRESSES:
        raise ComposeError(name, Reason.TOO_MANY)
    tokens: list[Token] = []
    encoded = False
    for at, address in enumerate(addresses):
        comma = "," if at + 1 < len(addresses) else ""
        spec = addr_spec(address, name)
        if not address.name:
            tokens.append((" ", spec + comma))
            continue
        phrase = _phrase_tokens(address.name, name, _WORD_LIMIT if at else FOLD_ENCODED_AT - len(name) - 2)
        encoded = encoded or phrase[0][1].startswith("=?")
        tokens += (*phrase, (" ", f"<{spec}>{comma}"))
    return fold(name, tokens, FOLD_ENCODED_AT if encoded else FOLD_AT)


def message_ids(name: str, ids: Sequence[str]) -> bytes:
    """`Message-ID`, `In-Reply-To`, `References` (RFC 5322 §3.6.4) from ids without angle brackets."""
    for value in ids:
        if not is_writable_id(value):
            refuse_controls(value, name)
            raise ComposeError(name, Reason.SYNTAX if value.isascii() else Reason.NOT_ASCII)
    return fold(name, [(" ", f"<{value}>") for value in ids])


def is_writable_id(value: str) -> bool:
    """Whether an id, as it may have come from outside, can stand in a field of ours."""
    return len(value) <= MAX_ID_OCTETS and _MESSAGE_ID.fullmatch(value) is not None


def is_field_name(name: str) -> bool:
    """Whether `name` can name a field (RFC 5322 §3.6.8), at most 100 characters."""
    return _FIELD_NAME.fullmatch(name) is not None


def with_parameters(
    name: str, value: str, parameters: Iterable[tuple[str, str]], *, words: tuple[str, str] | None = None
) -> bytes:
    """A field such as Content-Type: `value`, then parameters, quoted or in the form of RFC 2231.

    `words` is one more parameter, in encoded words where it cannot stand as it is: no standard allows that (RFC 2047
    §5), but it is how programs that know nothing of RFC 2231 name a file. ComposeError for a parameter whose name is no
    token or whose value holds a control character.
    """
    items = [item for key, text in parameters for item in _parameter(key, refuse_controls(text, name), name)]
    tokens = [(" ", value + (";" if items else ""))]
    tokens += [(" ", item + (";" if at + 1 < len(items) else "")) for at, item in enumerate(items)]
    if words is None:
        return fold(name, tokens)
    tokens[-1] = (" ", tokens[-1][1].removesuffix(";") + ";")
    key, text = words[0], refuse_controls(words[1], name)
    if _stands_as_it_is(key, text):
        tokens.append((" ", next(_parameter(key, text, name))))
        return fold(name, tokens)
    frame = len(f' {key}=""')
    pieces = list(encode_words(text, FOLD_ENCODED_AT - frame, FOLD_ENCODED_AT - len(' "')))
    pieces[0] = f'{key}="{pieces[0]}'
    pieces[-1] += '"'
    return fold(name, [*tokens, *((" ", piece) for piece in pieces)], FOLD_ENCODED_AT)


def _parameter(key: str, value: str, field: str) -> Iterator[str]:
    if _TOKEN.fullmatch(key) is None:
        raise ComposeError(field, Reason.SYNTAX)
    if len(value) > MAX_TEXT_CHARS:
        raise ComposeError(field, Reason.TOO_LONG)
    if _stands_as_it_is(key, value):
        yield f"{key}={value}" if _PLAIN_VALUE.fullmatch(value) else f"{key}={quote(value)}"
        return
    # RFC 2231 §4.1: segments are numbered from 0, the first names the charset.
    room = _room(key) - 3
    segment, number, whole = "utf-8''", 0, True
    for char in value:
        piece = char if char in _PARAM_PLAIN else "".join(f"%{octet:02X}" for octet in char.encode())
        if len(segment) + len(piece) > room:
            yield f"{key}*{number}*={segment}"
            segment, number, whole = "", number + 1, False
        segment += piece
    yield f"{key}*={segment}" if whole else f"{key}*{number}*={segment}"


def _room(key: str) -> int:
    return FOLD_AT - len(key) - 8  # `=""` or `*0*=` and a number, the blank before and the semicolon after


def _stands_as_it_is(key: str, value: str) -> bool:
    return value.isascii() and len(value) <= _room(key) and "=?" not in value


def date(name: str, moment: datetime) -> bytes:
    """A date field (RFC 5322 §3.3). ComposeError for a moment without zone."""
    return fold(name, [(" ", format_date(moment, name))])


def format_date(moment: datetime, field: str = "Date") -> str:
    """`moment` in its own zone, to the minute (RFC 5322 §3.3)."""
    offset = moment.utcoffset()
    if offset is None:
        raise ComposeError(field, Reason.SYNTAX)
    minutes = round(offset.total_seconds() / 60)
    sign, hours, rest = "-" if minutes < 0 else "+", abs(minutes) // 60, abs(minutes) % 60
    return (
        f"{_DAYS[moment.weekday()]}, {moment.day:02d} {_MONTHS[moment.month - 1]} {moment.year:04d} "
        f"{moment.hour:02d}:{moment.minute:02d}:{moment.second:02d} {sign}{hours:02d}{rest:02d}"
    )
