"""What went from a folder while a client was away (RFC 7162 §3.2.5, §3.2.6)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from postroom.imap import render
from postroom.imap.sequence import SequenceSet, compress_ranges, gaps, runs
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Session

_LINE: Final = 1000
"""Ranges of one response."""


async def tell_vanished(session: Session, selected: Selected, modseq: int, among: SequenceSet | None) -> None:
    """``VANISHED (EARLIER)`` for UIDs that went after `modseq`, as far as they are `among` those asked about.

    Where the log does not reach back so far, for all UIDs that do not exist: more than went since, but nothing that is
    there. What this session still has numbers for is told later, in its order.
    """
    view = selected.view
    top = view.folder.uid_next - 1
    removed = await session.services.mailboxes.reads.removed_since(view.ref, view.id, modseq)
    went: Iterable[tuple[int, int]]
    if removed is None:
        told = selected.told_uids()
        went = gaps(view.uids if view.uids is told else sorted({*view.uids, *told}), top)
    else:
        went = runs(uid for uid in removed if view.index(uid) is None and selected.index(uid) is None)
    if among is not None:
        went = among.overlap(went, top)
    parts = iter(went)
    while piece := list(islice(parts, _LINE)):
        session.write(render.vanished(compress_ranges(piece), earlier=True))
        await session.drain()
