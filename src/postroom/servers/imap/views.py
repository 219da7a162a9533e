"""What this process knows of a folder, once for all sessions that have it selected (decision A7; RFC 3501 §7.4.1).

A `FolderView` follows the folder: a snapshot first, then differences. UIDs are only ever appended to its array; when
messages go, a new array takes its place, so that a session which was not told yet keeps the one it knows. Beside it
runs a journal of what happened, which each session reads from where it stopped.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, islice
from typing import Final

from postroom.base.errors import PostroomError
from postroom.events.live import LiveHub, Watch
from postroom.mailbox.models import SYSTEM_FLAGS, Folder, FolderKey, MailboxRef
from postroom.mailbox.reads import FolderChanges, FolderReads, PlacementState, Snapshot, States
from postroom.mailbox.rules import Flags
from postroom.mailbox.service import Mailboxes

MAX_JOURNAL: Final = 65_536
"""Entries of a journal. A session that lags further behind compares its UIDs with the folder's."""


PORTION: Final = 2_000
"""Placements that are brought up to date in one go, in about a millisecond."""


class FolderGone(Exception):
    """The folder was removed, or is not the one it was (its UIDVALIDITY changed)."""


class FolderView:
    """A folder as this process last read it.

    `journal` entries are UIDs: positive for changed flags, negative for a message that went. `stale` is set as soon as
    somebody says that the mailbox changed.
    """

    __slots__ = (
        "_known",
        "_lock",
        "_mailboxes",
        "_rounds",
        "_watch",
        "flags",
        "folder",
        "gone",
        "journal",
        "journal_base",
        "keywords",
        "listeners",
        "modseq",
        "modseqs",
        "recent_upto",
        "ref",
        "seq",
        "stale",
        "uids",
        "users",
    )

    def __init__(self, mailboxes: Mailboxes, ref: MailboxRef, snapshot: Snapshot) -> None:
        self._mailboxes = mailboxes
        self._known: dict[Flags, Flags] = {}
        self._lock = asyncio.Lock()
        self._rounds = 0
        self._watch: Watch | None = None
        self.ref = ref
        self.folder: Folder = snapshot.folder
        self.uids: array[int] = snapshot.uids
        self.modseqs: array[int] = snapshot.modseqs
        self.flags: list[Flags] = [self._intern(flags) for flags in snapshot.flags]
        self.modseq = snapshot.modseq
        self.seq = snapshot.seq
        self.journal: array[int] = array("q")
        self.journal_base = 0
        self.keywords: tuple[str, ...] = ()
        self._note_keywords(self._known)
        self.recent_upto = snapshot.folder.recent_uid
        self.stale = False
        self.gone = False
        self.users = 0
        self.listeners: list[Callable[[], None]] = []

    # -- reading

    @property
    def id(self) -> FolderKey:
        return self.folder.id

    @property
    def journal_end(self) -> int:
        """Where a session that knows everything stands."""
        return self.journal_base + len(self.journal)

    def index(self, uid: int) -> int | None:
        """Place of a UID in `uids`, or None when it is not there (any more)."""
        place = bisect_left(self.uids, uid)
        return place if place < len(self.uids) and self.uids[place] == uid else None

    # -- following the folder

    async def ensure_fresh(self, *, force: bool = False) -> None:
        """Read what changed, if anything is known to have changed; `force` looks in any case.

        Raises `FolderGone`, and what the database raises. Callers at the same time share one reading.
        """
        if not (self.stale or force or self.gone or self._lock.locked()):
            return
        ticket = self._rounds
        async with self._lock:
            if self.gone:
                raise FolderGone
            if not self.stale and (not force or self._rounds > ticket):
                return
            self._rounds += 1
            self.stale = False
            try:
                await self._read()
            except BaseException:
                self.stale = True
                raise

    async def _read(self) -> None:
        reads: FolderReads = self._mailboxes.reads
        try:
            changes = await reads.changes_since(
                self.ref, self.id, modseq=self.modseq, uid_next=self.folder.uid_next, seq=self.seq
            )
            if changes.folder.uid_validity != self.folder.uid_validity:
                self.gone = True
                raise FolderGone
            snapshot = None if changes.complete else await reads.folder_snapshot(self.ref, self.id)
        except PostroomError as error:
            if error.code not in ("folder_not_found", "identity_not_found"):
                raise
            self.gone = True
            raise FolderGone from None
        if snapshot is not None:
            await self._replace(snapshot)
        else:
            await self._apply(changes)

    async def _apply(self, changes: FolderChanges) -> None:
        """With turns for others: each flag that is set is true by itself; what came and the next point go together.

        Who is stopped on the way begins again at the old point, and finds what was done already done.
        """
        self._remove(changes.removed)
        await self._set_all(changes.flags)
        self._add(changes.placed)
        self.folder, self.modseq, self.seq = changes.folder, changes.modseq, changes.seq
        self._trim()

    async def _replace(self, snapshot: Snapshot) -> None:
        """The log does not reach back: find the differences by comparing (A7)."""
        self._remove(sorted(set(self.uids).difference(snapshot.uids)))
        old = bisect_right(snapshot.uids, self.uids[-1]) if self.uids else 0
        states = States(snapshot.uids, snapshot.modseqs, snapshot.flags)
        await self._set_all(islice(states, old))
        self._add(States(states.uids[old:], states.modseqs[old:], states.flags[old:]))
        self.folder, self.modseq, self.seq = snapshot.folder, snapshot.modseq, snapshot.seq
        self._trim()

    def _remove(self, uids: Sequence[int]) -> None:
        gone = set(uids).intersection(self.uids)
        if not gone:
            return
        kept = [uid not in gone for uid in self.uids]
        self.uids = array("I", compress(self.uids, kept))
        self.modseqs = array("Q", compress(self.modseqs, kept))
        self.flags = list(compress(self.flags, kept))
        self.journal.extend(-uid for uid in sorted(gone))

    async def _set_all(self, states: Iterable[PlacementState]) -> None:
        for place, state in enumerate(states, 1):
            self._set(state)
            if not place % PORTION:
                await asyncio.sleep(0)

    def _set(self, state: PlacementState) -> None:
        place = self.index(state.uid)
        if place is None:
            return
        flags = self._intern(state.flags)
        self.modseqs[place] = state.modseq
        if self.flags[place] is not flags:
            self.flags[place] = flags
            self.journal.append(state.uid)

    def _add(self, states: States) -> None:
        start = bisect_right(states.uids, self.uids[-1]) if self.uids else 0
        self.uids.extend(states.uids[start:])
        self.modseqs.extend(states.modseqs[start:])
        self.flags += map(self._intern, states.flags[start:])

    def _intern(self, flags: Flags) -> Flags:
        known = self._known.get(flags)
        if known is None:
            known = self._known[flags] = flags
            if self._rounds:
                self._note_keywords((flags,))
        return known

    def _note_keywords(self, sets: Iterable[Flags]) -> None:
        words = {word for flags in sets for word in flags if word not in SYSTEM_FLAGS}
        new = sorted(words.difference(self.keywords))
        if new:
            self.keywords = (*self.keywords, *new)

    def _trim(self) -> None:
        excess = len(self.journal) - MAX_JOURNAL
        if excess > 0:
            excess += MAX_JOURNAL // 2
            del self.journal[:excess]
            self.journal_base += excess

    # -- \Recent

    async def claim_recent(self, upto: int) -> range:
        """The UIDs that nobody was told of before, now this session's; the others of this process do not ask again."""
        if self.recent_upto >= upto:
            return range(0)
        before, self.recent_upto = self.recent_upto, upto
        try:
            claimed = await self._mailboxes.mark_recent(self.ref, self.id)
        except BaseException:
            self.recent_upto = before
            raise
        self.recent_upto = max(upto, claimed.stop - 1)
        return claimed

    # -- waking

    def woken(self) -> None:
        """The mailbox changed."""
        self.stale = True
        for listener in tuple(self.listeners):
            listener()

    def attach(self, live: LiveHub) -> None:
        """A session uses the view; the first one begins the watch, and what happened before it is unknown."""
        self.users += 1
        if self._watch is None:
            self._watch = live.watch(self.ref.mailbox_id, self.woken)
            self.stale = True

    def detach(self) -> None:
        """A session left."""
        self.users -= 1
        if not self.users and self._watch is not None:
            self._watch.close()
            self._watch = None
            self.stale = True


class ViewCache:
    """The views of one process; those that nobody uses are kept for a while, the latest `spare` of them."""

    def __init__(self, mailboxes: Mailboxes, live: LiveHub, spare: int) -> None:
        self._mailboxes = mailboxes
        self._live = live
        self._spare_limit = spare
        self._views: dict[FolderKey, FolderView] = {}
        self._spare: OrderedDict[FolderKey, FolderView] = OrderedDict()

    async def open(self, ref: MailboxRef, folder: FolderKey) -> FolderView:
        """The view of a folder, up to date. `release` it afterwards. Raises `FolderGone`."""
        view = self._views.get(folder)
        if view is None or view.gone or view.ref != ref:
            try:
                snapshot = await self._mailboxes.reads.folder_snapshot(ref, folder)
            except PostroomError as error:
                if error.code not in ("folder_not_found", "identity_not_found"):
                    raise
                raise FolderGone from None
            # Somebody else may have made it meanwhile.
            view = self._views.get(folder)
            if view is None or view.gone or view.ref != ref:
                view = self._views[folder] = FolderView(self._mailboxes, ref, snapshot)
        self._spare.pop(folder, None)
        view.attach(self._live)
        try:
            await view.ensure_fresh(force=True)
        except BaseException:
            self.release(view)
            raise
        return view

    def release(self, view: FolderView) -> None:
        """A session does not use the view any more."""
        view.detach()
        if view.users:
            return
        current = self._views.get(view.id) is view
        if view.gone:
            if current:
                del self._views[view.id]
            return
        if not current:
            return
        self._spare[view.id] = view
        self._spare.move_to_end(view.id)
        while len(self._spare) > self._spare_limit:
            folder, _ = self._spare.popitem(last=False)
            del self._views[folder]
