"""SEARCH (mail-server D7; RFC 3501 §6.4.4, RFC 4731, RFC 5032): the command. Which messages it finds: `finder`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from postroom.imap import BadCommand, Status, render, search
from postroom.imap import commands as c
from postroom.imap.search import ReturnOption
from postroom.imap.sequence import SequenceSet, runs
from postroom.servers.imap.answers import Done
from postroom.servers.imap.bounds import last_of
from postroom.servers.imap.contexts import SetContext
from postroom.servers.imap.finder import Finder
from postroom.servers.imap.results import Results, Returns, in_portions, write_numbers, write_results
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Session


async def run(session: Session, command: c.Search) -> Done:
    """SEARCH, UID SEARCH; with RETURN the answer is ESEARCH."""
    selected = session.folder()
    returns = command.returns
    if returns is None and session.is_rev2:
        returns = (ReturnOption.ALL,)  # RFC 9051 §6.4.4: every answer is ESEARCH
    updates = begin_updates(session, returns)
    matches = await find(session, command.key, limited=True)
    results = matches.results()
    if returns is None:
        await write_numbers(session, b"SEARCH", results, uid=command.uid)
        return Done("SEARCH completed", matches.code)
    if updates and may_update(session, len(results.uids), partly=matches.code is not None):
        selected.contexts.add(SetContext(session.tag, matches.again, results.uids, uid=command.uid))
    await write_results(session, results, returns, uid=command.uid)
    return Done("SEARCH completed", matches.code)


@dataclass(frozen=True, slots=True)
class Matches:
    """What a search found, in mailbox order, and the means to ask again."""

    finder: Finder
    key: search.SearchKey
    uids: Sequence[int]
    by_modseq: bool
    code: str | None = None
    """Says that not all messages that were meant were looked at."""

    def results(self, uids: Sequence[int] | None = None) -> Results:
        """Them, or the same `uids` in another order."""
        return Results(self.uids if uids is None else uids, self.finder.scores, self.by_modseq)

    async def again(self, uids: frozenset[int]) -> list[int]:
        """Which of `uids` it finds now."""
        self.finder.forget(uids)
        return sorted(await self.finder.find(self.key, uids))


async def find(session: Session, key: search.SearchKey, *, limited: bool = False) -> Matches:
    """The messages that a command's keys are met by; with `limited` only so many are looked at (RFC 9738)."""
    selected = session.folder()
    by_modseq = _asks_modseq(key)
    if by_modseq:
        session.enable("CONDSTORE")
    await session.refresh()
    # The list may be the view's own, to which others add while we wait.
    universe: Sequence[int] = selected.told_uids()[:]
    key = _pinned(key, selected)
    code = None
    if limited and len(universe) > session.shared.config.message_limit:
        universe, code = last_of(session, _named(key, universe))
    finder = Finder(session, selected)
    found = await finder.find(key, frozenset(universe))
    if len(found) == len(universe):
        return Matches(finder, key, universe, by_modseq, code)
    uids = await in_portions(universe, lambda part: [uid for uid in part if uid in found])
    return Matches(finder, key, uids, by_modseq, code)


def _named(key: search.SearchKey, universe: Sequence[int]) -> Sequence[int]:
    """Those of `universe` that a search by `key` looks at: those it names, where it names some, or all."""
    chosen = universe
    keys = key.keys if isinstance(key, search.And) else (key,)
    for parts in [one.uids.resolve_uids(universe) for one in keys if isinstance(one, search.Uids)]:
        named = {uid for part in parts for uid in universe[part.start : part.stop]}
        chosen = [uid for uid in chosen if uid in named]
    return chosen


def begin_updates(session: Session, returns: Returns | None) -> bool:
    """Whether the command's results are to be kept up to date. Raises `BadCommand` for a tag that others have."""
    if returns is None or ReturnOption.UPDATE not in returns:
        return False
    contexts = session.folder().contexts
    if contexts.has(session.tag):
        raise BadCommand("Tag reuse")
    contexts.begin()
    return True


def may_update(session: Session, results: int, *, partly: bool = False) -> bool:
    """Whether they can be, which those of a part of the messages cannot. If not, the client is told, and the command
    goes on (RFC 5267 §4.3.1).
    """
    if not partly and session.folder().contexts.room_for(results):
        return True
    code = f"NOUPDATE {render.quoted(session.tag).decode('latin-1')}"
    session.write(render.untagged(Status.NO, "Too many contexts", code))
    return False


def _pinned(key: search.SearchKey, selected: Selected) -> search.SearchKey:
    """The key with UIDs for message numbers and ``$``, which mean what they mean now, also when asked again."""
    match key:
        case search.Numbers() if key.numbers.saved:
            return search.Uids(_uids_at(selected, selected.resolve(key.numbers, uid=False)))
        case search.Numbers():
            return search.Uids(_uids_at(selected, key.numbers.resolve_sequence(selected.count, strict=False)))
        case search.Uids() if key.uids.saved:
            return search.Uids(_uids_at(selected, selected.resolve(key.uids, uid=True)))
        case search.And():
            return search.And(tuple(_pinned(one, selected) for one in key.keys))
        case search.Or():
            return search.Or(_pinned(key.left, selected), _pinned(key.right, selected))
        case search.Not():
            return search.Not(_pinned(key.key, selected))
        case search.Fuzzy():
            return search.Fuzzy(_pinned(key.key, selected))
    return key


def _uids_at(selected: Selected, parts: Iterable[range]) -> SequenceSet:
    ranges: list[tuple[int, int]] = []
    for part in parts:
        uids = selected.uids[part.start : part.stop]
        if uids and uids[-1] - uids[0] == len(uids) - 1:
            ranges.append((uids[0], uids[-1]))
        else:
            ranges += runs(uids)
    return SequenceSet(tuple(ranges))


def _asks_modseq(key: search.SearchKey) -> bool:
    """Whether MODSEQ stands anywhere in the tree (RFC 7162 §3.1.5)."""
    match key:
        case search.ModSeq():
            return True
        case search.And():
            return any(map(_asks_modseq, key.keys))
        case search.Or():
            return _asks_modseq(key.left) or _asks_modseq(key.right)
        case search.Not() | search.Fuzzy():
            return _asks_modseq(key.key)
    return False
