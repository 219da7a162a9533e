"""What SEARCH and SORT answer with RETURN, and what they keep (RFC 4731, RFC 5182, RFC 5267, RFC 9394)."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from postroom.imap import render
from postroom.imap.partial import Partial
from postroom.imap.search import ReturnOption
from postroom.imap.sequence import compress
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Session

Returns = Sequence[ReturnOption | Partial]

FULL_SCORE: Final = 100
"""Of what is what was looked for; the greatest there is (RFC 6203 §4)."""
_SILENT: Final = {ReturnOption.SAVE, ReturnOption.CONTEXT, ReturnOption.UPDATE}


@dataclass(frozen=True, slots=True)
class Results:
    """What a search found: UIDs in the order of the answer, and how well each fits, where that is asked for."""

    uids: Sequence[int]
    scores: Mapping[int, int]
    by_modseq: bool = False


def shown_numbers(selected: Selected, uids: Sequence[int], *, uid: bool) -> list[int]:
    """UIDs, or message numbers in their place."""
    if uid:
        return list(uids)
    numbers = message_numbers(selected)
    return [numbers[one] for one in uids]


def message_numbers(selected: Selected) -> dict[int, int]:
    """The number of every message, by UID."""
    return dict(zip(selected.told_uids(), range(1, selected.count + 1), strict=True))


def write_results(session: Session, results: Results, returns: Returns, *, uid: bool) -> None:
    """The ESEARCH response, unless all that was asked for is to save the result (RFC 5182 §2.1)."""
    selected = session.folder()
    if ReturnOption.SAVE in returns:
        selected.saved = array("I", sorted(_meant(results.uids, returns)))
        if _SILENT.issuperset(returns):
            return
    parts = _parts(returns, results, shown_numbers(selected, results.uids, uid=uid))
    if results.by_modseq and results.uids:
        parts.append(("MODSEQ", b"%d" % max(map(selected.modseq, _modseq_of(results.uids, returns)))))
    session.write(render.esearch_line(session.tag, parts, uid=uid))


def _parts(returns: Returns, results: Results, numbers: Sequence[int]) -> list[tuple[str, bytes]]:
    """The data, in the order asked for; MIN, MAX and ALL are left out when nothing was found (RFC 4731 §3.1)."""
    parts: list[tuple[str, bytes]] = []
    for option in returns:
        if isinstance(option, Partial):
            # RFC 9394 §3.1: NIL where there is nothing, whatever else was found.
            window = numbers[slice_of(option, len(numbers))]
            parts.append(("PARTIAL", b"(%b %b)" % (bytes(option), compress(window) if window else render.NIL)))
        elif option is ReturnOption.COUNT:
            parts.append(("COUNT", b"%d" % len(numbers)))
        elif not numbers:
            continue
        elif option is ReturnOption.MIN:
            parts.append(("MIN", b"%d" % numbers[0]))
        elif option is ReturnOption.MAX:
            parts.append(("MAX", b"%d" % numbers[-1]))
        elif option is ReturnOption.ALL:
            parts.append(("ALL", compress(numbers)))
        elif option is ReturnOption.RELEVANCY:
            uids = results.uids
            for other in returns:
                if isinstance(other, Partial):
                    uids = uids[slice_of(other, len(uids))]
            scores = render.number_list(results.scores.get(uid, FULL_SCORE) for uid in uids)
            parts.append(("RELEVANCY", b"(%b)" % scores))
    return parts


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
