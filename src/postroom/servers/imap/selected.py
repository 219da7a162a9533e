"""The selected folder of one session: what its client has been told, and what is still to be told (RFC 3501 §5.2).

Message numbers are places in the list of UIDs that the client was told of. The list is the view's own array and a
count, so it costs nothing, until messages went that may not be told yet: then the session keeps the old array.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from postroom.imap import render
from postroom.imap.flags import SYSTEM_FLAGS
from postroom.imap.sequence import SequenceSet, compress, runs
from postroom.mailbox.rules import Flags
from postroom.servers.imap.contexts import Contexts
from postroom.servers.imap.views import FolderView

_SYSTEM_WORDS = tuple(SYSTEM_FLAGS)


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
        "contexts",
        "count",
        "read_only",
        "recent",
        "saved",
        "tells_recent",
        "uids",
        "view",
    )

    def __init__(self, view: FolderView, *, read_only: bool, recent: range | None) -> None:
        """`recent` is what is \\Recent here; None for a client that knows of no such thing (RFC 9051 appendix E)."""
        self.view = view
        self.tells_recent = recent is not None
        self.read_only = read_only
        self.uids: array[int] = view.uids
        self.count = len(view.uids)
        self.recent: list[range] = [recent] if recent else []
        self._top = view.folder.uid_next - 1
        self._position = view.journal_end
        self._modseq = view.modseq
        self._keywords = len(view.keywords)
        self._pending: list[int] = []
        self._held: dict[int, None] = {}
        self._silenced: dict[int, int] | None = None
        self.saved: array[int] = array("I")
        self.contexts = Contexts(self)

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

    def flags_at(self, places: range) -> list[Flags | None]:
        """The flags now of the messages at these places; None where the message went."""
        view = self.view
        if self.uids is view.uids:
            return list(view.flags[places.start : places.stop])
        found: list[Flags | None] = []
        for uid in self.uids[places.start : places.stop]:
            at = view.index(uid)
            found.append(None if at is None else view.flags[at])
        return found

    def modseqs_at(self, places: range) -> list[int]:
        """The modseqs now of the messages at these places; 0 where the message went."""
        view = self.view
        if self.uids is view.uids:
            return view.modseqs[places.start : places.stop].tolist()
        found = (view.index(uid) for uid in self.uids[places.start : places.stop])
        return [0 if at is None else view.modseqs[at] for at in found]

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
        """The client knows the flags that the message has at `modseq`."""
        if self._silenced is None:
            self._silenced = {}
        self._silenced[uid] = modseq

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

    def updates(
        self, *, expunge: bool, flags: bool = True, modseq: bool = False, vanished: bool = False
    ) -> Iterator[bytes]:
        """Untagged responses for all that happened, oldest numbering first: FETCH, EXPUNGE, EXISTS, RECENT.

        Without `expunge` messages that went keep their numbers (RFC 3501 §7.4.1), without `flags` changed flags stay to
        be told; the rest is told. With `modseq` FETCH has it, with `vanished` one response names the UIDs that went in
        place of EXPUNGE (RFC 7162). Consume it whole.
        """
        view = self.view
        if self.up_to_date:
            self._silenced, self._modseq, self._top = None, view.modseq, view.folder.uid_next - 1
            return
        changed = self._read_journal()
        if self._keywords != len(view.keywords):
            self._keywords = len(view.keywords)
            yield render.flags_line((*_SYSTEM_WORDS, *view.keywords))
        if flags:
            changed, self._held = [*dict.fromkeys((*self._held, *changed))], {}
            silenced, self._silenced = self._silenced or {}, None
        else:
            self._held.update(dict.fromkeys(changed))
            changed, silenced = [], {}
        for uid in changed:
            here, there = self.index(uid), view.index(uid)
            if here is None or there is None or silenced.get(uid) == view.modseqs[there]:
                continue
            shown = render.flags(view.flags[there], recent=self.is_recent(uid))
            if modseq:
                yield b"* %d FETCH (FLAGS %b UID %d MODSEQ (%d))\r\n" % (here + 1, shown, uid, view.modseqs[there])
            else:
                yield b"* %d FETCH (FLAGS %b UID %d)\r\n" % (here + 1, shown, uid)
        if expunge and self._pending:
            yield from self._tell_expunged(vanished=vanished)
        yield from self._tell_arrivals()

    def _read_journal(self) -> list[int]:
        view = self.view
        start = self._position - view.journal_base
        changed: dict[int, None] = {}
        if start < 0:
            now = set(view.uids)
            self._pending = [uid for uid in self.told_uids() if uid not in now]
            changed = dict.fromkeys(sorted(self.untold()))
        else:
            known = set(self._pending)
            for entry in view.journal[start:]:
                if entry > 0:
                    changed[entry] = None
                elif -entry not in known and self.index(-entry) is not None:
                    self._pending.append(-entry)
        self._position = view.journal_end
        self._modseq = view.modseq
        return list(changed)

    def _tell_expunged(self, *, vanished: bool) -> Iterator[bytes]:
        places = sorted(place for uid in self._pending if (place := self.index(uid)) is not None)
        if vanished:
            yield render.vanished(compress(self.uids[place] for place in places))
        else:
            for shift, place in enumerate(places):
                yield render.expunge(place + 1 - shift)
        self._pending = []
        self.uids = self.view.uids
        self.count = bisect_right(self.uids, self._top)

    def _tell_arrivals(self) -> Iterator[bytes]:
        view = self.view
        known = bisect_right(view.uids, self._top)
        arrived = len(view.uids) - known
        if self._pending:
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
