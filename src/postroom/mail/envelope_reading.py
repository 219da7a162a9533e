"""What an ENVELOPE says, read back from the bytes that `postroom.mail.envelope` made (RFC 3501 §7.4.2)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from postroom.mail.header import decode_words

_STRING: Final = rb'(?:NIL|"(?:[^"\\]|\\.)*+")'
_PERSON: Final = rb"\(%b %b %b %b\)" % ((_STRING,) * 4)
_FIRST: Final = rb"(?:NIL|\(\((%b) %b (%b) (%b)\)(?:%b)*+\))" % (*(_STRING,) * 4, _PERSON)
_LIST: Final = rb"(?:NIL|\((?:%b)++\))" % _PERSON
# Date, subject, From, Sender, Reply-To, To, Cc; of lists the first, its name, local part and domain.
_USUAL: Final = re.compile(
    rb"\((%b) (%b) %b %b %b %b %b" % (_STRING, _STRING, _FIRST, _LIST, _LIST, _FIRST, _FIRST), re.DOTALL
).match
_TOKEN: Final = re.compile(rb'[() ]|NIL|"((?:[^"\\]|\\.)*+)"|\{(\d++)\}\r\n', re.DOTALL).match
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)

_FIELDS: Final = 10


class Person(NamedTuple):
    """A mailbox of an address list: the decoded display name, and the address in its two halves; "" for what is not
    there.
    """

    name: str
    local: str
    domain: str


NOBODY: Final = Person("", "", "")


class EnvelopeValues(NamedTuple):
    """The date as written, the subject decoded, and the first mailbox of each list."""

    date: str
    subject: str
    author: Person
    to: Person
    cc: Person


_NOTHING: Final = EnvelopeValues("", "", NOBODY, NOBODY, NOBODY)


def read_envelope(data: bytes) -> EnvelopeValues:
    """The values of an ENVELOPE; of what is none, nothing."""
    usual = _USUAL(data)
    if usual is not None:
        values = [_text(value) for value in usual.groups()]
        return EnvelopeValues(
            values[0],
            decode_words(values[1]),
            _person(values[2:5]),
            _person(values[5:8]),
            _person(values[8:11]),
        )
    fields = _fields(data)
    if fields is None:
        return _NOTHING
    people = [_person([part or "" for part in _first(field)]) for field in (fields[2], fields[5], fields[6])]
    return EnvelopeValues(_one(fields[0]), decode_words(_one(fields[1])), *people)


def read_people(data: bytes) -> tuple[list[Person], ...]:
    """All mailboxes of From, To, Cc and Bcc."""
    fields = _fields(data)
    if fields is None:
        return [], [], [], []
    lists = (fields[2], fields[5], fields[6], fields[7])
    return tuple(
        [_person([field[at], *field[at + 2 : at + 4]]) for at in range(0, len(field) - 3, 4)] for field in lists
    )


def _person(values: list[str]) -> Person:
    name, local, domain = values
    return Person(decode_words(name) if "=?" in name else name, local, domain)


def _text(value: bytes | None) -> str:
    if value is None or value == b"NIL":
        return ""
    inner = value[1:-1]
    return (_ESCAPED.sub(rb"\1", inner) if b"\\" in inner else inner).decode("utf-8", "replace")


def _one(field: list[str]) -> str:
    return field[0] if field else ""


def _first(field: list[str]) -> list[str]:
    return [field[0], *field[2:4]] if len(field) >= 4 else ["", "", ""]


def _fields(data: bytes) -> list[list[str]] | None:
    """The strings of each of the ten fields, those of a list in a row; also where some are literals."""
    fields: list[list[str]] = []
    at, depth = 0, 0
    while at < len(data):
        token = _TOKEN(data, at)
        if token is None:
            return None
        at = token.end()
        mark = token[0]
        if mark == b"(":
            depth += 1
            if depth == 2:
                fields.append([])
        elif mark == b")":
            depth -= 1
        elif mark != b" ":
            if token[2] is not None:
                size = int(token[2])
                value = data[at : at + size].decode("utf-8", "replace")
                at += size
            else:
                value = _text(mark)
            if depth == 1:
                fields.append([value])
            elif fields:
                fields[-1].append(value)
    return fields if len(fields) == _FIELDS else None
