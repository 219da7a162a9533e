"""The selected folder of one session: what its client has been told, and what is still to be told (RFC 3501 §5.2).

Message numbers are places in the list of UIDs that the client was told of. The list is the view's own array and a
count, so it costs nothing, until messages went that may not be told yet: then the session keeps the old array.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from postroom.imap import render
from postroom.imap.flags import SYSTEM_FLAGS
from postroom.imap.sequence import SequenceSet, compress, runs
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.rules import Flags
from postroom.servers.imap.boxes import Box
from postroom.servers.imap.contexts import Contexts
from postroom.servers.imap.views import FolderView

AT_ONCE: Final = 1_000
"""Changes that are told before others have their turn, and the client has to have read what was told before."""
_SCAN: Final = 1_000
_SYSTEM_WORDS: Final = tuple(SYSTEM_FLAGS)


class Selected:
    """A folder as one session knows it. `told` is all that was said about flags: a place in the view's journal.

    `saved` is what ``$`` stands for, by UID, ascending: numbers may change and messages go (RFC 5182 §2.1).
    """

    __slots__ = (
        "_held",
        "_keywords",
        "_modseq",
        "_pending",
        "_position",
        "_silenced",
        "_top",
        "box",
        "contexts",
        "count",
        "must_tell_read_only",
        "read_only",
        "recent",
        "saved",
        "tells_recent",
        "uids",
        "view",
    )

    def __init__(self, box: Box, view: FolderView, *, read_only: bool, recent: range | None) -> None:
        """`recent` is what is \\Recent here; None for a client that knows of no such thing (RFC 9051 appendix E)."""
        self.box = box
        self.view = view
        self.tells_recent = recent is not None
        self.read_only = read_only
        self.must_tell_read_only = False
        self.uids: array[int] = view.uids
        self.count = len(view.uids)
        self.recent: list[range] = [recent] if recent else []
        self._top = view.folder.uid_next - 1
        self._position = view.journal_end
        self._modseq = view.modseq
        self._keywords = len(view.keywords)
        self._pending: dict[int, None] = {}
        self._held: dict[int, None] = {}
        self._silenced: dict[int, array[int]] | None = None
        self.saved: array[int] = array("I")
        self.contexts = Contexts(self)

    @property
    def ref(self) -> MailboxRef:
        """The mailbox that the folder is in."""
        return self.view.ref

    @property
    def name(self) -> str:
        """As the session calls it."""
        return self.box.prefix + self.view.folder.name

    # -- numbers and UIDs

    def index(self, uid: int) -> int | None:
        """Message number − 1 of a UID that the client knows, else None."""
        place = bisect_left(self.uids, uid, 0, self.count)
        return place if place < self.count and self.uids[place] == uid else None

    def numbering(self) -> Callable[[int], int]:
        """What gives the message number of a UID that the client knows; good until it is told of more."""
        uids, count = self.uids, self.count
        if count and uids[count - 1] - uids[0] == count - 1:
            # Nothing ever went, or only the oldest.
            return (1 - uids[0]).__add__
        return lambda uid: bisect_left(uids, uid, 0, count) + 1

    def resolve(self, wanted: SequenceSet, *, uid: bool) -> tuple[range, ...]:
        """Index ranges of a set of UIDs or of numbers. Raises `BadCommand` for a number beyond the last."""
        if wanted.saved:
            return self._saved_places()
        if not uid:
            return wanted.resolve_sequence(self.count)
        return wanted.resolve_uids(self.told_uids())

    def _saved_places(self) -> tuple[range, ...]:
        """Where what is saved is now; what went is in it no more, even before that was told (RFC 5182 §2.1)."""
        if not self.saved:
            return ()
        there = set(self.saved)
        if self.uids is not self.view.uids:
            there.intersection_update(self.view.uids)
        first = bisect_left(self.uids, self.saved[0], 0, self.count)
        last = bisect_right(self.uids, self.saved[-1], 0, self.count)
        numbers = (number for number, uid in enumerate(self.uids[first:last], first + 1) if uid in there)
        return tuple(range(low - 1, high) for low, high in runs(numbers))

    def told_uids(self) -> array[int]:
        """All UIDs the client knows, in order; do not change it."""
        return self.uids if self.count == len(self.uids) else self.uids[: self.count]

    def flags_at(self, places: Sequence[int]) -> list[Flags | None]:
        """The flags now of the messages at these places; None where the message went."""
        view = self.view
        if self.uids is view.uids:
            if isinstance(places, range):
                return list(view.flags[places.start : places.stop])
            return list(map(view.flags.__getitem__, places))
        found: list[Flags | None] = []
        for uid in self.uids_at(places):
            at = view.index(uid)
            found.append(None if at is None else view.flags[at])
        return found

    def modseqs_at(self, places: Sequence[int]) -> list[int]:
        """The modseqs now of the messages at these places; 0 where the message went."""
        view = self.view
        if self.uids is view.uids:
            if isinstance(places, range):
                return view.modseqs[places.start : places.stop].tolist()
            return list(map(view.modseqs.__getitem__, places))
        found = (view.index(uid) for uid in self.uids_at(places))
        return [0 if at is None else view.modseqs[at] for at in found]

    def changed(self, parts: Iterable[range], since: int) -> Iterator[range]:
        """Runs of places, of those in `parts`, where a message stands that changed after the modseq `since`."""
        for part in parts:
            for start in range(part.start, part.stop, _SCAN):
                places = range(start, min(start + _SCAN, part.stop))
                states = enumerate(self.modseqs_at(places), start + 1)
                yield from (range(low - 1, high) for low, high in runs(one for one, now in states if now > since))

    def uids_at(self, places: Sequence[int]) -> array[int]:
        """The UIDs of the messages at these places."""
        if isinstance(places, range):
            return self.uids[places.start : places.stop]
        return array("I", map(self.uids.__getitem__, places))

    def modseq(self, uid: int) -> int:
        """The modseq of a message now; 0 when it went."""
        at = self.view.index(uid)
        return 0 if at is None else self.view.modseqs[at]

    def is_gone(self, uid: int) -> bool:
        """Whether a message that the client knows does not exist any more."""
        return self.view.index(uid) is None

    # -- \Recent

    def is_recent(self, uid: int) -> bool:
        """Whether this session is the first to be told of the message (D5)."""
        return any(uid in claimed for claimed in self.recent)

    def recent_count(self) -> int:
        """Messages that are \\Recent and known to the client."""
        uids, count = self.uids, self.count
        return sum(
            bisect_left(uids, claimed.stop, 0, count) - bisect_left(uids, claimed.start, 0, count)
            for claimed in self.recent
        )

    async def claim_recent(self) -> None:
        """Make messages that came since the last claim \\Recent in this session, unless another had them."""
        view = self.view
        while (
            self.tells_recent
            and not self.read_only
            and self._top < (top := view.folder.uid_next - 1)
            and view.recent_upto < top
        ):
            claimed = await view.claim_recent(top)
            if claimed:
                self._add_recent(claimed)

    def forget_recent(self) -> None:
        """The client knows of no \\Recent from now on."""
        self.tells_recent, self.recent = False, []

    def _add_recent(self, claimed: range) -> None:
        if self.recent and self.recent[-1].stop == claimed.start:
            self.recent[-1] = range(self.recent[-1].start, claimed.stop)
        else:
            self.recent.append(claimed)

    # -- telling

    def silence(self, uid: int, modseq: int) -> None:
        """The client knows the flags that the message has at `modseq`. Of one modseq, by UID."""
        if self._silenced is None:
            self._silenced = {}
        uids = self._silenced.get(modseq)
        if uids is None:
            uids = self._silenced[modseq] = array("I")
        uids.append(uid)

    def _is_silenced(self, uid: int, modseq: int) -> bool:
        uids = self._silenced.get(modseq) if self._silenced else None
        if uids is None:
            return False
        place = bisect_left(uids, uid)
        return place < len(uids) and uids[place] == uid

    def untold(self) -> set[int]:
        """UIDs whose flags changed since the client was last told."""
        view = self.view
        held = set(self._held)
        if self._position == view.journal_end:
            return held
        if self._position < view.journal_base:
            return held | {uid for uid, modseq in zip(view.uids, view.modseqs, strict=True) if modseq > self._modseq}
        return held | {entry for entry in view.journal[self._position - view.journal_base :] if entry > 0}

    @property
    def up_to_date(self) -> bool:
        """Whether there is nothing to tell."""
        view = self.view
        return (
            self._position == view.journal_end
            and not self._pending
            and not self._held
            and self.uids is view.uids
            and self.count == len(view.uids)
        )

    @property
    def top(self) -> int:
        """The highest UID that there was when the client was last told."""
        return self._top

    def is_behind(self, upto: int, *, expunge: bool, flags: bool) -> bool:
        """Whether one more `updates` is needed to have told what the journal had up to there."""
        return self._position < upto or bool((flags and self._held) or (expunge and self._pending))

    def updates(
        self,
        upto: int | None = None,
        *,
        expunge: bool,
        flags: bool = True,
        modseq: bool = False,
        vanished: bool = False,
    ) -> Iterator[bytes]:
        """Untagged responses for what happened, oldest numbering first: FETCH, EXPUNGE, EXISTS, RECENT.

        About a thousand FETCH and a thousand EXPUNGE at the most, of what the view's journal has up to `upto`:
        `is_behind` says whether there is more. Whatever else happens in between, the client's numbers stay right.

        Without `expunge` messages that went keep their numbers (RFC 3501 §7.4.1), without `flags` changed flags stay to
        be told; the rest is told. With `modseq` FETCH has it, with `vanished` one response names the UIDs that went in
        place of EXPUNGE (RFC 7162). Consume it whole.
        """
        view = self.view
        if self.up_to_date:
            self._silenced, self._modseq, self._top = None, view.modseq, view.folder.uid_next - 1
            return
        end = view.journal_end if upto is None else upto
        self._read_journal(end)
        if self._keywords != len(view.keywords):
            self._keywords = len(view.keywords)
            yield render.flags_line((*_SYSTEM_WORDS, *view.keywords))
        if flags:
            yield from self._tell_flags(modseq=modseq)
        if expunge and self._pending:
            yield from self._tell_expunged(vanished=vanished)
        if self._position >= end:
            yield from self._tell_arrivals()

    def _read_journal(self, end: int) -> None:
        view = self.view
        start = self._position - view.journal_base
        if start < 0:
            now = set(view.uids)
            self._pending = dict.fromkeys(uid for uid in self.told_uids() if uid not in now)
            self._held = dict.fromkeys(sorted(self.untold()))
            self._position = view.journal_end
        else:
            stop = min(end, self._position + AT_ONCE)
            for entry in view.journal[start : max(start, stop - view.journal_base)]:
                if entry > 0:
                    self._held[entry] = None
                elif self.index(-entry) is not None:
                    self._pending[-entry] = None
            self._position = max(self._position, stop)
        if self._position == view.journal_end:
            self._modseq = view.modseq

    def _tell_flags(self, *, modseq: bool) -> Iterator[bytes]:
        view = self.view
        for uid in list(islice(self._held, AT_ONCE)):
            del self._held[uid]
            here, there = self.index(uid), view.index(uid)
            if here is None or there is None or self._is_silenced(uid, view.modseqs[there]):
                continue
            shown = render.flags(view.flags[there], recent=self.is_recent(uid))
            if modseq:
                yield b"* %d FETCH (FLAGS %b UID %d MODSEQ (%d))\r\n" % (here + 1, shown, uid, view.modseqs[there])
            else:
                yield b"* %d FETCH (FLAGS %b UID %d)\r\n" % (here + 1, shown, uid)
        if not self._held and self._position == view.journal_end:
            self._silenced = None

    def _tell_expunged(self, *, vanished: bool) -> Iterator[bytes]:
        batch = list(islice(self._pending, AT_ONCE))
        for uid in batch:
            del self._pending[uid]
        places = sorted(place for uid in batch if (place := self.index(uid)) is not None)
        if vanished:
            yield render.vanished(compress(self.uids[place] for place in places))
        else:
            for shift, place in enumerate(places):
                yield render.expunge(place + 1 - shift)
        if not self._pending and self._position == self.view.journal_end:
            self.uids = self.view.uids
            self.count = bisect_right(self.uids, self._top)
        else:
            # More went than was told: a list of the session's own.
            self.uids = _without(self.uids[: self.count], places)
            self.count = len(self.uids)

    def _tell_arrivals(self) -> Iterator[bytes]:
        view = self.view
        known = bisect_right(view.uids, self._top)
        arrived = len(view.uids) - known
        if self._pending or self._position < view.journal_end:
            if arrived:
                # The numbers of messages that went are still in use: a list of the session's own.
                self.uids = self.uids[: self.count] + view.uids[known:]
                self.count += arrived
        else:
            self.uids, self.count = view.uids, len(view.uids)
        self._top = view.folder.uid_next - 1
        if arrived:
            yield render.exists(self.count)
            if self.tells_recent:
                yield render.recent(self.recent_count())


def _without(uids: array[int], places: Sequence[int]) -> array[int]:
    """The list without what is at these places, which ascend."""
    left: array[int] = array("I")
    start = 0
    for place in places:
        left += uids[start:place]
        start = place + 1
    left += uids[start:]
    return left
