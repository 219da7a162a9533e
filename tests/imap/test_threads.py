"""THREAD (RFC 5256 §3)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.imap.threads import Letter, Thread, ordered_subject, references, thread_lists
from postroom.imap.turns import finish, in_order

_IDS = st.sampled_from([f"{name}@x" for name in "abcdefgh"])


@st.composite
def _letters(draw: st.DrawFn) -> list[Letter]:
    return [
        Letter(
            number,
            draw(st.integers(0, 5)),
            draw(st.sampled_from(["", "one", "two", "three"])),
            draw(st.booleans()),
            draw(_IDS),
            draw(st.lists(_IDS, max_size=4)),
        )
        for number in range(1, draw(st.integers(0, 10)) + 1)
    ]


def _threads(letters: Sequence[Letter]) -> list[Thread]:
    return finish(references(letters))


def _shown(threads: Iterable[Thread]) -> bytes:
    return b"".join(thread_lists(threads))


def _pairs(threads: Iterable[Thread]) -> list[tuple[int | None, int]]:
    """Parent and child, for every message."""
    found: list[tuple[int | None, int]] = []
    left: list[tuple[int | None, Thread]] = [(None, thread) for thread in threads]
    while left:
        above, thread = left.pop()
        if thread.letter is not None:
            found.append((above, thread.letter.number))
            above = thread.letter.number
        left += [(above, child) for child in thread.children]
    return found


def _chain(*links: tuple[str, Sequence[str]], subject: str = "") -> list[Letter]:
    return [Letter(n, n, subject, False, id_, refs) for n, (id_, refs) in enumerate(links, 1)]


@pytest.mark.covers("RFC 5256 §3")
@pytest.mark.parametrize(
    ("links", "shown"),
    [
        ([("a", ""), ("b", "a"), ("c", "ab")], b"(1 2 3)"),
        ([("a", ""), ("b", "a"), ("c", "a")], b"(1 (2)(3))"),
        ([("c", "ab"), ("b", "a"), ("a", "")], b"(3 2 1)"),
        ([("b", "a"), ("c", "a")], b"((1)(2))"),  # their parent is not there
        ([("b", "a")], b"(1)"),
        ([("d", "abc"), ("b", "a")], b"(2 1)"),  # c is left out
        ([("a", ""), ("a", ""), ("b", "a")], b"(1 3)(2)"),  # the id is the first one's
        ([("a", "b"), ("b", "a")], b"(2 1)"),  # no loop
        ([("a", "a")], b"(1)"),
        ([("c", "b"), ("b", "a"), ("e", "x"), ("x", "")], b"(2 1)(4 3)"),
    ],
)
def test_links(links: list[tuple[str, str]], shown: bytes) -> None:
    assert _shown(_threads(_chain(*links))) == shown


@pytest.mark.covers("RFC 5256 §3")
@pytest.mark.parametrize(
    ("letters", "shown"),
    [
        ([(1, "s", False), (2, "s", True)], b"(1 2)"),  # a reply below what it answers
        ([(1, "s", True), (2, "s", False)], b"(2 1)"),  # also when it seems to be older
        ([(1, "s", False), (2, "s", False)], b"((1)(2))"),  # neither answers the other
        ([(1, "s", True), (2, "s", True), (3, "s", True)], b"((1)(2)(3))"),
        ([(1, "", False), (2, "", True)], b"(1)(2)"),  # no subject tells nothing
        ([(2, "s", False), (1, "t", False)], b"(2)(1)"),
    ],
)
def test_subjects(letters: list[tuple[int, str, bool]], shown: bytes) -> None:
    found = [Letter(n, sent, subject, reply, f"{n}@x") for n, (sent, subject, reply) in enumerate(letters, 1)]
    assert _shown(_threads(found)) == shown


@pytest.mark.covers("RFC 5256 §3")
def test_ordered_subject() -> None:
    letters = [
        Letter(1, 5, "one"),
        Letter(2, 3, "two"),
        Letter(3, 4, "one"),
        Letter(4, 4, "one"),
        Letter(5, 9, "two"),
        Letter(6, 1, ""),
    ]
    assert _shown(finish(ordered_subject(letters))) == b"(6)(2 5)(3 (4)(1))"


@pytest.mark.covers("RFC 5256 §4")
def test_the_form_of_the_answer() -> None:
    def thread(number: int | None, *children: Thread) -> Thread:
        return Thread(None if number is None else Letter(number, 0, ""), list(children))

    example = [
        thread(2),
        thread(3, thread(6, thread(4, thread(23)), thread(44, thread(7, thread(96))))),
        thread(None, thread(5), thread(8)),
    ]
    assert _shown(example) == b"(2)(3 6 (4 23)(44 7 96))((5)(8))"


@pytest.mark.covers("RFC 5256 §3")
@given(_letters())
def test_every_message_is_there_once_and_below_what_it_answers(letters: list[Letter]) -> None:
    threads = _threads(letters)
    pairs = _pairs(threads)
    assert sorted(number for _, number in pairs) == [letter.number for letter in letters]
    # No dummy but at the top, and none with fewer than two children: the grammar has no form for others.
    left = [(thread, True) for thread in threads]
    while left:
        thread, top = left.pop()
        assert thread.letter is not None or (top and len(thread.children) > 1)
        dates = [(child.first.sent, child.first.number) for child in thread.children]
        assert dates == sorted(dates)
        left += [(child, False) for child in thread.children]
    tops = [(thread.first.sent, thread.first.number) for thread in threads]
    assert tops == sorted(tops)


@pytest.mark.covers("RFC 5256 §3")
@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=10), st.randoms())
def test_the_last_reference_is_the_parent(named: list[list[int]], order: random.Random) -> None:
    # Only older messages are named, the oldest first, so that nothing makes a loop.
    ancestors = [sorted({one for one in ones if one < number}) for number, ones in enumerate(named)]
    arrived = list(range(len(named)))
    order.shuffle(arrived)
    letters = [
        Letter(place, 0, "", False, f"{n}@x", [f"{one}@x" for one in ancestors[n]]) for place, n in enumerate(arrived)
    ]
    above = {number: parent for parent, number in _pairs(_threads(letters))}
    for place, n in enumerate(arrived):
        # Of one that names none another may know better.
        assert not ancestors[n] or above[place] == arrived.index(ancestors[n][-1])


@given(_letters())
def test_threads_of_threads_are_the_same(letters: list[Letter]) -> None:
    once = _threads(letters)
    above = {number: parent for parent, number in _pairs(once)}
    ids = {number: () if parent is None else (f"{parent}@y",) for number, parent in above.items()}
    again = [Letter(one.number, one.sent, "", False, f"{one.number}@y", ids[one.number]) for one in letters]
    assert sorted(map(str, _pairs(_threads(again)))) == sorted(map(str, _pairs(once)))


@pytest.mark.parametrize("order", [1, -1])
def test_takes_linear_time_for_long_chains(order: int) -> None:
    count = 30_000
    letters = [Letter(n, n, "", False, f"{n}@x", (f"{n - order}@x",)) for n in range(1, count)]
    begin = time.perf_counter()
    (thread,) = _threads(letters)
    assert len(_pairs([thread])) == count - 1
    assert len(_shown([thread])) > count
    assert time.perf_counter() - begin < 10


def test_headers_made_to_be_slow_are_not() -> None:
    deep = [Letter(n, n, "", False, f"{n}@x", (f"{n - 1}@x",)) for n in range(1, 5000)]
    with_child = [Letter(n, n, "", False, f"{n}@x", (f"p{n}@x",)) for n in range(5000, 9000)]
    linked = [Letter(n, n, "", False, f"{n}@x", ("4999@x", f"p{n - 4000}@x")) for n in range(9000, 13_000)]
    begin = time.perf_counter()
    threads = _threads(deep + with_child + linked)
    assert len(_pairs(threads)) == 12_999
    assert time.perf_counter() - begin < 5


@given(st.lists(st.integers(0, 9), max_size=3000))
def test_sorting_in_turns_is_sorting(numbers: list[int]) -> None:
    items = list(enumerate(numbers))
    assert finish(in_order(items, lambda item: item[1])) == sorted(items, key=lambda item: item[1])
    assert finish(in_order(numbers)) == sorted(numbers)
