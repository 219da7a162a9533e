"""CBOR from outside is measured before it is taken apart: what passes is shallow, and what the library reads."""

from __future__ import annotations

from typing import Any

import pytest
from fido2 import cbor
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.accounts.cbor_bounds import MAX_DEPTH, MAX_ITEMS, is_bounded

SCALARS = st.integers(-(2**63), 2**64 - 1) | st.booleans() | st.binary(max_size=300) | st.text(max_size=30)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.integers(-9, 9) | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=30,
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if not inner:
        return 0
    return 1 + max(depth(one) for one in inner)


def items(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(1 + items(one) for one in value.values())
    return 1 + sum(items(one) for one in value) if isinstance(value, list) else 1


@pytest.mark.covers("NFR-SEC-1", "RFC 8949 §3")
@given(VALUES)
def test_what_is_written_passes_by_its_depth_and_number(value: Any) -> None:
    fits = depth(value) <= MAX_DEPTH and items(value) <= MAX_ITEMS
    assert is_bounded(cbor.encode(value)) is fits


@pytest.mark.parametrize("nest", [lambda one: [one], lambda one: {1: one}, lambda one: [0, one, 0]])
def test_the_bounds(nest: Any) -> None:
    value: Any = 7
    for _ in range(MAX_DEPTH):
        value = nest(value)
    assert is_bounded(cbor.encode(value))
    assert not is_bounded(cbor.encode(nest(value)))
    assert is_bounded(cbor.encode([0] * (MAX_ITEMS - 1)))
    assert not is_bounded(cbor.encode([0] * MAX_ITEMS))


@pytest.mark.covers("NFR-SEC-1")
@settings(max_examples=500)
@given(
    st.binary(max_size=40)
    | VALUES.map(cbor.encode).flatmap(lambda one: st.integers(0, len(one)).map(lambda n: one[:n]))
)
def test_what_passes_the_library_reads_item_by_item(data: bytes) -> None:
    """It sees no other items than were measured, and none is deeper; text and keys may still not be any."""
    if not is_bounded(data):
        return
    rest = data
    while rest:
        try:
            value, rest = cbor.decode_from(rest)
        except (UnicodeDecodeError, TypeError):
            return
        assert depth(value) <= MAX_DEPTH


@pytest.mark.parametrize(
    "data",
    [
        *(b"\xa1" * 4096, b"\x81" * 4096, b"\xa1\x01" * 2000, b"\x9f\xff", b"\xbf\xff", b"\x5f\xff", b"\xc0\x00"),
        *(b"\xf9\x00\x00", b"\xfb" + bytes(8), b"\xf8\x20", b"\x1c", b"\x9b" + b"\xff" * 8, b"\x5a\xff\xff\xff\xff"),
        *(b"\x19\x01", b"\x43ab", b"\x82\x00", b"\xa1\x00", b"\x00" * 257),
    ],
)
def test_out_of_bounds(data: bytes) -> None:
    assert not is_bounded(data)
