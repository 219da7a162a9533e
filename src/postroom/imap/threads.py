"""THREAD: which messages answer which (RFC 5256 §3), from what they say of themselves. Pure, in linear time.

Both algorithms are generators that take turns (`postroom.imap.turns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroom.imap.turns import PORTION, Turns, in_order

_STEPS: Final = 100
"""Ancestors looked at per message to rule out loops. Only made-up headers take more: their links are not made."""


class Algorithm(StrEnum):
    """How THREAD finds threads; the value is the word on the wire."""

    ORDEREDSUBJECT = "ORDEREDSUBJECT"
    REFERENCES = "REFERENCES"


@dataclass(frozen=True, slots=True)
class Letter:
    """A message as the algorithms see it.

    `number` is what names it, ascending in mailbox order; `sent` a moment, in any unit; `subject` the base subject,
    folded; `references` its ancestors' ids, the oldest first (those of In-Reply-To where there is no References: one).
    """

    number: int
    sent: float
    subject: str
    is_reply: bool = False
    id: str = ""
    references: Sequence[str] = ()


class Thread:
    """A message with its answers; without a number it stands for a message that is not there."""

    __slots__ = ("children", "letter")

    def __init__(self, letter: Letter | None, children: list[Thread] | None = None) -> None:
        self.letter = letter
        self.children: list[Thread] = [] if children is None else children

    @property
    def first(self) -> Letter:
        """Its message, or that of its first child: dummies are only at the top, with children that are none."""
        found = self.letter if self.letter is not None else self.children[0].letter
        assert found is not None
        return found


def ordered_subject(letters: Sequence[Letter]) -> Turns[list[Thread]]:
    """ORDEREDSUBJECT: messages of one base subject, by date; all but the first are its children."""
    threads: dict[str, Thread] = {}
    for place, letter in enumerate((yield from in_order(letters, _by_date))):
        thread = threads.get(letter.subject)
        if thread is None:
            threads[letter.subject] = Thread(letter)
        else:
            thread.children.append(Thread(letter))
        if not place % PORTION:
            yield
    return list(threads.values())


def references(letters: Iterable[Letter]) -> Turns[list[Thread]]:
    """REFERENCES, in the six steps of the RFC."""
    links = _Links()
    for place, letter in enumerate(letters):
        links.add(letter)
        if not place % (PORTION // 5):
            yield
    nodes = links.nodes
    del links
    threads = yield from _pruned(nodes)
    # As large as the threads themselves, and of no use any more.
    nodes.clear()
    threads = yield from _sorted_threads(threads)
    threads = yield from _gathered(threads)
    yield from _sort_below(threads)
    return (yield from _sorted_threads(threads))


def _by_date(letter: Letter) -> tuple[float, int]:
    return letter.sent, letter.number


def _thread_date(thread: Thread) -> tuple[float, int]:
    return _by_date(thread.first)


# -- step 1


class _Node:
    __slots__ = ("children", "letter", "parent")

    def __init__(self, letter: Letter | None) -> None:
        self.letter = letter
        self.parent: _Node | None = None
        # Ordered, and quick to take one out of. Most have none, and share this one.
        self.children: dict[_Node, None] = _CHILDLESS


_CHILDLESS: Final[dict[_Node, None]] = {}


class _Links:
    """Links between messages, from the oldest message named in References to the one that names them."""

    def __init__(self) -> None:
        self.nodes: list[_Node] = []
        self._by_id: dict[str, _Node] = {}
        self._steps = _STEPS * _STEPS

    def add(self, letter: Letter) -> None:
        self._steps += _STEPS
        node = self._node_of(letter)
        last: _Node | None = None
        for one in letter.references:
            named = self._by_id.get(one)
            if named is None:
                named = self._by_id[one] = self._new(None)
            if last is not None and named.parent is None:
                self._link(last, named)
            last = named
        if node.parent is not last:
            # The message knows best; what others said of its parent was cut short (step 1.B).
            if node.parent is not None:
                del node.parent.children[node]
                node.parent = None
            if last is not None:
                self._link(last, node)

    def _node_of(self, letter: Letter) -> _Node:
        node = self._by_id.get(letter.id)
        if node is None or node.letter is not None:
            taken = node is not None
            node = self._new(letter)
            # Of several messages with one id only the first has it.
            if not taken:
                self._by_id[letter.id] = node
        node.letter = letter
        return node

    def _new(self, letter: Letter | None) -> _Node:
        node = _Node(letter)
        self.nodes.append(node)
        return node

    def _link(self, parent: _Node, child: _Node) -> None:
        """Make `child`, which has no parent, one of `parent`'s, unless that would make a loop."""
        if parent is child:
            return
        if child.children:
            above = parent.parent
            while above is not None:
                self._steps -= 1
                if above is child or self._steps < 0:
                    return
                above = above.parent
        child.parent = parent
        if parent.children is _CHILDLESS:
            parent.children = {}
        parent.children[child] = None


# -- steps 2 and 3


def _pruned(nodes: Sequence[_Node]) -> Turns[list[Thread]]:
    """The trees without what is not there: children take its place, but at the top only where it is one."""
    threads: list[Thread] = []
    done = 0
    for node in nodes:
        if node.parent is not None:
            continue
        top = Thread(node.letter)
        below = [(child, top) for child in node.children]
        while below:
            one, above = below.pop()
            if one.letter is not None:
                thread = Thread(one.letter)
                above.children.append(thread)
                above = thread
            below += [(child, above) for child in one.children]
            done += 1
            if not done % PORTION:
                yield
        if top.letter is not None or len(top.children) > 1:
            threads.append(top)
        else:
            threads += top.children
        done += 1
        if not done % PORTION:
            yield
    return threads


# -- steps 4 and 6


def _sorted_threads(threads: Sequence[Thread]) -> Turns[list[Thread]]:
    for thread in threads:
        if thread.letter is None:
            thread.children = yield from in_order(thread.children, _thread_date)
    return (yield from in_order(threads, _thread_date))


def _sort_below(threads: Sequence[Thread]) -> Turns[None]:
    """Siblings by date; every message below the top is one that is there, so that the order of doing it is free."""
    below = list(threads)
    done = 0
    while below:
        one = below.pop()
        if len(one.children) > 1:
            one.children = yield from in_order(one.children, _thread_date)
        below += one.children
        done += 1
        if not done % PORTION:
            yield


# -- step 5


def _gathered(threads: Sequence[Thread]) -> Turns[list[Thread]]:
    """Threads of one base subject become one (steps 5.B and 5.C)."""
    table: dict[str, Thread] = {}
    for place, thread in enumerate(threads):
        subject = thread.first.subject
        if not subject:
            continue
        known = table.get(subject)
        if known is None or (
            known.letter is not None and (thread.letter is None or (_is_reply(known) and not _is_reply(thread)))
        ):
            table[subject] = thread
        if not place % PORTION:
            yield
    merged: set[Thread] = set()
    found: list[Thread] = []
    for place, thread in enumerate(threads):
        known = table.get(thread.first.subject)
        if known is not None and known is not thread and thread not in merged:
            merged.add(thread)
            if known.letter is None and thread.letter is None:
                known.children += thread.children
            elif known.letter is None or (_is_reply(thread) and not _is_reply(known)):
                known.children.append(thread)
            else:
                merged.add(known)
                dummy = table[thread.first.subject] = Thread(None, [known, thread])
                found.append(dummy)
        if not place % PORTION:
            yield
    return [thread for thread in (*threads, *found) if thread not in merged]


def _is_reply(thread: Thread) -> bool:
    return thread.letter is not None and thread.letter.is_reply


# -- the answer


def thread_lists(threads: Iterable[Thread], shown: Callable[[int], int] | None = None) -> Iterator[bytes]:
    """Each thread as the response has it, ``(3 6 (4 23)(44 7 96))`` (RFC 5256 §4).

    `shown` gives another name for a number.
    """
    for thread in threads:
        parts: list[bytes] = []
        left: list[Thread | bytes] = [b")", thread, b"("]
        while left:
            one = left.pop()
            if isinstance(one, bytes):
                parts.append(one)
                continue
            if one.letter is not None:
                parts.append(b"%d" % (one.letter.number if shown is None else shown(one.letter.number)))
            if len(one.children) == 1 and one.letter is not None:
                left += (one.children[0], b" ")
            elif one.children:
                for child in reversed(one.children):
                    left += (b")", child, b"(")
                if one.letter is not None:
                    left.append(b" ")
        yield b"".join(parts)
