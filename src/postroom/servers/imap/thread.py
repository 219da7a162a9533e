"""THREAD (RFC 5256 §3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from postroom.imap import commands as c
from postroom.imap.threads import Algorithm, Letter, ordered_subject, references, thread_lists
from postroom.mailbox.reads import Columns
from postroom.servers.imap.answers import Done
from postroom.servers.imap.finder import Finder
from postroom.servers.imap.search import find
from postroom.servers.imap.session import Session
from postroom.servers.imap.turns import in_turns
from postroom.servers.imap.values import Kind

_PORTION: Final = 100
MANY: Final = 200_000
"""Ancestors of all messages together from which on only the nearest of each count: they are what threads hang by, and
each takes half a kilobyte."""
NEAREST: Final = 10


async def run(session: Session, command: c.Thread) -> Done:
    """THREAD, UID THREAD."""
    matches = await find(session, command.key)
    by_references = command.algorithm is Algorithm.REFERENCES
    letters = await _letters(matches.finder, matches.uids, by_references=by_references)
    threads = await in_turns(references(letters) if by_references else ordered_subject(letters))
    shown = None if command.uid else session.folder().numbering()
    session.write(b"* THREAD ") if threads else session.write(b"* THREAD")
    for place, piece in enumerate(thread_lists(threads, shown)):
        session.write(piece)
        if not place % _PORTION:
            await asyncio.sleep(0)
    session.write(b"\r\n")
    return Done("THREAD completed")


async def _letters(finder: Finder, uids: Sequence[int], *, by_references: bool) -> list[Letter]:
    ids: dict[int, tuple[str, Sequence[str]]] = {}
    ancestors = 0
    if by_references:
        async for uid, facts in finder.facts(uids, Columns.REFERENCES):
            # In-Reply-To counts only where References has nothing, and only the first of it (RFC 5256 §3, step 1.A).
            above: Sequence[str] = facts.reference_ids or ([facts.in_reply_to] if facts.in_reply_to else [])
            if ancestors > MANY:
                above = above[-NEAREST:]
            ancestors += len(above)
            ids[uid] = (facts.rfc_message_id or "", above)
    letters: list[Letter] = []
    async for batch in finder.values(uids, (Kind.SENT, Kind.SUBJECT, Kind.IS_REPLY)):
        for uid, (sent, subject, is_reply) in batch:
            own, above = ids.pop(uid, ("", ()))
            letters.append(Letter(uid, sent, subject, bool(is_reply), own, above))
    return letters
