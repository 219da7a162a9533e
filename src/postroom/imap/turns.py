"""Work in turns: generators that yield now and then, so that a loop may see to others, and return at last."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from heapq import merge
from itertools import chain
from typing import Any, Final, TypeVar

T = TypeVar("T")

Turns = Generator[None, None, T]
"""Each turn takes about a millisecond."""

PORTION: Final = 500
"""Items that are compared, or made into something small, in one turn."""

_RUNS: Final = 8
"""Sorted runs that are made one in one turn."""


def finish(work: Turns[T]) -> T:
    """What `work` returns, all its turns taken at once."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            value: T = done.value
            return value


def in_order(items: Sequence[T], key: Callable[[T], Any] | None = None) -> Turns[list[T]]:
    """`items` sorted, as `sorted` does it."""
    if len(items) <= PORTION:
        return sorted(items, key=key)  # type: ignore[type-var,arg-type]  # with a key, or of things that compare
    runs: list[list[T]] = []
    for start in range(0, len(items), PORTION):
        runs.append(sorted(items[start : start + PORTION], key=key))  # type: ignore[type-var,arg-type]  # as above
        yield
    # Where runs end is plain to `sorted`, which merges them in no time: so fewer are left for what takes turns.
    longer = [runs[start : start + _RUNS] for start in range(0, len(runs), _RUNS)]
    runs.clear()
    for some in longer:
        runs.append(sorted(chain.from_iterable(some), key=key))  # type: ignore[type-var,arg-type]  # as above
        some.clear()
        yield
    found: list[T] = []
    for item in merge(*runs, key=key):  # type: ignore[arg-type]  # as above
        found.append(item)
        if not len(found) % PORTION:
            yield
    return found
