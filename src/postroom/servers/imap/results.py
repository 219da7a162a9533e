"""What SEARCH and SORT answer with RETURN, and what they keep (RFC 4731, RFC 5182, RFC 5267, RFC 9394)."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from postroom.imap import render
from postroom.imap.partial import Partial
from postroom.imap.search import ReturnOption
from postroom.imap.sequence import compress_ranges, runs
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Session

A = TypeVar("A")
B = TypeVar("B")

Returns = Sequence[ReturnOption | Partial]

PORTION: Final = 10_000
"""Numbers that are looked at in one go, in a millisecond or two."""

FULL_SCORE: Final = 100
"""Of what is what was looked for; the greatest there is (RFC 6203 §4)."""
_SILENT: Final = {ReturnOption.SAVE, ReturnOption.CONTEXT, ReturnOption.UPDATE}


@dataclass(frozen=True, slots=True)
class Results:
    """What a search found: UIDs in the order of the answer, and how well each fits, where that is asked for."""

    uids: Sequence[int]
    scores: Mapping[int, int]
    by_modseq: bool = False


async def in_portions(items: Sequence[A], work: Callable[[Sequence[A]], Iterable[B]]) -> list[B]:
    """What `work` makes of `items`, a portion at a time, with turns for others between."""
    made: list[B] = []
    for start in range(0, len(items), PORTION):
        made += work(items[start : start + PORTION])
        await asyncio.sleep(0)
    return made


async def shown_numbers(selected: Selected, uids: Sequence[int], *, uid: bool) -> Sequence[int]:
    """UIDs, or message numbers in their place."""
    if uid:
        return uids
    number = selected.numbering()
    return await in_portions(uids, lambda part: map(number, part))


async def write_numbers(session: Session, word: bytes, results: Results, *, uid: bool) -> None:
    """The response to SEARCH or SORT that has no RETURN: one line, made in portions and written as a whole, for it may
    not be cut in two.
    """
    selected = session.folder()
    numbers = await shown_numbers(selected, results.uids, uid=uid)
    parts = await in_portions(numbers, lambda part: (render.number_list(part),))
    modseq = await _greatest_modseq(selected, results.uids) if results.by_modseq else 0
    session.write(*render.found_line(word, parts, modseq or None))


async def _greatest_modseq(selected: Selected, uids: Sequence[int]) -> int:
    return max(await in_portions(uids, lambda part: (max(map(selected.modseq, part)),)), default=0)


async def write_results(session: Session, results: Results, returns: Returns, *, uid: bool) -> None:
    """The ESEARCH response, unless all that was asked for is to save the result (RFC 5182 §2.1)."""
    selected = session.folder()
    if ReturnOption.SAVE in returns:
        selected.saved = array("I", sorted(_meant(results.uids, returns)))
        if _SILENT.issuperset(returns):
            return
    parts = await _parts(selected, returns, results, uid=uid)
    if results.by_modseq and results.uids:
        greatest = await _greatest_modseq(selected, _modseq_of(results.uids, returns))
        parts.append(("MODSEQ", b"%d" % greatest))
    session.write(render.esearch_line(session.tag, parts, uid=uid))


async def _parts(selected: Selected, returns: Returns, results: Results, *, uid: bool) -> list[tuple[str, bytes]]:
    """The data, in the order asked for; MIN, MAX and ALL are left out when nothing was found (RFC 4731 §3.1)."""
    found = results.uids
    parts: list[tuple[str, bytes]] = []
    for option in returns:
        if isinstance(option, Partial):
            # RFC 9394 §3.1: NIL where there is nothing, whatever else was found.
            window = found[slice_of(option, len(found))]
            shown = await _compressed(selected, window, uid=uid) if window else render.NIL
            parts.append(("PARTIAL", b"(%b %b)" % (bytes(option), shown)))
        elif option is ReturnOption.COUNT:
            parts.append(("COUNT", b"%d" % len(found)))
        elif not found:
            continue
        elif option is ReturnOption.MIN:
            parts.append(("MIN", await _compressed(selected, found[:1], uid=uid)))
        elif option is ReturnOption.MAX:
            parts.append(("MAX", await _compressed(selected, found[-1:], uid=uid)))
        elif option is ReturnOption.ALL:
            parts.append(("ALL", await _compressed(selected, found, uid=uid)))
        elif option is ReturnOption.RELEVANCY:
            uids = results.uids
            for other in returns:
                if isinstance(other, Partial):
                    uids = uids[slice_of(other, len(uids))]
            scores = render.number_list(results.scores.get(uid, FULL_SCORE) for uid in uids)
            parts.append(("RELEVANCY", b"(%b)" % scores))
    return parts


async def _compressed(selected: Selected, uids: Sequence[int], *, uid: bool) -> bytes:
    """As a set in the order given; what a portion ends with and the next one goes on with is one range."""
    joined: list[tuple[int, int]] = []
    for low, high in await in_portions(await shown_numbers(selected, uids, uid=uid), runs):
        if joined and joined[-1][1] + 1 == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return b",".join(await in_portions(joined, lambda part: (compress_ranges(part),)))


def slice_of(partial: Partial, count: int) -> slice:
    """The window of a list of `count`."""
    places = partial.places(count)
    return slice(places.start, max(places.start, places.stop))


def _meant(uids: Sequence[int], returns: Returns) -> set[int]:
    """What ``$`` is from now on: all that was found, or what of it the answer names (RFC 5182 §2.4, RFC 9394 §3.2)."""
    windows = [option for option in returns if isinstance(option, Partial)]
    ends = _ends(uids, returns)
    if {ReturnOption.ALL, ReturnOption.COUNT}.intersection(returns) or not (windows or ends or _has_ends(returns)):
        return set(uids)
    return {*ends, *(uid for window in windows for uid in uids[slice_of(window, len(uids))])}


def _modseq_of(uids: Sequence[int], returns: Returns) -> Sequence[int]:
    """Whose modseq the answer tells the greatest of: only of MIN and MAX where nothing else is told (RFC 4731 §3.2)."""
    wanted = set(returns) - _SILENT
    if wanted and wanted <= {ReturnOption.MIN, ReturnOption.MAX}:
        return _ends(uids, returns)
    return uids


def _has_ends(returns: Returns) -> bool:
    return ReturnOption.MIN in returns or ReturnOption.MAX in returns


def _ends(uids: Sequence[int], returns: Returns) -> list[int]:
    if not uids:
        return []
    low = [uids[0]] if ReturnOption.MIN in returns else []
    high = [uids[-1]] if ReturnOption.MAX in returns else []
    return low + high
