"""COPY and MOVE into another mailbox (RFC 3501 §6.4.7, RFC 6851; mail-server E2).

A message belongs to one mailbox, so that what comes into another is a message of its own there: stored from its octets
as by APPEND, with flags and date, under the quota of the mailbox that it comes into. What moves goes in the transaction
that stores it: it is never in neither, and never in both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Final

from postroom.base import log as base_log
from postroom.blobs import Span, StorageError
from postroom.imap import Code, ProtocolNo
from postroom.mailbox.ingest import Delivery
from postroom.mailbox.models import GroupOutcome, Place, Refusal, Refused
from postroom.mailbox.reads import Columns, FetchRow
from postroom.mailbox.transfer import CopyResult
from postroom.servers.imap.append import counted, new_message, refused
from postroom.servers.imap.boxes import Found
from postroom.servers.imap.fetch import BODY_MISSING
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Session

GROUP_MESSAGES: Final = 100
"""Messages that are stored in one transaction."""
GROUP_BYTES: Final = 8 * 1024 * 1024
"""Octets of a group, unless one message has more."""
_ATTEMPTS: Final = 4
"""How often a group is tried from which somebody else takes messages meanwhile."""

_log = base_log.get("servers.imap")


async def copy_across(session: Session, selected: Selected, uids: Iterable[int], target: Found) -> CopyResult:
    """Copies of those of `uids` that exist. When they cannot all be stored, none of them stays (RFC 3501 §6.4.7)."""
    done = CopyResult(target.folder.uid_validity, ())
    try:
        async with aclosing(_groups(session, selected, uids, target, moving=False)) as groups:
            async for part in groups:
                done = _joined(done, part)
    except BaseException:
        await _take_back(session, target, [uid for _, uid in done.pairs])
        raise
    return done


async def move_across(
    session: Session, selected: Selected, uids: Iterable[int], target: Found
) -> AsyncGenerator[CopyResult, None]:
    """Move those of `uids` that exist, so many at a time; what has been moved has been, whatever comes after it."""
    async with aclosing(_groups(session, selected, uids, target, moving=True)) as groups:
        async for part in groups:
            yield part


def _joined(done: CopyResult, part: CopyResult) -> CopyResult:
    return CopyResult(part.uid_validity, (*done.pairs, *part.pairs))


async def _groups(
    session: Session, selected: Selected, uids: Iterable[int], target: Found, *, moving: bool
) -> AsyncGenerator[CopyResult, None]:
    rows = session.services.mailboxes.reads.fetch_rows(
        selected.ref, selected.view.id, sorted(uids), Columns.BYTES, page=GROUP_MESSAGES
    )
    async for page in rows:
        for group in _cut(page):
            session.require_standing()
            _require_grants(session, selected, target, moving=moving)
            async with counted(session):
                done = await _carry(session, selected, group, target, moving=moving)
            if done.pairs:
                yield done


def _require_grants(session: Session, selected: Selected, target: Found, *, moving: bool) -> None:
    """Raises `ProtocolNo` where a grant has changed since the command began, so that it would not begin now."""
    now = session.boxes.now(target.box)
    if now is None:
        raise ProtocolNo(Code.NONEXISTENT, "No such mailbox")
    session.require_write(now)
    if moving:
        session.require_write(selected.box)


def _cut(rows: Sequence[FetchRow]) -> Iterator[list[FetchRow]]:
    group: list[FetchRow] = []
    size = 0
    for row in rows:
        if group and size + row.size > GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(row)
        size += row.size
    if group:
        yield group


async def _carry(
    session: Session, selected: Selected, rows: list[FetchRow], target: Found, *, moving: bool
) -> CopyResult:
    for _ in range(_ATTEMPTS):
        rows, deliveries = await _read(session, selected, rows, target, moving=moving)
        if not rows:
            return CopyResult(target.folder.uid_validity, ())
        outcome = await _stored(session, deliveries, target, moving=moving)
        if outcome == Refused(Refusal.REPLACED_GONE):
            rows = await _still_there(session, selected, rows)
            continue
        if isinstance(outcome, Refused):
            raise refused(outcome)
        assert isinstance(outcome, tuple)
        pairs = zip((row.uid for row in rows), (stored.uid for stored in outcome), strict=True)
        return CopyResult(outcome[0].uid_validity, tuple(pairs))
    raise ProtocolNo(Code.INUSE, "Others are moving these messages")


async def _stored(session: Session, deliveries: Sequence[Delivery], target: Found, *, moving: bool) -> GroupOutcome:
    """The transaction goes on when the command is broken off: copies that it makes then do not stay."""
    storing = asyncio.ensure_future(session.services.ingest.deliver_together(deliveries))
    try:
        return await asyncio.shield(storing)
    except asyncio.CancelledError:
        if not moving:
            await asyncio.wait([storing])
            if not storing.cancelled() and storing.exception() is None and isinstance(done := storing.result(), tuple):
                await _take_back(session, target, [stored.uid for stored in done])
        raise


async def _read(
    session: Session, selected: Selected, rows: list[FetchRow], target: Found, *, moving: bool
) -> tuple[list[FetchRow], list[Delivery]]:
    """What is to be stored of those that are still there."""
    session.gathered = sum(row.size for row in rows)
    session.wire.account()
    found = await session.services.blobs.get_many([Span(str(row.blob_key), 0, row.size) for row in rows])
    if any(isinstance(data, StorageError) or len(data) != row.size for row, data in zip(rows, found, strict=True)):
        # Octets go after the rows did.
        there = await _still_there(session, selected, rows)
        if len(there) == len(rows):
            raise BODY_MISSING
        return await _read(session, selected, there, target, moving=moving)
    deliveries = []
    for row, data in zip(rows, found, strict=True):
        assert not isinstance(data, StorageError)
        place = Place(selected.view.id, row.uid, selected.ref) if moving else None
        deliveries.append(
            await new_message(session, target, bytes(data), tuple(row.flags), row.internal_date, replaces=place)
        )
    return rows, deliveries


async def _still_there(session: Session, selected: Selected, rows: Sequence[FetchRow]) -> list[FetchRow]:
    uids = [row.uid for row in rows]
    reads = session.services.mailboxes.reads
    there: list[FetchRow] = []
    async for page in reads.fetch_rows(selected.ref, selected.view.id, uids, Columns.BYTES, page=GROUP_MESSAGES):
        there += page
    return there


async def _take_back(session: Session, target: Found, uids: Sequence[int]) -> None:
    """Remove copies that are not to stay."""
    if not uids:
        return
    try:
        await session.services.mailboxes.remove_all(target.box.ref, target.folder.id, uids)
    except Exception as error:  # noqa: BLE001 - why they were not to stay is what the client is told
        _log.warning("imap_copies_left", count=len(uids), error=type(error).__name__)
