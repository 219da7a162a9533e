"""Windows of results (RFC 9394 §3.1, §3.3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.imap.partial import Partial, window
from postroom.imap.sequence import indices

NUMBERS = st.integers(1, 30)


@pytest.mark.covers("RFC 9394 §3.1", "RFC 5267 §4.4")
@given(NUMBERS, NUMBERS, st.integers(0, 20), st.booleans())
def test_places_are_those_counted_from_one_or_from_the_end(first: int, last: int, count: int, backwards: bool) -> None:
    sign = -1 if backwards else 1
    results = list(range(count))
    counted = list(reversed(results)) if backwards else results
    expected = {one for place, one in enumerate(counted, 1) if min(first, last) <= place <= max(first, last)}
    assert list(Partial(sign * first, sign * last).places(count)) == sorted(expected)


@pytest.mark.covers("RFC 9394 §3.3")
@given(st.sets(st.integers(0, 40)), st.integers(0, 40), st.integers(0, 40))
def test_a_window_of_ranges_is_one_of_what_they_hold(places: set[int], start: int, stop: int) -> None:
    parts = tuple(range(place, place + 1) for place in sorted(places))
    assert list(indices(window(parts, range(start, stop)))) == sorted(places)[start:stop]
    (whole,) = window((range(50),), range(start, stop + 1)) or (range(0),)
    assert list(whole) == list(range(50))[start : stop + 1]
