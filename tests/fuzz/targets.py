"""One function a target: it takes any bytes, and raises only when the program is wrong.

Beside "does not crash", each says what holds of its result. `TARGETS` names them; the suite runs each over what
hypothesis makes, over the corpus and over the regressions, `make fuzz` over what atheris finds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, TypeVar

import orjson

from postroom.accounts.names import NameClass
from postroom.base.errors import PostroomError
from postroom.directory.usernames import validate_username
from postroom.imap.cursor import DEFAULT_OPTIONS
from postroom.imap.errors import CommandError
from postroom.imap.parser import parse_command
from postroom.imap.wire import RawCommand, ReaderLimits
from postroom.inbound.describe import describe
from postroom.mail import mime
from postroom.mail.address import Address, parse_addresses
from postroom.mail.compose import ComposeError, Draft, compose
from postroom.mail.date import parse_date
from postroom.mail.header import decode_value
from postroom.mail.ids import normalise_message_id, parse_references
from postroom.mail.params import parse_content_type, parse_disposition, text_of
from postroom.mail.tree import pack_tree, unpack_tree
from postroom.mailauth.dkim_verify import verify
from postroom.mailauth.resolver import NameNotFoundError
from postroom.mailbox.gleaned import glean
from postroom.sasl import MECHANISM, PLUS, Challenge, Exchange, Keys, Offer, Proof, Refused, saslprep
from postroom.servers.imap.capabilities import options
from tests.fuzz.kinds import attachment_sniff, dsn_parse, tnef_parse
from tests.fuzz.reading import quote_strip, refs_extract, sanitize
from tests.imap.pieces import cut_anywhere
from tests.mailauth.fuzz_targets import spf_record

T = TypeVar("T")

NOW: Final = datetime(2026, 3, 5, tzinfo=UTC)

_STREAM: Final = 4096
"""Octets of a stream of commands that are looked at: they are read once for each of `_CUTS` places to cut them."""
_CUTS: Final = 24
_NARROW: Final = ReaderLimits(
    max_line=80,
    max_literal=20,
    max_literal_total=30,
    max_literals=3,
    max_append_size=100,
    max_append_total=150,
    max_discard=1000,
)
"""Where a fuzzer soon comes up against them."""


def mime_parse(data: bytes) -> None:
    """At most 32 deep and 500 parts; the leaves tile what they are said to; what is derived is valid text."""
    message = mime.parse(data)
    pending = [(message.root, 1, 0, len(data))]
    parts = 0
    while pending:
        part, depth, start, end = pending.pop()
        parts += 1
        assert depth <= mime.MAX_DEPTH
        assert start <= part.header_start <= part.body_start <= part.body_end <= end
        pending += [(child, depth + 1, part.body_start, part.body_end) for child in part.children]
    assert parts <= mime.MAX_PARTS
    assert unpack_tree(pack_tree(message.root)) == message.root
    content = describe(b"", data, NOW)
    for text in (content.subject, content.text, content.extracted_text, content.snippet, content.html or ""):
        assert "\0" not in text
        text.encode()
    assert len(content.snippet) <= 240
    # What the database refuses would be mail that nobody can ever deliver.
    for found in (content.auth, content.automated):
        assert b"\\u0000" not in orjson.dumps(found)
    gleaned = glean(content.subject, content.extracted_text)
    for value in (
        gleaned.language or "",
        *(ref.value for ref in gleaned.refs),
        *(v.value for v in content.verifications),
    ):
        assert "\0" not in value
        value.encode()
    assert all(0 < len(ref.value) <= 64 for ref in gleaned.refs)
    assert len(orjson.dumps(content.automated)) <= 64 * 1024
    assert content.sender is None or content.sender.name.isprintable()


def header_parse(data: bytes) -> None:
    """A field value read as each of the kinds that there are."""
    decode_value(data).encode()
    text = text_of(data)
    kind, subtype, params = parse_content_type(text)
    assert kind
    assert subtype
    assert all(isinstance(value, str) for value in params.values())
    parse_disposition(text)
    parse_date(text)
    for identifier in parse_references(text):
        assert normalise_message_id(f"<{identifier}>") == identifier


def address_parse(data: bytes) -> None:
    """Addresses are text; a name that is taken stays itself when asked again."""
    for address in parse_addresses(data):
        address.name.encode()
        address.address.encode()
    try:
        taken, folded = validate_username(data.decode("utf-8", "replace"), NameClass.PLATFORM)
    except PostroomError:
        return
    assert validate_username(taken, NameClass.PLATFORM) == (taken, folded)
    assert re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,23}", taken)


class _NoDns:
    async def txt(self, name: str) -> list[bytes]:
        raise NameNotFoundError(name)


def dkim_verify(data: bytes) -> None:
    """Without a key nothing passes."""
    for result in _finished(verify(data, _NoDns(), now=1_750_000_000)):
        assert result.status.value != "pass"


def _finished(work: Coroutine[object, None, T]) -> T:
    try:
        while work.send(None) is None:
            pass  # it let others have a turn
    except StopIteration as end:
        found: T = end.value
        return found
    raise AssertionError("it waited for something else than the resolver")


def compose_roundtrip(data: bytes) -> None:
    """What can be written is read again: subject, text and names."""
    name, subject, text, *_ = [*data.decode("utf-8", "replace").split("\n", 2), "", "", ""]
    sender = Address(name, "ann", "agents.example")
    try:
        raw = compose(Draft(sender, NOW, "m1@agents.example", subject=subject, text=text), "b0undary").to_bytes()
    except ComposeError:
        return
    head, _, _ = raw.partition(b"\r\n\r\n")
    assert all(len(line) <= 998 for line in raw.split(b"\r\n"))
    assert head.count(b"\r") == head.count(b"\n") == head.count(b"\r\n")
    message = mime.parse(raw)
    assert not message.degraded
    assert (message.subject or "") == subject
    assert len(message.addresses("from", 10)[0]) == 1
    body = describe(b"", raw, NOW).text
    assert "".join(body.split()) == "".join(text.split()) or any(not char.isprintable() for char in text)


def scram_exchange(data: bytes) -> None:
    """Client messages are read or refused; nothing is proved; names are as SASLprep leaves them."""
    head, _, final = data.partition(b"\n")
    for binding, mechanism in ((None, MECHANISM), (b"b" * 32, MECHANISM), (b"b" * 32, PLUS)):
        exchange = Exchange(mechanism, Offer(b"salt", 4096, lambda: "nonce"), binding)
        step = exchange.respond(head)
        if isinstance(step, Refused):
            continue
        assert isinstance(step, Challenge)
        assert len(step.data) < 360  # fits a line of SMTP
        proof = exchange.respond(final)
        assert isinstance(proof, Refused | Proof)
        if isinstance(proof, Proof):
            assert saslprep(proof.username) == proof.username != ""
            assert proof.verified(Keys(b"k" * 32, b"k" * 32)) is None


def imap_command(data: bytes) -> None:
    """Commands are read whole or refused, however their bytes come; a bound holds what is kept; the stream goes on."""
    data = data[:_STREAM]
    cuts = range(1, len(data), max(1, len(data) // _CUTS))
    for limits in (None, _NARROW):
        for event, _ in cut_anywhere(data, limits, cuts=cuts):
            if isinstance(event, RawCommand):
                for offered in (DEFAULT_OPTIONS, options(frozenset()), options(frozenset({"UTF8=ACCEPT"}))):
                    try:
                        parse_command(event, offered)
                    except CommandError:
                        continue


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            *(mime_parse, header_parse, address_parse, dkim_verify, compose_roundtrip, imap_command, scram_exchange),
            *(sanitize, quote_strip, refs_extract),
            *(dsn_parse, attachment_sniff, tnef_parse, spf_record),
        )
    }
)
