"""Sequence sets."""

from __future__ import annotations

import itertools
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.imap.errors import BadCommand, ProtocolNo
from postroom.imap.sequence import MAX_ELEMENTS, MAX_NUMBER, STAR, SequenceSet, compress, indices, paged

ENDS = st.one_of(st.integers(1, 40), st.just(STAR), st.integers(1, MAX_NUMBER))
SETS = st.lists(st.tuples(ENDS, ENDS), min_size=1, max_size=8)


def written(pairs: list[tuple[int, int]], *, collapse: bool) -> bytes:
    def end(number: int) -> str:
        return "*" if number == STAR else str(number)

    return ",".join(end(a) if a == b and collapse else f"{end(a)}:{end(b)}" for a, b in pairs).encode()


def members(pairs: list[tuple[int, int]], universe: list[int], top: int) -> list[int]:
    """Which of `universe` the set names, straight from the words of RFC 9051 §9."""
    found: set[int] = set()
    for a, b in pairs:
        low, high = sorted(top if end == STAR else end for end in (a, b))
        found.update(n for n in universe if low <= n <= high)
    return sorted(found)


@pytest.mark.covers("mail-server:D4")
@given(SETS, st.sets(st.integers(1, 60), max_size=30), st.booleans())
def test_uids_against_the_definition(pairs: list[tuple[int, int]], uids: set[int], collapse: bool) -> None:
    folder = array("I", sorted(uids))
    ranges = SequenceSet.parse(written(pairs, collapse=collapse)).resolve_uids(folder)
    expected = members(pairs, list(folder), folder[-1]) if folder else []
    assert [folder[i] for i in indices(ranges)] == expected
    assert all(len(part) for part in ranges)
    assert all(a.stop < b.start for a, b in itertools.pairwise(ranges))


@pytest.mark.covers("mail-server:D4")
@given(SETS, st.integers(0, 60))
def test_numbers_against_the_definition(pairs: list[tuple[int, int]], count: int) -> None:
    parsed = SequenceSet.parse(written(pairs, collapse=True))
    universe = list(range(1, count + 1))
    expected = members(pairs, universe, count) if count else []
    assert [i + 1 for i in indices(parsed.resolve_sequence(count, strict=False))] == expected
    beyond = any(max(a, b) > count for a, b in pairs if STAR not in (a, b))
    if beyond:
        with pytest.raises(BadCommand):
            parsed.resolve_sequence(count)
    else:
        assert [i + 1 for i in indices(parsed.resolve_sequence(count))] == expected


@given(SETS)
def test_round_trip(pairs: list[tuple[int, int]]) -> None:
    parsed = SequenceSet.parse(written(pairs, collapse=True))
    assert SequenceSet.parse(bytes(parsed)) == parsed


@given(SETS, st.integers(1, 60))
def test_contains(pairs: list[tuple[int, int]], number: int) -> None:
    parsed = SequenceSet.parse(written(pairs, collapse=True))
    assert parsed.contains(number, 60) == bool(members(pairs, [number], 60))


def expand(text: bytes) -> list[int]:
    """The numbers of a set, in its order."""
    ranges = SequenceSet.parse(text).ranges if text else ()
    return [number for low, high in ranges for number in range(low, high + 1)]


@given(st.lists(st.integers(1, MAX_NUMBER), max_size=50), st.lists(st.integers(1, 30), max_size=50))
def test_compress_keeps_order_and_loses_nothing(wide: list[int], dense: list[int]) -> None:
    assert expand(compress(wide)) == wide
    assert expand(compress(dense)) == dense
    if dense:
        assert bytes(SequenceSet.of(dense)) == compress(dense)


def test_examples() -> None:
    assert compress([1, 2, 3, 5]) == b"1:3,5"
    assert compress([9, 1, 2]) == b"9,1:2"
    assert compress([]) == b""
    assert bytes(SequenceSet.parse(b"*:4,7:3,*")) == b"4:*,3:7,*"
    assert SequenceSet.parse(b"559:*").resolve_uids([1, 5, 9]) == (range(2, 3),)


@pytest.mark.covers("decisions:D28", "mail-server:D4")
@pytest.mark.parametrize("text", [b"*", b"1:*", b"*:1", b"5:*"])
def test_star_in_an_empty_folder_is_nothing(text: bytes) -> None:
    assert SequenceSet.parse(text).resolve_uids(array("I")) == ()
    assert SequenceSet.parse(text).resolve_sequence(0) == ()


@pytest.mark.covers("mail-server:D4")
@pytest.mark.parametrize(
    "text", [b"", b"0", b"0:4", b"1,", b",1", b"1:2:3", b"1::2", b"a", b"-1", b"4294967296", b"1 ", b"01", b"**", b"$"]
)
def test_bad_sets(text: bytes) -> None:
    with pytest.raises(BadCommand):
        SequenceSet.parse(text)


def test_limits() -> None:
    full = b",".join(b"%d" % n for n in range(1, 2 * MAX_ELEMENTS + 1, 2))
    parsed = SequenceSet.parse(full)
    assert len(parsed.resolve_uids(range(1, 100_000))) == MAX_ELEMENTS
    with pytest.raises(ProtocolNo) as caught:
        SequenceSet.parse(full + b",99999")
    assert caught.value.code == "LIMIT"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12))), st.integers(1, 7))
def test_pages_are_full_whatever_the_ranges(parts: list[tuple[int, int]], size: int) -> None:
    ranges, start = [], 0
    for gap, length in parts:
        start += gap
        ranges.append(range(start, start + length))
        start += length
    found = list(paged(ranges, size))
    assert [index for page in found for index in page] == list(indices(ranges))
    assert all(len(page) == size for page in found[:-1])
    for page in found:
        assert isinstance(page, range) == (page[-1] - page[0] == len(page) - 1)
