"""Canonical forms (RFC 6376 §3.4), fields, wire form."""

import hashlib
import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.mail.mime import MAX_HEADER_BYTES, parse
from postroom.mailauth.canonical import (
    BodyHasher,
    Canonicalisation,
    MalformedHeaderError,
    canonical_field,
    find_body,
    parse_fields,
    select_fields,
    to_wire,
)
from tests.mailauth.dkim_tools import MAIL, reference_body, reference_header

SIMPLE, RELAXED = Canonicalisation.SIMPLE, Canonicalisation.RELAXED
BODIES = st.lists(
    st.sampled_from([b"\r\n", b"\n", b"\r", b" ", b"\t", b"  ", b"a", b"bc", b".", b"\x00", b"\xe4", b"\r\n\r\n"]),
    max_size=30,
).map(b"".join)


def digest(body: bytes, canonicalisation: Canonicalisation, limit: int | None = None) -> bytes:
    hasher = BodyHasher(canonicalisation, (limit,))
    hasher.update(body)
    return hasher.digest(limit)


@pytest.mark.covers("RFC 6376 §3.4.5", "mail-server:C8")
def test_the_examples_of_the_rfc() -> None:
    fields = parse_fields(b"A: X\r\nB : Y\t\r\n\tZ  \r\n\r\n")
    assert b"".join(canonical_field(field, RELAXED) for field in fields) == b"a:X\r\nb:Y Z\r\n"
    assert b"".join(canonical_field(field, SIMPLE) for field in fields) == b"A: X\r\nB : Y\t\r\n\tZ  \r\n"
    body = b" C \r\nD \t E\r\n\r\n\r\n"
    assert digest(body, RELAXED) == hashlib.sha256(b" C\r\nD E\r\n").digest()
    assert digest(body, SIMPLE) == hashlib.sha256(b" C \r\nD \t E\r\n").digest()


@pytest.mark.covers("RFC 6376 §3.4.3", "RFC 6376 §3.4.4")
@pytest.mark.parametrize("body", [b"", b"\r\n", b"\n\n", b"\r\n\r\n\r\n"])
def test_empty_bodies(body: bytes) -> None:
    assert digest(body, SIMPLE) == hashlib.sha256(b"\r\n").digest()
    assert digest(body, RELAXED) == hashlib.sha256(b"").digest()


@pytest.mark.covers("RFC 6376 §3.4.3", "RFC 6376 §3.4.4", "mail-server:B4")
@given(BODIES, st.lists(st.integers(0, 60)), st.sampled_from([SIMPLE, RELAXED]), st.integers(0, 40))
@example(b"a\r\r\n\r\n", [], SIMPLE, 3)
@example(b"\r\r\n", [2], RELAXED, 1)
@example(b"a \r\n", [2, 3], RELAXED, 1)
def test_a_body_in_pieces_is_the_body(body: bytes, cuts: list[int], how: Canonicalisation, limit: int) -> None:
    hasher = BodyHasher(how, (None, limit))
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for start, end in itertools.pairwise(edges):
        hasher.update(body[start:end])
    wanted = reference_body(body, how is RELAXED)
    assert hasher.digest() == hashlib.sha256(wanted).digest()
    assert hasher.digest(limit) == hashlib.sha256(wanted[:limit]).digest()
    assert hasher.length == len(wanted)


@pytest.mark.covers("RFC 6376 §3.4.4")
@pytest.mark.parametrize("filler", [b"\r\n", b" ", b"\r", b" \r\n", b"\n", b"\t \r"])
def test_large_bodies_of_what_is_held_back(filler: bytes) -> None:
    body = b"a" + filler * 150_001 + b"b" + filler * 150_001
    for how in Canonicalisation:
        assert digest(body, how) == hashlib.sha256(reference_body(body, how is RELAXED)).digest()


@pytest.mark.covers("RFC 6376 §3.4.1", "RFC 6376 §3.4.2", "RFC 6376 §5.4.2")
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"To", b"tO", b"X-a", b"From"]),
            st.sampled_from([b"", b" ", b"\t"]),
            st.lists(st.sampled_from([b"a", b" ", b"\t", b"\r\n ", b"\n\t", b":", b"\xc3\xa4", b"b"]), max_size=8).map(
                b"".join
            ),
            st.sampled_from([b"\r\n", b"\n"]),
        ),
        max_size=6,
    ),
    st.lists(st.sampled_from(["to", "x-a", "from", "cc"]), max_size=8),
    st.booleans(),
)
def test_chosen_fields(parts: list[tuple[bytes, ...]], names: list[str], relaxed: bool) -> None:
    header = b"".join(b"%b%b:%b%b" % (name, space, value, end) for name, space, value, end in parts)
    chosen = select_fields(parse_fields(header), names)
    how = RELAXED if relaxed else SIMPLE
    assert [canonical_field(field, how)[:-2] for field in chosen] == reference_header(header, names, relaxed)


def test_a_header_that_ends_without_a_line_end() -> None:
    (field,) = parse_fields(b"A:  b")
    assert canonical_field(field, SIMPLE) == b"A:  b\r\n"
    assert canonical_field(field, RELAXED) == b"a:b\r\n"


@pytest.mark.covers("RFC 6376 §3.8")
@pytest.mark.parametrize(
    "header",
    [
        b"From: a\r\nno field\r\nTo: b\r\n\r\n",
        b" folded before any\r\nFrom: a\r\n",
        b"From: a\r\n\r\nTo: b\r\n",
        b"From: a\r\n: nameless\r\n",
        b"From: a\r\r\n\r\r\n",
        b"From a@example.com Mon\r\nFrom: a\r\n",
        b"A:" + b"a" * MAX_HEADER_BYTES,
        b"A:\n" * 10_001,
    ],
)
def test_malformed_headers(header: bytes) -> None:
    with pytest.raises(MalformedHeaderError):
        parse_fields(header)


def test_a_mailbox_line_may_be_allowed() -> None:
    assert [f.name for f in parse_fields(b"From a@example.com Mon\r\nFrom: a\r\n\r\n", mbox=True)] == ["from"]
    # An obsolete form of the field (RFC 5322 §4.5.2).
    assert [f.name for f in parse_fields(b"From : b\r\nFrom: a\r\n\r\n", mbox=True)] == ["from", "from"]


@given(
    st.lists(
        st.sampled_from([b"A: b", b"\r\n", b"\n", b" x", b"\r\n\r\n", b"\n\n", b"\n\r\n", b"From: a"]), max_size=12
    ).map(b"".join)
)
def test_the_body_begins_where_mime_has_it(raw: bytes) -> None:
    """Else a signature could vouch for another header than the one that is shown."""
    at = find_body(raw)
    try:
        parse_fields(raw[:at])
    except MalformedHeaderError:
        return
    assert parse(raw).root.body_start == at


@pytest.mark.covers("RFC 6376 §5.3")
@given(BODIES)
def test_wire_form_has_line_ends_of_two_only(raw: bytes) -> None:
    wire = to_wire(raw)
    assert wire.count(b"\r\n") == wire.count(b"\r") == wire.count(b"\n")
    assert to_wire(wire) is wire
    assert wire.replace(b"\r\n", b"") == raw.translate(None, b"\r\n")


@pytest.mark.parametrize(
    ("raw", "at"),
    [
        (b"a: b\n\n\r\nc", 6),
        (b"a: b\r\n\r\n\n", 8),
        (b"a: b\r\n\nc", 7),
        (b"\r\na", 2),
        (b"\na", 1),
        (b"a: b", 4),
        (b"", 0),
    ],
)
def test_the_first_empty_line_ends_the_header(raw: bytes, at: int) -> None:
    assert find_body(raw) == at


def test_wire_form_of_each_line_end() -> None:
    assert to_wire(b"a\nb\rc\r\nd\r\re\n\r") == b"a\r\nb\r\nc\r\nd\r\n\r\ne\r\n\r\n"
    assert find_body(to_wire(MAIL)) == MAIL.index(b"\r\n\r\n") + 4
