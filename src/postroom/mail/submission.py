"""Mail that people submit: what a submission server may mend (RFC 6409 §8; mail-server A3), and whose it claims to be.

Everything that is not named here stays octet for octet what the client sent, so that signatures of its own hold.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from postroom.mail import mime
from postroom.mail.address import Address
from postroom.mail.compose import fields
from postroom.mail.compose.encodings import has_lone_break
from postroom.mail.header import FIELD, unfold

MAX_AUTHORS: Final = 100
"""Addresses in From, and in Sender, that an owner check has to look at; more are refused."""

_BREAK: Final = re.compile(rb"\r\n?|\n")
_MBOX_LINE: Final = re.compile(rb">?From (?![ \t]*:)[^\n]*+\n")
_BLIND: Final = frozenset((b"bcc", b"resent-bcc"))
_OURS: Final = frozenset((b"return-path", b"x-postroom-hop"))
"""Fields that are the server's to write: what clients say there is taken out (mail-server A3; edge row N13)."""
_AUTHORS: Final = (b"from", b"resent-from")
_SENDERS: Final = (b"sender", b"resent-sender")

_LEXEME: Final = re.compile(
    rb"""(?P<space>[ \t]++)|(?P<atom>[A-Za-z0-9!#$%&'*+/=?^_`{|}~\x80-\xff-]++)|(?P<quoted>"(?:[^"\\\x00]++|\\.)*+")"""
    rb"""|(?P<literal>\[[^\[\]\\\x00]*+\])|(?P<special>[.@,:;<>])|(?P<comment>\()""",
    re.DOTALL,
)
_PARENS: Final = re.compile(rb"[()]|\\.", re.DOTALL)
_SHAPES: Final = {"space": " ", "comment": " ", "atom": "a", "quoted": "q", "literal": "l"}
# Lists of RFC 5322 §3.4 by the shapes of their lexemes, with dots and literals in phrases and routes (§4.1, §4.4). No
# white space stands within an address: there readers disagree.
_DOMAIN: Final = r"(?:a(?:\.a)*+\.?+|l)"
_SPEC: Final = rf"[aq](?:\.[aq])*+@{_DOMAIN}"
_MAILBOX: Final = rf" *+(?:(?:[aql][aql. ]*+)?< *+(?:@{_DOMAIN}(?:,@{_DOMAIN})*+:)?+{_SPEC} *+>|{_SPEC}) *+"
_LIST: Final = rf"[ ,]*+(?:{_MAILBOX}(?:,[ ,]*+{_MAILBOX})*+(?:,[ ,]*+)?+)?+"
_ENTRY: Final = rf"(?:{_MAILBOX}| *+[aql][aql. ]*+:{_LIST}; *+)"
_CLEAR: Final = re.compile(rf"[ ,]*+(?:{_ENTRY}(?:,[ ,]*+{_ENTRY})*+(?:,[ ,]*+)?+)?+")


class SubmissionProblem(StrEnum):
    BARE_LINE_BREAK = "bare_line_break"
    """A CR or LF by itself: `554 5.5.1` (mail-server A2)."""
    NO_AUTHOR = "no_author"
    """No From, or none with an address (RFC 5322 §3.6)."""
    SEVERAL_FROM = "several_from"
    """More than one From or Sender field: what one reader shows, another does not (edge row B13)."""
    TOO_MANY_AUTHORS = "too_many_authors"
    AMBIGUOUS_AUTHOR = "ambiguous_author"
    """From, Sender or one of their Resent- forms is no plain list: readers disagree on whom it names."""
    HEADER_TOO_LARGE = "header_too_large"
    MALFORMED_HEADER = "malformed_header"
    """A line that is no field stands between fields: readers disagree on where the header ends."""


class SubmissionError(ValueError):
    """A submitted message that cannot be taken as it is: `554 5.6.0` where the problem names no other reply."""

    def __init__(self, problem: SubmissionProblem) -> None:
        super().__init__(problem.value)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Submitted:
    """A mended message. The owner check is for every address of `authors` and `senders` (mail-server A3)."""

    wire: bytes = field(repr=False)
    """What is transmitted: without Bcc, and without Return-Path."""
    sent_copy: bytes = field(repr=False)
    """What the sender's Sent folder gets: the same with Bcc."""
    message_id: str | None
    """Normalised (inbound §28.5); None when the client's is malformed."""
    authors: tuple[Address, ...]
    """Every address of From and Resent-From; never empty."""
    senders: tuple[Address, ...]
    """Every address of Sender and Resent-Sender."""
    added: tuple[str, ...]
    """Names of the fields that were added."""


def canonical_line_ends(raw: bytes) -> bytes:
    """`raw` with CRLF for every line break; for doors other than SMTP, where bare line breaks are refused instead."""
    return _BREAK.sub(b"\r\n", raw) if has_lone_break(raw) else raw


def prepare(raw: bytes, *, date: datetime, message_id: str) -> Submitted:
    """Mend a submitted message.

    `Date` and `Message-ID` are put on top when they are missing or empty, from `date` (with a zone) and `message_id`
    (without angle brackets); `Return-Path`, `X-Postroom-Hop`, `Bcc` and `Resent-Bcc` are taken out. A line of mbox
    format before the header goes too. Raises SubmissionError.
    """
    if has_lone_break(raw):
        raise SubmissionError(SubmissionProblem.BARE_LINE_BREAK)
    mbox = _MBOX_LINE.match(raw)
    if mbox is not None:
        raw = raw[mbox.end() :]
    message = mime.parse(raw, max_depth=1, max_parts=1)
    block, body = raw[: message.root.body_start], raw[message.root.body_start :]
    if len(block) > mime.MAX_HEADER_BYTES or len(message.headers) >= mime.MAX_FIELDS:
        raise SubmissionError(SubmissionProblem.HEADER_TOO_LARGE)
    found = list(FIELD.finditer(block))
    if not found:
        raise SubmissionError(SubmissionProblem.NO_AUTHOR)
    blank = len(block) - sum(len(match[0]) for match in found)
    if blank not in (0, len(b"\r\n")) or (body and not blank):
        raise SubmissionError(SubmissionProblem.MALFORMED_HEADER)
    authors, senders = _claimed(message, found)
    lead, missing = b"", []
    for name, written in (
        ("Date", fields.date("Date", date)),
        ("Message-ID", fields.message_ids("Message-ID", (message_id,))),
    ):
        if not unfold(message.headers.get_raw(name) or b""):
            missing.append(name.lower().encode("ascii"))
            lead += written
    keep = [match for match in found if not _is_dropped(match, missing)]
    end = block[found[-1].end() :] + body
    return Submitted(
        wire=lead + _join(match for match in keep if match[1].lower() not in _BLIND) + end,
        sent_copy=lead + _join(keep) + end,
        message_id=mime.parse(lead).message_id if b"message-id" in missing else message.message_id,
        authors=authors,
        senders=senders,
        added=tuple(name for name in ("Date", "Message-ID") if name.lower().encode("ascii") in missing),
    )


def _is_dropped(match: re.Match[bytes], missing: list[bytes]) -> bool:
    name = match[1].lower()
    return name in _OURS or name in missing  # an empty field gives way to the one that was added


def _join(kept: Iterable[re.Match[bytes]]) -> bytes:
    return b"".join([match[0] for match in kept])


def _claimed(message: mime.Message, found: list[re.Match[bytes]]) -> tuple[tuple[Address, ...], tuple[Address, ...]]:
    names = [match[1].lower() for match in found]
    if names.count(b"from") > 1 or names.count(b"sender") > 1:
        raise SubmissionError(SubmissionProblem.SEVERAL_FROM)
    listed: list[tuple[Address, ...]] = []
    for group in (_AUTHORS, _SENDERS):
        addresses: list[Address] = []
        for name in group:
            some, complete = message.addresses(name.decode("ascii"), MAX_AUTHORS)
            if not complete:
                raise SubmissionError(SubmissionProblem.TOO_MANY_AUTHORS)
            addresses += some
        listed.append(tuple(addresses))
    if not message.from_:
        raise SubmissionError(SubmissionProblem.NO_AUTHOR)
    named = (*_AUTHORS, *_SENDERS)
    if not all(_is_clear(unfold(match[2])) for match in found if match[1].lower() in named):
        raise SubmissionError(SubmissionProblem.AMBIGUOUS_AUTHOR)
    return listed[0], listed[1]


def _is_clear(value: bytes) -> bool:
    """Whether an address list is such that every reader finds the same mailboxes in it."""
    shape, at = [], 0
    while at < len(value):
        lexeme = _LEXEME.match(value, at)
        if lexeme is None:
            return False
        kind = lexeme.lastgroup or ""
        shape.append(_SHAPES.get(kind) or lexeme[0].decode("ascii"))
        at = lexeme.end() if kind != "comment" else _after_comment(value, lexeme.end())
        if at < 0:
            return False
    return _CLEAR.fullmatch("".join(shape)) is not None


def _after_comment(value: bytes, at: int) -> int:
    """Where the comment ends whose parenthesis was opened before `at`; -1 when it does not."""
    depth = 1
    for found in _PARENS.finditer(value, at):
        depth += {b"(": 1, b")": -1}.get(found[0], 0)
        if not depth:
            return found.end()
    return -1
