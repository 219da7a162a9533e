"""SORT (RFC 5256 §3, RFC 5957, RFC 5267), and CANCELUPDATE.

What messages are sorted by is in columns that ENVELOPE, INTERNALDATE and RFC822.SIZE are served from; no bytes of
messages are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from postroom.imap import commands as c
from postroom.imap.sort import SortCriterion, SortKey
from postroom.imap.turns import in_order
from postroom.servers.imap.answers import Done
from postroom.servers.imap.contexts import OrderedContext, SortedUid
from postroom.servers.imap.finder import Finder
from postroom.servers.imap.results import FULL_SCORE, write_numbers, write_results
from postroom.servers.imap.search import Matches, begin_updates, find, may_update
from postroom.servers.imap.session import Session
from postroom.servers.imap.turns import in_turns
from postroom.servers.imap.values import NUMBERS, Kind, Value


async def run(session: Session, command: c.Sort) -> Done:
    """SORT, UID SORT; with RETURN the answer is ESEARCH."""
    selected = session.folder()
    updates = begin_updates(session, command.returns)
    matches = await find(session, command.key)
    found = await in_turns(in_order(await _keys(matches.finder, command.criteria, matches.uids)))
    uids: list[int] = [key[-1] for key in found]
    if command.returns is None:
        await write_numbers(session, b"SORT", matches.results(uids), uid=command.uid)
        return Done("SORT completed")
    if updates and may_update(session, len(uids)):
        again = partial(_again, matches, command.criteria)
        selected.contexts.add(OrderedContext(session.tag, again, found, uid=command.uid))
    await write_results(session, matches.results(uids), command.returns, uid=command.uid)
    return Done("SORT completed")


async def cancel_update(session: Session, command: c.CancelUpdate) -> Done:
    """No more updates of these searches; of one that is not kept there were none anyway."""
    session.folder().contexts.cancel(command.tags)
    return Done("CANCELUPDATE completed")


async def _again(matches: Matches, criteria: Sequence[SortCriterion], uids: frozenset[int]) -> list[SortedUid]:
    return await _keys(matches.finder, criteria, await matches.again(uids))


async def _keys(finder: Finder, criteria: Sequence[SortCriterion], uids: Iterable[int]) -> list[SortedUid]:
    """What each message is sorted by: a value for each criterion, and its UID, for messages that are alike keep the
    order of the mailbox (RFC 5256 §3).
    """
    keyed = [criterion for criterion in criteria if criterion.key is not SortKey.RELEVANCY]
    kinds = [_KINDS[criterion.key] for criterion in keyed]
    makers = [_maker(criterion, kinds, finder.scores) for criterion in criteria]
    keys: list[SortedUid] = []
    async for batch in finder.values(uids, list(dict.fromkeys(kinds))):
        keys += [(*[make(uid, values) for make in makers], uid) for uid, values in batch]
    return keys


_Maker = Callable[[int, list[Value]], Any]


def _maker(criterion: SortCriterion, kinds: Sequence[Kind], scores: Mapping[int, int]) -> _Maker:
    if criterion.key is SortKey.RELEVANCY:
        # The best come first (RFC 6203 §6).
        sign = 1 if criterion.reverse else -1
        return lambda uid, _: sign * scores.get(uid, FULL_SCORE)
    kind = _KINDS[criterion.key]
    at = list(dict.fromkeys(kinds)).index(kind)
    if not criterion.reverse:
        return lambda _, values: values[at]
    if kind in NUMBERS:
        return lambda _, values: -values[at]
    return lambda _, values: _Turned(values[at])


class _Turned(str):
    """Text that sorts the other way round."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)


_KINDS: Final[Mapping[SortKey, Kind]] = MappingProxyType(
    {
        SortKey.ARRIVAL: Kind.ARRIVAL,
        SortKey.CC: Kind.CC,
        SortKey.DATE: Kind.SENT,
        SortKey.FROM: Kind.AUTHOR,
        SortKey.SIZE: Kind.SIZE,
        SortKey.SUBJECT: Kind.SUBJECT,
        SortKey.TO: Kind.TO,
        SortKey.DISPLAYFROM: Kind.SHOWN_AUTHOR,
        SortKey.DISPLAYTO: Kind.SHOWN_TO,
    }
)
