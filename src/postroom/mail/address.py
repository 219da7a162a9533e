"""Addresses (RFC 5322 §3.4, obsolete forms of §4.4; RFC 6532): tolerant lists.

The tolerant reader never raises and takes linear time. It works on text in which every byte is one character
(latin-1), so that IMAP can serve names as they were written; `Address` holds decoded text.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from postroom.mail import charset
from postroom.mail.header import decode_words, unfold

MAX_ADDRESSES: Final = 10_000
MAX_FIELDS: Final = 100
"""Fields of one name that are read; RFC 5322 §3.6 allows one."""

_SHORT: Final = 512
"""Octets of the fields of one name that are remembered for a while."""
_TOKENS: Final = 400
"""Tokens of unusual lists that are read for the fields of one name, beside those that make mailboxes."""
_TOKENS_OF_MAILBOX: Final = 16
_UNUSUAL_MAILBOXES: Final = 200
_EDGES_FOR_EACH: Final = 3
"""List entries for an address when each stands in a group of its own: start, mailbox, end."""

_ATEXT: Final = r"[^\x00-\x20\x7f\s\"(),.:;<>@\[\\\]]"  # RFC 5322 §3.2.3, RFC 6532 §3.2
_DOT_ATOM: Final = re.compile(rf"{_ATEXT}++(?:\.{_ATEXT}++)*+")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_QUOTED: Final = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_SPACES: Final = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Address:
    """A mailbox: decoded display name (may be empty), local part without quoting, domain as written."""

    name: str
    local: str
    domain: str

    @property
    def address(self) -> str:
        """The addr-spec; the local part is quoted where RFC 5322 §3.4.1 needs it."""
        local = self.local
        if _DOT_ATOM.fullmatch(local) is None:
            escaped = local.replace("\\", "\\\\").replace('"', '\\"')
            local = f'"{escaped}"'
        return f"{local}@{self.domain}"


@dataclass(frozen=True, slots=True)
class RawMailbox:
    """A mailbox or a group edge as IMAP's ENVELOPE lists it (RFC 3501 §7.4.2), every byte one character.

    `domain` None marks a group edge: the start with the group's name in `local`, the end with `local` None.
    """

    name: str | None
    route: str | None
    local: str | None
    domain: str | None


# One ordinary mailbox up to the next comma: `word word <local@domain>`, `"any" <local@domain>` or `local@domain`.
_ATOM_RAW: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\x80-\xff-]"
_SIMPLE: Final = re.compile(
    rf"[ \t]*+(?:(?:\"([^\"\\]*+)\"|({_ATOM_RAW}++(?:[ \t.]++{_ATOM_RAW}++)*+\.?))?[ \t]*+"
    rf"<({_ATOM_RAW}++(?:\.{_ATOM_RAW}++)*+)@([A-Za-z0-9.\x80-\xff-]++)>"
    rf"|({_ATOM_RAW}++(?:\.{_ATOM_RAW}++)*+)@([A-Za-z0-9.\x80-\xff-]++))[ \t]*+(?:,|\Z)"
)


class RawList(NamedTuple):
    """Mailboxes and group edges of the fields of one name; `complete` when nothing of them was left out."""

    boxes: Sequence[RawMailbox]
    complete: bool


_ENTITY: Final = re.compile(r"&(lt|gt|quot);", re.IGNORECASE)
_ENTITIES: Final = {"lt": "<", "gt": ">", "quot": '"'}


def read_raw_list(values: Sequence[bytes], limit: int = MAX_ADDRESSES) -> RawList:
    """Mailboxes and group edges of the raw values of all fields of one name, undecoded.

    It stops after `limit` of them, after `MAX_FIELDS` fields, and when what is no ordinary list costs more effort than
    any list of people would: the header of a message is read while others wait.
    """
    if sum(map(len, values)) <= _SHORT:
        # Of one message it is read several times, and the same people write again and again.
        known = _short_list(tuple(values))
        if len(known.boxes) < limit:
            return known
    return _read_fields(values, limit)


@lru_cache(maxsize=512)
def _short_list(values: tuple[bytes, ...]) -> RawList:
    boxes, complete = _read_fields(values, MAX_ADDRESSES)
    return RawList(tuple(boxes), complete)


def _read_fields(values: Sequence[bytes], limit: int) -> RawList:
    boxes: list[RawMailbox] = []
    effort = _Effort()
    for value in values[:MAX_FIELDS]:
        if not _read_field(unfold(value).decode("latin-1"), boxes, limit, effort):
            return RawList(boxes, False)
    return RawList(boxes, len(values) <= MAX_FIELDS)


def parse_raw_list(value: bytes) -> Sequence[RawMailbox]:
    """Mailboxes and group edges of an address field's raw value, at most about 10,000, undecoded."""
    return read_raw_list((value,)).boxes


def _read_field(text: str, boxes: list[RawMailbox], limit: int, effort: "_Effort") -> bool:
    """Add what a field lists to `boxes`; whether that is all of it."""
    if "&" in text and _ENTITY.search(text):
        # Written by a program that wrote a page before.
        text = _ENTITY.sub(lambda found: _ENTITIES[found[1].lower()], text)
    at, end = 0, len(text)
    match = _SIMPLE.match
    reader: _Reader | None = None
    first = len(boxes)
    while at < end:
        if len(boxes) >= limit:
            break
        simple = match(text, at)
        if simple is None:
            if reader is None:
                reader = _Reader(text, effort)
            at = reader.read(at, boxes)
            _join_name(boxes, first)
            if effort.left <= 0:
                break
            continue
        quoted, phrase, local, domain, bare_local, bare_domain = simple.groups()
        if bare_local is not None:
            boxes.append(RawMailbox(None, None, bare_local, bare_domain))
        else:
            boxes.append(RawMailbox(quoted or phrase or None, None, local, domain))
            if len(boxes) - first > 1 and not boxes[-2].domain:
                _join_name(boxes, first)
        at = simple.end()
    if reader is not None and reader.in_group:
        boxes.append(RawMailbox(None, None, None, None))
    return at >= end


def _join_name(boxes: list[RawMailbox], first: int) -> None:
    """Put the parts of a name before its last together again: `Last, First <local@domain>`, its quotes forgotten.

    Only what cannot be a user name of this system: at most two entries before, that begin with a capital.
    """
    if len(boxes) - first < 2:
        return
    last = boxes[-1]
    if not last.domain or not last.name:
        return
    names = [last.name]
    while len(names) < 3 and len(boxes) - first > len(names):
        before = boxes[-1 - len(names)]
        part = before.name or before.local
        if before.domain != "" or not part or (before.name and before.local) or part[:1].islower():
            break
        names.append(part)
    if len(names) > 1:
        del boxes[-len(names) :]
        boxes.append(RawMailbox(", ".join(reversed(names)), last.route, last.local, last.domain))


def parse_addresses(value: bytes | str) -> list[Address]:
    """Complete mailboxes of an address list, group members included; what has no `@` is left out."""
    raw = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return [_address(box.name, box.local, box.domain) for box in parse_raw_list(raw) if box.local and box.domain]


def read_addresses(
    values: Sequence[bytes], limit: int = MAX_ADDRESSES, label: str | None = None
) -> tuple[list[Address], bool]:
    """The first `limit` complete mailboxes of the fields of one name, and whether there are no more.

    `label` is the charset of the body, for names in octets that say none.
    """
    found, complete = _complete(values, limit)
    return [_address(*parts, label) for parts in found], complete


def read_domains(values: Sequence[bytes], limit: int = MAX_ADDRESSES) -> tuple[list[str], bool]:
    """The domains of what `read_addresses` reads, and whether there are no more. Names, which may be long and encoded a
    thousand times, are not looked at."""
    found, complete = _complete(values, limit)
    return [_address(None, local, domain).domain for _, local, domain in found], complete


def _complete(values: Sequence[bytes], limit: int) -> tuple[list[tuple[str | None, str, str]], bool]:
    boxes, complete = read_raw_list(values, _EDGES_FOR_EACH * limit + 1)
    found = [(box.name, box.local, box.domain) for box in boxes if box.local and box.domain]
    return found[:limit], complete and len(found) <= limit


def _address(name: str | None, local: str, domain: str, label: str | None = None) -> Address:
    local, domain = _plain(local), _plain(domain)
    if local[0] == domain[-1] == "'" and len(local) > 1 < len(domain):
        local, domain = local[1:], domain[:-1]  # Outlook quotes an address so that it shows as its own name
    return Address(_display(name, label), local, domain)


def _display(name: str | None, label: str | None = None) -> str:
    if not name:
        return ""
    text = decode_words(name if name.isascii() and "\x1b" not in name else _plain(name, label))
    text = " ".join(text.split())
    return text[1:-1].strip() if text[:1] == text[-1:] == "'" and len(text) > 2 else text


def _plain(text: str, label: str | None = None) -> str:
    if text.isascii() and "\x1b" not in text:
        return text
    return charset.decode_raw_text(text.encode("latin-1"), label)


# Encoded words whose text was not encoded, and stretches of ISO-2022-JP: what looks like structure there is none. Angle
# brackets, quotes and `@` stay what they are: no word may hide an address from one reader that another finds.
_WHOLE: Final = (
    r"=\?[^?\s\"<>@]{1,40}+\?[bBqQ]\?[^?<>@\"=]*+(?:=[0-9A-Fa-f]{2}[^?<>@\"=]*+)*+={0,2}\?="
    r"|\x1b\$[@B][^\x1b]*+(?:\x1b\([BJ])?"
)
_OPENING: Final = rf"([ \t\r\n\x00]++)|({_WHOLE}|[^\s\x00()<>@,;:\\\"\[\].]++)|([.@,;:<>])"
_CLOSING: Final = r"(\[[^\[\]\\]*+\])|(.)"
_TOKEN: Final = re.compile(rf'{_OPENING}|"((?:[^"\\]++|\\.)*+)"|{_CLOSING}', re.DOTALL)
_TOKEN_WITHOUT_QUOTES: Final = re.compile(rf"{_OPENING}|((?!))|{_CLOSING}", re.DOTALL)
_PARENS: Final = re.compile(r"[()]|\\.", re.DOTALL)


class _Effort:
    """What may still be spent on unusual lists, in tokens: mailboxes found earn more, up to a number of them."""

    __slots__ = ("_earning", "left")

    def __init__(self) -> None:
        self.left = _TOKENS
        self._earning = _UNUSUAL_MAILBOXES

    def found(self) -> None:
        if self._earning:
            self._earning -= 1
            self.left += _TOKENS_OF_MAILBOX


class _Reader:
    """Reads what the simple pattern does not: groups, comments, routes, quoted local parts, missing brackets."""

    def __init__(self, text: str, effort: _Effort) -> None:
        self.text = text
        self.at = 0
        self.comments_closed = True
        self.in_group = False
        self._effort = effort
        self._token = _TOKEN
        self._last_semicolon = text.rfind(";")
        self._reset()

    def _reset(self) -> None:
        self.words: list[str] = []  # phrase, or an address without brackets; a lone space stands for white space
        self.inside: list[str] | None = None  # words since `<`
        self.address: list[str] | None = None  # words that stood between `<` and `>`
        self.comment = ""

    def read(self, at: int, found: list[RawMailbox]) -> int:
        """Read on from `at` to the end of one entry of the list, which is added to `found`; where the next begins."""
        self.at = at
        for kind, value in self._tokens():
            if kind == "word":
                (self.words if self.inside is None else self.inside).append(value)
            elif value == "<":
                if self.inside is None and self.address is None:
                    self.inside = []
            elif value == ">":
                if self.inside is not None:
                    self.address, self.inside = self.inside, None
            elif value == ":" and self._opens_group():
                found.append(RawMailbox(None, None, _phrase(self.words) or "", None))
                self.in_group = True
                self._reset()
                return self.at
            elif value in (",", ";") and not (value == "," and self._in_route()):
                self._end_entry(found)
                if value == ";" and self.in_group:
                    self.in_group = False
                    found.append(RawMailbox(None, None, None, None))
                return self.at
            else:
                (self.words if self.inside is None else self.inside).append(value)
        self._end_entry(found)
        return self.at

    def _opens_group(self) -> bool:
        """Whether a colon ends the name of a group (RFC 5322 §3.4), and is not one within a name (`Re: you <…>`)."""
        if self.inside is not None or self.address is not None or self.in_group:
            return False
        if self.at <= self._last_semicolon:
            return True
        end = self.text.find(",", self.at)
        bracket = self.text.find("<", self.at, len(self.text) if end < 0 else end)
        return bracket < 0 or not self.text[self.at : bracket].strip()

    def _end_entry(self, found: list[RawMailbox]) -> None:
        several = self._several()
        if several:
            self._reset()
            found += several
            for _ in several:
                self._effort.found()
            return
        made = self._finish()
        if made is not None:
            found.append(made)
            if made.domain:
                self._effort.found()

    def _several(self) -> list[RawMailbox]:
        """Bare addresses that stand beside one another without a comma, if the entry is nothing else."""
        if self.address is not None or self.inside is not None or self.words.count("@") < 2:
            return []
        pieces: list[list[str]] = [[]]
        for word in self.words:
            if word != " ":
                pieces[-1].append(word)
            elif pieces[-1]:
                pieces.append([])
        if not pieces[-1]:
            pieces.pop()
        if len(pieces) < 2 or any(piece.count("@") != 1 or "@" in (piece[0], piece[-1]) for piece in pieces):
            return []
        return [RawMailbox(None, None, *_addr_spec(piece)) for piece in pieces]

    def _in_route(self) -> bool:
        """Whether a comma separates the domains of a source route, `<@one,@two:local@domain>` (RFC 5322 §4.4)."""
        return bool(self.inside) and self.inside is not None and self.inside[0] == "@"

    def _tokens(self) -> Iterator[tuple[str, str]]:
        text, end, effort = self.text, len(self.text), self._effort
        while self.at < end and effort.left > 0:
            effort.left -= 1
            found = self._token.match(text, self.at)
            if found is None:  # pragma: no cover - the last alternative takes any character
                return
            self.at = found.end()
            space, atom, special, quoted, literal, other = found.groups()
            if atom is not None or literal is not None:
                yield "word", atom or literal
            elif special is not None:
                yield "special" if special not in ".@" else "word", special
            elif space is not None:
                yield "word", " "
            elif quoted is not None:
                yield "word", '"' + quoted
            elif other == "(":
                self._skip_comment()
            elif other == '"':
                # A quote that never closes: read on as if it were not there, and never look for its end again,
                # which would cost quadratic time.
                self._token = _TOKEN_WITHOUT_QUOTES
            elif other not in ")[]\\":
                yield "word", other

    def _skip_comment(self) -> None:
        if not self.comments_closed:
            return
        depth, start = 1, self.at
        for found in _PARENS.finditer(self.text, self.at):
            self._effort.left -= 1
            if self._effort.left <= 0:
                break
            if found[0] == "(":
                depth += 1
            elif found[0] == ")":
                depth -= 1
                if depth == 0:
                    self.comment = self.comment or self.text[start : found.start()].strip()
                    self.at = found.end()
                    return
        self.comments_closed = False  # as for quotes

    def _finish(self) -> RawMailbox | None:
        words, address, comment = self.words, self.address, self.comment
        if address is None and self.inside is not None:
            address = self.inside  # `>` is missing
        self._reset()
        if address is not None and not any(word != " " for word in address) and "@" in words:
            address = None  # `local@domain <>`
        if address is not None:
            route, spec = _split_route(address)
            local, domain = _addr_spec(spec)
            name = _phrase(words) or _unescape(comment)
            if not (local or domain or name):
                return None
            return RawMailbox(name or None, route, local, domain)
        if not any(word != " " for word in words):
            return None
        literal = next((word for word in words if word[0] == "[" and "@" in word), None)
        if literal is not None:
            # `Name [local@domain]`, as programs quote addresses in text.
            local, _, domain = literal[1:-1].removeprefix("mailto:").rpartition("@")
            return RawMailbox(_phrase([word for word in words if word != literal]) or None, None, local, domain)
        if "@" not in words:
            # No address at all: a bare user name of this system, or only a name.
            plain = _phrase(words)
            if " " in plain:
                return RawMailbox(plain, None, "", "")
            return RawMailbox(_unescape(comment) or None, None, plain, "")
        name, spec = _split_bare(words)
        local, domain = _addr_spec(spec)
        return RawMailbox(name or _unescape(comment) or None, None, local, domain)


def _split_bare(words: list[str]) -> tuple[str, list[str]]:
    """Part `Name of someone local@domain` (brackets missing) into its name and its address."""
    at = len(words) - 1 - words[::-1].index("@")
    start = at
    while start > 0 and words[start - 1] == " ":
        start -= 1
    while start > 0 and words[start - 1] != " ":
        start -= 1
    return _phrase(words[:start]), words[start:]


def _split_route(words: list[str]) -> tuple[str | None, list[str]]:
    """Part the source route from an angle address (RFC 5322 §4.4 obs-route)."""
    bare = [word for word in words if word != " "]
    if bare and bare[0] == "@" and ":" in bare:
        colon = bare.index(":")
        return "".join(bare[:colon]), bare[colon + 1 :]
    return None, bare


def _addr_spec(words: list[str]) -> tuple[str, str]:
    bare = [word for word in words if word != " "]
    if bare[:2] == ["mailto", ":"]:
        del bare[:2]
    if "@" not in bare:
        return "".join(_unquote(word) for word in bare), ""
    at = end = len(bare) - 1 - bare[::-1].index("@")
    while end and bare[end - 1] == "@":
        end -= 1  # `local@@domain`
    local = "".join(_unquote(word) for word in bare[:end])
    return local, "".join(_unquote(word) for word in bare[at + 1 :])


def _phrase(words: list[str]) -> str:
    text = "".join(_unquote(word) for word in words)
    return _SPACES.sub(" ", text).strip()


def _unquote(word: str) -> str:
    return _unescape(word[1:]) if word.startswith('"') else word


def _unescape(text: str) -> str:
    return _ESCAPED.sub(r"\1", text) if "\\" in text else text
