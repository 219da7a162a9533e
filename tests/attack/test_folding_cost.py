"""Folding outside text takes time in proportion to it, marks in a row included (UAX #15 §13)."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mailbox.folding import fold

LONGEST = 200
"""Marks in a row after folding: a bounded number of characters, each of which may decompose to a few."""
MARKS = [
    chr(code)
    for code in (*range(0x300, 0x3400), *range(0xF900, 0x10000), *range(0x10000, 0x1F000))
    if all(map(unicodedata.combining, unicodedata.normalize("NFKD", chr(code))))
]


def longest_run(text: str) -> int:
    """The most marks in a row of the decomposed text: what canonical ordering has to sort at once."""
    longest = run = 0
    for char in unicodedata.normalize("NFKD", text):
        run = run + 1 if unicodedata.combining(char) else 0
        longest = max(longest, run)
    return longest


@pytest.mark.parametrize("mark", MARKS, ids=[f"{ord(mark):04x}" for mark in MARKS])
def test_every_mark_is_parted_in_long_runs(mark: str) -> None:
    assert longest_run(fold("a" + (mark + "\u0323") * 300)) <= LONGEST


def test_a_message_full_of_marks_is_folded() -> None:
    """Unbounded, the ordering of these alone would take minutes."""
    for pair in ("\u0301\u0323", "\uff9e\u0323", "\u0f73\u0301", "\u0344\u0323"):
        assert len(fold("a" + pair * 300_000)) >= 600_000


@given(st.text())
def test_other_text_is_folded_as_before(text: str) -> None:
    assert fold(text) == unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


@given(st.lists(st.sampled_from(MARKS), max_size=30).map("".join))
def test_as_many_marks_as_a_script_needs_are_left_alone(marks: str) -> None:
    text = "e" + marks
    assert fold(text) == unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
