"""Authentication-Results, read and written (RFC 8601 §2.2), and the payload of ARC-Authentication-Results.

Reading forgives what is common, as an empty value or a trailing semicolon, and leaves out a result that cannot be
read. It takes time linear in the field. Writing never lets a value end a line, a comment or a quoted string.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from postroom.mailauth.folding import Lines

FIELD_TITLE: Final = "Authentication-Results"
FIELD_NAME: Final = "authentication-results"
MAX_FIELD_BYTES: Final = 8 * 1024
MAX_STEPS: Final = 1000
"""Words, values and parentheses of a field that are read; what follows is not."""
MAX_RESULTS: Final = 100
MAX_PROPERTIES: Final = 50
MAX_VALUE: Final = 512
"""Characters of a value or comment that are written."""

_KEYWORD: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]*+)")
_ATOM: Final = re.compile(r'[^\s;()"\x00-\x1f\x7f]++')
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_PAIR: Final = re.compile(r"\\(.)", re.DOTALL)
_FOLD: Final = re.compile(r"\r?\n")  # not part of a quoted string (RFC 5322 §3.2.4)
_SPACE: Final = re.compile(r"[ \t\r\n]*+")
_COMMENT_MARK: Final = re.compile(r"[()]|\\.", re.DOTALL)
_PROPERTY: Final = re.compile(r"[ \t\r\n]++[A-Za-z0-9-]++\.[A-Za-z0-9-]++=")
_VERSION: Final = re.compile(r"[0-9]{1,9}(?![^\s;(=])")
# A token (RFC 2045 §5.1), or an address or domain, none of which has to be quoted.
_BARE: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`{|}~-]++(?:@[A-Za-z0-9._-]++)?|@[A-Za-z0-9._-]++")
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_BEYOND_ASCII: Final = re.compile(r"[^\x20-\x7e]")


@dataclass(frozen=True, slots=True)
class Property:
    """One thing that a result is about: `smtp.mailfrom=a@b` has type `smtp`, name `mailfrom`."""

    type: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class MethodResult:
    """The result of one method, names in lower case."""

    method: str
    result: str
    properties: tuple[Property, ...] = ()
    reason: str = ""
    version: int | None = None
    """Of the method; None means 1."""
    comment: str = ""
    """For people; written behind the result, not read."""

    def value(self, type: str, name: str) -> str | None:
        """The first value of a property, such as `("smtp", "mailfrom")`."""
        for found in self.properties:
            if (found.type, found.name) == (type, name):
                return found.value
        return None


@dataclass(frozen=True, slots=True)
class AuthenticationResults:
    """What one server found out; no results at all are written as `none`."""

    authserv_id: str
    results: tuple[MethodResult, ...] = ()
    version: int | None = None
    """Of the field's format; None means 1, and nothing else is known."""
    instance: int | None = None
    """`i=` of ARC-Authentication-Results (RFC 8617 §4.1.1)."""

    def of(self, method: str) -> Iterator[MethodResult]:
        """The results of one method, in order; version 1 only."""
        return (found for found in self.results if found.method == method and found.version in (None, 1))


class _Malformed(Exception):
    """The text does not go on as it must."""


def parse(value: bytes) -> AuthenticationResults | None:
    """Read the value of a field, folded or not; None for what has no authserv-id, or is too large to be read."""
    return _parse(value, arc=False)


def parse_arc(value: bytes) -> AuthenticationResults | None:
    """Read the value of an ARC-Authentication-Results field, which begins with `i=` (RFC 8617 §4.1.1)."""
    return _parse(value, arc=True)


def arc_instance(value: bytes) -> int | None:
    """The instance of an ARC-Authentication-Results field, whatever else it holds."""
    try:
        return _Scanner(value[:MAX_FIELD_BYTES].decode("utf-8", "replace")).instance()
    except _Malformed:
        return None


def _parse(value: bytes, *, arc: bool) -> AuthenticationResults | None:
    if len(value) > MAX_FIELD_BYTES:
        return None
    scanner = _Scanner(value.decode("utf-8", "replace"))
    try:
        instance = scanner.instance() if arc else None
        authserv_id = scanner.value()
        scanner.skip()
        version = scanner.version()
        scanner.skip()
        if not authserv_id or ("=" in authserv_id and not scanner.quoted) or not (scanner.at(";") or scanner.ended):
            return None
    except _Malformed:
        return None
    return AuthenticationResults(authserv_id, tuple(scanner.results()), version, instance)


class _Scanner:
    """Goes through the text once, from left to right."""

    __slots__ = ("_at", "_left", "_text", "quoted")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._left = MAX_STEPS
        self.quoted = False
        """Whether the last value was."""

    @property
    def ended(self) -> bool:
        return self._at >= len(self._text)

    def at(self, character: str) -> bool:
        return self._text.startswith(character, self._at)

    def skip(self) -> None:
        """White space and comments (RFC 5322 §3.2.2). Raises `_Malformed` for a comment that does not end."""
        while True:
            self._at = self._match(_SPACE).end()
            if not self.at("("):
                return
            depth = 0
            while depth or self.at("("):
                mark = _COMMENT_MARK.search(self._text, self._at)
                self._step()
                if mark is None:
                    self._at = len(self._text)
                    raise _Malformed
                depth += {"(": 1, ")": -1}.get(mark[0], 0)
                self._at = mark.end()
                if not depth:
                    break

    def _step(self, *, ends: bool = False) -> None:
        """One step further; raises `_Malformed` when all has been read that may be, and where the text `ends`."""
        self._left -= 1
        if ends or self._left < 0:
            self._at = len(self._text)
            raise _Malformed

    def keyword(self) -> str:
        self._step()
        found = _KEYWORD.match(self._text, self._at)
        if found is None:
            raise _Malformed
        self._at = found.end()
        return found[0].lower()

    def value(self) -> str:
        """A token, or more of it than RFC 2045 allows, or a quoted string, an address with such a local part too."""
        self.skip()
        found = _QUOTED.match(self._text, self._at)
        self.quoted = found is not None
        self._step(ends=found is None and self.at('"'))
        if found is None:
            atom = _ATOM.match(self._text, self._at)
            self._at = self._at if atom is None else atom.end()
            return "" if atom is None else atom[0]
        self._at = found.end()
        text = _PAIR.sub(r"\1", _FOLD.sub("", found[1]))
        if self.at("@"):
            domain = self._match(_ATOM)
            self._at = domain.end()
            text += domain[0]
        return text

    def version(self) -> int | None:
        found = _VERSION.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return int(found[0])

    def instance(self) -> int:
        """`i=1;`"""
        self.skip()
        if self.keyword() != "i":
            raise _Malformed
        self._expect("=")
        number = self.value()
        self.skip()
        if not number.isascii() or not number.isdigit() or len(number) > 9 or not self.at(";"):
            raise _Malformed
        self._at += 1
        return int(number)

    def results(self) -> Iterator[MethodResult]:
        """What stands between semicolons, as far as it can be read."""
        for _ in range(MAX_RESULTS):
            if not self.at(";"):
                return
            self._at += 1
            try:
                found = self._result()
            except _Malformed:
                found = None
            try:
                self._to_semicolon()
            except _Malformed:
                return  # how what was read goes on is not known
            if found is not None:
                yield found

    def _result(self) -> MethodResult | None:
        self.skip()
        if self.ended or self.at(";"):
            return None
        method = self.keyword()
        self.skip()
        version = None
        if self.at("/"):
            self._at += 1
            self.skip()
            version = self.version()
            if version is None:
                raise _Malformed
            self.skip()
        if not self.at("="):
            return None  # `none`, or nothing that is known
        self._at += 1
        self.skip()
        result = self.keyword()
        reason, properties = "", []
        while self._more():
            type_ = self.keyword()
            self.skip()
            if self.at("="):
                self._at += 1
                text = self.value()
                reason = reason or (text if type_ == "reason" else "")
                continue
            self._expect(".")
            self.skip()
            name = self.keyword()
            self._expect("=")
            # White space may follow; but what then looks like another property is one, and this has no value.
            empty = _PROPERTY.match(self._text, self._at) is not None
            properties.append(Property(type_, name, "" if empty else self.value()))
        return MethodResult(method, result, tuple(properties[:MAX_PROPERTIES]), reason, version)

    def _more(self) -> bool:
        self.skip()
        return not self.ended and not self.at(";")

    def _expect(self, character: str) -> None:
        self.skip()
        if not self.at(character):
            raise _Malformed
        self._at += 1

    def _to_semicolon(self) -> None:
        """To the next semicolon that is not in a comment or quoted. Raises `_Malformed`."""
        while True:
            self.skip()
            if self.ended or self.at(";"):
                return
            before = self._at
            self.value()
            if self._at == before:
                self._at += 1  # a character that stands for nothing here

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise _Malformed
        return found


def render(found: AuthenticationResults, *, title: str = FIELD_TITLE, utf8: bool = False) -> bytes:
    """The field, folded, with its line end; `utf8`: characters beyond ASCII may stand in it (RFC 8601 §2.2, RFC 6532).

    Control characters become `?`, as do those beyond ASCII otherwise; long values are cut. Raises ValueError for a
    name that is no keyword, which is a fault of the caller.
    """
    lines = Lines(f"{title}:")
    if found.instance is not None:
        lines.add(f"i={found.instance};")
    head = _written(found.authserv_id, utf8=utf8) + ("" if found.version is None else f" {found.version}")
    if not found.results:
        lines.add(f"{head};")
        lines.add("none")
    for number, result in enumerate(found.results):
        if not number:
            lines.add(f"{head};")
        pieces = list(_pieces(result, utf8=utf8))
        if number + 1 < len(found.results):
            pieces[-1] += ";"
        lines.fold(pieces[0])
        for piece in pieces[1:]:
            lines.add(piece)
    return lines.text().encode("utf-8") + b"\r\n"


def _pieces(result: MethodResult, *, utf8: bool) -> Iterator[str]:
    """What white space may stand between."""
    version = "" if result.version is None else f"/{result.version}"
    yield f"{_checked(result.method)}{version}={_checked(result.result)}"
    if result.comment:
        words = _plain(result.comment, utf8=utf8).replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)").split()
        if words:
            words[0] = f"({words[0]}"
            words[-1] = f"{words[-1]})"
            yield from words
    if result.reason:
        yield f"reason={_written(result.reason, utf8=utf8, quote=True)}"
    for found in result.properties:
        yield f"{_checked(found.type)}.{_checked(found.name)}={_written(found.value, utf8=utf8)}"


@functools.lru_cache(256)  # there are few
def _checked(name: str) -> str:
    if _KEYWORD.fullmatch(name) is None or len(name) > MAX_VALUE:
        raise ValueError("not a keyword")
    return name


def _plain(text: str, *, utf8: bool) -> str:
    if len(text) <= MAX_VALUE and text.isascii() and text.isprintable():
        return text
    text = _CONTROLS.sub("?", text[:MAX_VALUE])
    return text if utf8 else _BEYOND_ASCII.sub("?", text)


def _written(text: str, *, utf8: bool, quote: bool = False) -> str:
    if not quote and len(text) <= MAX_VALUE and _BARE.fullmatch(text) is not None:
        return text  # as nearly all is
    text = _plain(text, utf8=utf8)
    if not quote and _BARE.fullmatch(text) is not None:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
