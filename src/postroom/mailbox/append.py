"""The one batched writer of new messages (architecture §1.3, §1.5).

`append` takes any number of messages, each with its copies for several mailboxes, and stores them with the same
handful of statements: lock, read, decide here, write. Deciding is plain Python on what was read under the locks:
duplicates (B14, B3 of the register), threads (inbound.md §28.4, §28.7), quota (E4), UIDs (D4), sequence numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from postroom.db.pool import Connection
from postroom.mailbox import append_sql as sql
from postroom.mailbox.append_state import (
    MAX_PARTICIPANTS,
    Box,
    FolderState,
    Known,
    Thread,
    box_row,
    folder_row,
    join,
    message_row,
    thread_of,
    thread_row,
)
from postroom.mailbox.models import (
    FLAG_DELETED,
    FLAG_SEEN,
    Appended,
    Busy,
    Direction,
    Filing,
    FolderKey,
    GroupOutcome,
    MailboxRef,
    NewMessage,
    Placed,
    RecipientKind,
    Refusal,
    Refused,
    Source,
)
from postroom.mailbox.replacing import Replacing
from postroom.mailbox.rules import is_own

MAX_REFERENCE_LOOKUPS: Final = 50
MAX_UID: Final = 2**32 - 1
VERIFICATION_LIFE: Final = timedelta(hours=24)
"""For how long a code or link is offered (inbound.md §20)."""
_FACTS: Final = [name for name, _ in sql.NEW.columns].index("facts")

_BY_HEADERS: Final = Filing()

Group = Sequence[NewMessage]
"""One message for all its recipients: stored whole or not at all."""


class _Batch:
    """What was read under the locks, and the rows to write."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.boxes: dict[int, Box] = {}
        self.folders: dict[tuple[int, int | None], FolderState] = {}
        self.by_raw: dict[tuple[int, bytes], Known] = {}
        self.by_rfc_id: dict[tuple[int, str], list[Known]] = {}
        self.threads: dict[tuple[int, int], Thread] = {}
        self.conflicts: set[tuple[int, int]] = set()
        self.new: list[tuple[object, ...]] = []
        self.recipients: list[tuple[object, ...]] = []
        self.attachments: list[tuple[object, ...]] = []
        self.verifications: list[tuple[object, ...]] = []
        self.events: list[tuple[object, ...]] = []

    # -- reading -----------------------------------------------------------------------------------------------------

    async def read(self, conn: Connection, messages: Sequence[NewMessage]) -> None:
        """Lock the mailboxes that nobody else holds, then read what deciding needs."""
        boxes = sorted({(ref.mailbox_id, ref.tenant_id) for m in messages for ref in m.mailboxes})
        folders = {(m.mailbox.tenant_id, m.mailbox.mailbox_id, m.folder) for m in messages}
        raws = {
            (m.mailbox.tenant_id, m.mailbox.mailbox_id, m.content.raw_sha256) for m in messages if m.source is Source.MX
        }
        ids = {
            (m.mailbox.tenant_id, m.mailbox.mailbox_id, rfc_id)
            for m in messages
            for rfc_id in (m.content.rfc_message_id, *_candidates(m))
        }
        row = await conn.fetchrow(
            sql.READ,
            [tenant for _, tenant in boxes],
            [box for box, _ in boxes],
            *zip(*folders, strict=True),
            *(zip(*raws, strict=True) if raws else ((), (), ())),
            *zip(*ids, strict=True),
        )
        assert row is not None
        self._take_boxes(row["boxes"] or ())
        self._take_folders(row["folders"] or ())
        self._take_hits(row["hits"] or ())

    def _take_boxes(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            self.boxes[row["id"]] = Box(
                row=row,
                modseq=row["modseq"] + 1,
                change_seq=row["change_seq"],
                event_seq=row["event_seq"],
                next_thread_seq=row["next_thread_seq"],
                used_bytes=row["used_bytes"],
            )

    def _take_folders(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            box = self.boxes.get(row["mailbox_id"])
            if box is None:
                continue
            box.own = frozenset(row["own"] or ())
            folder = self.folders.get((row["mailbox_id"], row["id"])) or FolderState(
                tenant_id=box.row["tenant_id"],
                id=FolderKey(row["id"]),
                uid_validity=row["uid_validity"],
                uid_next=row["uid_next"],
                message_count=row["message_count"],
                unseen_count=row["unseen_count"],
                deleted_count=row["deleted_count"],
                total_bytes=row["total_bytes"],
                modseq=box.modseq,
            )
            self.folders[(row["mailbox_id"], row["id"])] = folder
            if row["special_use"] == "inbox":
                self.folders[(row["mailbox_id"], None)] = folder

    def _take_hits(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            if row["mailbox_id"] not in self.boxes:
                continue
            key = (row["mailbox_id"], row["seq"])
            thread = self.threads.get(key)
            if thread is None:
                thread = self.threads[key] = thread_of(row)
            known = Known(
                row_id=row["id"],
                position=None,
                public_id=row["public_id"],
                raw_sha256=bytes.fromhex(row["raw_sha256"]),
                body_sha256=bytes.fromhex(row["body_sha256"]),
                source=row["source"],
                subject=row["subject"],
                sender=row["from_address"],
                verdict=row["verdict"],
                thread=thread,
            )
            self.remember(row["mailbox_id"], row["rfc_message_id"], known)
        for same_id in self.by_rfc_id.values():
            same_id.sort(key=lambda known: known.row_id or 0, reverse=True)

    async def read_numbered(self, conn: Connection, messages: Sequence[NewMessage]) -> None:
        """The threads that are known by number; nothing is asked when there are none, as in nearly every batch."""
        wanted = {
            (m.mailbox.tenant_id, m.mailbox.mailbox_id, number)
            for m in messages
            if m.filing is not None
            for number in (m.filing.joins, m.filing.begins)
            if number is not None
        }
        if wanted:
            for row in await conn.fetchval(sql.THREADS_BY_NUMBER, *zip(*sorted(wanted), strict=True)) or ():
                self.threads.setdefault((row["mailbox_id"], row["seq"]), thread_of(row))

    async def read_crowds(self, conn: Connection, messages: Sequence[NewMessage]) -> None:
        """Senders who are known to a thread though its list of participants had no room (inbound.md §28.10)."""
        senders = {m.content.sender.address for m in messages if m.content.sender}
        crowded = {key: t for key, t in self.threads.items() if len(t.participants) >= MAX_PARTICIPANTS}
        asked = [(self.boxes[box].row["tenant_id"], box, seq, sender) for box, seq in crowded for sender in senders]
        if asked:
            for row in await conn.fetch(sql.WROTE_BEFORE, *zip(*asked, strict=True)):
                crowded[(row["mailbox_id"], row["seq"])].beyond.add(row["sender"])

    def remember(self, mailbox_id: int, rfc_message_id: str, known: Known) -> None:
        if known.source == Source.MX:
            self.by_raw[(mailbox_id, known.raw_sha256)] = known
        same_id = self.by_rfc_id.setdefault((mailbox_id, rfc_message_id), [])
        if all(other.public_id != known.public_id for other in same_id):
            same_id.insert(0, known)  # the newest answers for the Message-ID (inbound.md §28.4)

    # -- deciding ----------------------------------------------------------------------------------------------------

    def refusal(self, group: Group, freed: int = 0) -> Refused | None:
        """Why the group can't be stored, decided before any of it is (mail-server.md A8: never partial copies).

        `freed` octets of the mailbox that it is for go with what it replaces.
        """
        wanted: dict[int, int] = {}
        counted: set[tuple[int, bytes]] = set()
        for m in group:
            box = self.boxes[m.mailbox.mailbox_id]
            if box.row["erased"] or box.row["tenant_id"] != m.mailbox.tenant_id:
                return Refused(Refusal.MAILBOX_GONE)
            folder = self.folders.get((m.mailbox.mailbox_id, m.folder))
            if folder is None:
                return Refused(Refusal.FOLDER_GONE)
            if max(folder.uid_next, m.uid) + len(group) > MAX_UID:
                return Refused(Refusal.UID_EXHAUSTED)
            octets = (m.mailbox.mailbox_id, m.content.raw_sha256)
            if self.duplicate_of(m) is None and not (m.source is Source.MX and octets in counted):
                counted.add(octets)
                wanted[m.mailbox.mailbox_id] = wanted.get(m.mailbox.mailbox_id, 0) + m.content.raw_size
        for mailbox_id, size in wanted.items():
            box = self.boxes[mailbox_id]
            quota = box.row["quota_bytes"]
            if quota and box.used_bytes + size - freed > quota:
                return Refused(Refusal.MAILBOX_FULL)
        return None

    def duplicate_of(self, m: NewMessage) -> Known | None:
        """The stored message that `m` repeats: the same octets, or the same Message-ID, author, subject and body octets
        (B14, B3). Whoever sends what is not theirs first keeps nobody's own from being taken: a message whose author
        is known repeats none whose author is not."""
        if m.source is not Source.MX:
            return None
        known = self.by_raw.get((m.mailbox.mailbox_id, m.content.raw_sha256))
        if known is not None:
            return known
        for other in self.by_rfc_id.get((m.mailbox.mailbox_id, m.content.rfc_message_id), ()):
            if (
                other.source == Source.MX
                and other.body_sha256 == m.content.body_sha256
                and other.subject == m.content.subject
                and other.sender == (m.content.sender.address if m.content.sender else None)
                and (other.verdict == "pass" or m.content.verdict != "pass")
            ):
                return other
        return None

    def thread_for(self, m: NewMessage, box: Box) -> tuple[Thread, bool]:
        """The thread that `m` belongs to: by its number, else by its headers, else a new one. And whether that is
        unverified (inbound.md §28.4; C1, C9)."""
        filing, key = m.filing or _BY_HEADERS, m.mailbox.mailbox_id
        if filing.joins is not None and (thread := self.threads.get((key, filing.joins))) is not None:
            stranger = _is_stranger(m, thread, box)
            return thread, stranger and all(named is not thread for named in self._named_by_headers(m))
        if filing.begins is None:
            for thread in self._named_by_headers(m):
                return thread, filing.is_suspect or _is_stranger(m, thread, box)
        seq = filing.begins
        if seq is None or (key, seq) in self.threads:  # no two threads have one number, whoever took it
            seq = box.next_thread_seq
        thread = Thread(
            seq=seq,
            public_id=m.thread_id,
            subject=m.content.thread_subject,
            first_at=m.received_at,
            last_at=m.received_at,
        )
        box.next_thread_seq = max(box.next_thread_seq, seq + 1)
        self.threads[(key, seq)] = thread
        return thread, filing.is_suspect

    def _named_by_headers(self, m: NewMessage) -> Iterator[Thread]:
        """The threads of messages that `m` names, best first."""
        for rfc_id in _candidates(m):
            hits = self.by_rfc_id.get((m.mailbox.mailbox_id, rfc_id))
            if hits:
                yield hits[0].thread

    def add(self, m: NewMessage) -> Appended:
        known = self.duplicate_of(m)
        if known is not None:
            return Appended(known.public_id, m.mailbox, known.thread.public_id, FolderKey(0), 0, 0, 0, duplicate=True)
        box = self.boxes[m.mailbox.mailbox_id]
        folder = self.folders[(m.mailbox.mailbox_id, m.folder)]
        thread, unverified = self.thread_for(m, box)
        facts = list(m.content.facts)
        if m.is_bcc:
            facts.append("bcc")
        if unverified:
            facts.append("thread_join_unverified")
        same_id = self.by_rfc_id.get((m.mailbox.mailbox_id, m.content.rfc_message_id), ())
        rivals = [other for other in same_id if other.source == Source.MX] if m.source is Source.MX else ()
        if rivals:
            facts.append("message_id_conflict")
            for other in rivals:
                self._mark_conflict(m.mailbox.tenant_id, other)

        uid = max(folder.uid_next, m.uid)
        folder.uid_next = uid + 1
        folder.message_count += 1
        folder.unseen_count += FLAG_SEEN not in m.flags
        folder.deleted_count += FLAG_DELETED in m.flags
        folder.total_bytes += m.content.raw_size
        folder.dirty = True
        box.change_seq += 1
        box.used_bytes += m.content.raw_size
        box.dirty = True
        join(thread, m, box)
        self.new.append(message_row(m, thread, tuple(facts), folder, uid, box))
        self._add_children(m, thread, tuple(facts), box)
        self.remember(
            m.mailbox.mailbox_id,
            m.content.rfc_message_id,
            Known(
                None,
                len(self.new) - 1,
                m.id,
                m.content.raw_sha256,
                m.content.body_sha256,
                m.source,
                m.content.subject,
                m.content.sender.address if m.content.sender else None,
                m.content.verdict,
                thread,
            ),
        )
        return Appended(m.id, m.mailbox, thread.public_id, folder.id, uid, folder.uid_validity, box.modseq)

    def _mark_conflict(self, tenant_id: int, other: Known) -> None:
        """Both messages of a conflict carry the fact (B3): the earlier one too, stored or still to be written."""
        if other.row_id is not None:
            self.conflicts.add((tenant_id, other.row_id))
        elif other.position is not None:
            row = list(self.new[other.position])
            facts = str(row[_FACTS]).split()
            row[_FACTS] = " ".join(dict.fromkeys((*facts, "message_id_conflict")))
            self.new[other.position] = tuple(row)

    def _add_children(self, m: NewMessage, thread: Thread, facts: tuple[str, ...], box: Box) -> None:
        n = len(self.new)
        positions: dict[RecipientKind, int] = {}
        for kind, mailpoint in m.content.recipients:
            position = positions[kind] = positions.get(kind, -1) + 1
            self.recipients.append((n, kind.value, position, mailpoint.address, mailpoint.name))
        for position, (part, public_id) in enumerate(zip(m.content.attachments, m.attachment_ids, strict=True)):
            self.attachments.append(
                (
                    n,
                    position,
                    public_id,
                    part.part_path,
                    part.filename,
                    part.content_type,
                    part.size,
                    part.disposition,
                    part.content_id,
                    part.sniffed_type,
                    part.risk,
                )
            )
        kept = m.content.verifications if m.content.verdict == "pass" else ()
        expires_at = m.received_at + VERIFICATION_LIFE
        self.verifications += ((n, found.kind, found.value, found.sender_domain, expires_at) for found in kept)
        if m.announce is not None:
            placed = self._placed(m, thread, facts, box)
            self._tell(n, placed, *m.announce(m, placed))
        if m.announce_found is not None:
            for found, event_id in zip(kept, m.found_event_ids, strict=False):
                placed = replace(self._placed(m, thread, facts, box), event_id=event_id)
                self._tell(n, placed, *m.announce_found(found, placed))

    def _placed(self, m: NewMessage, thread: Thread, facts: tuple[str, ...], box: Box) -> Placed:
        """Of the next event of the mailbox."""
        box.event_seq += 1
        return Placed(
            message_id=m.id,
            thread_id=thread.public_id,
            tenant_id=box.row["tenant_public_id"],
            identity_id=box.row["identity_public_id"],
            event_id=m.event_id,
            sequence=box.event_seq,
            occurred_at=self.now,
            facts=facts,
            attachment_ids=m.attachment_ids,
        )

    def _tell(self, n: int, placed: Placed, kind: str, payload: bytes) -> None:
        self.events.append((n, placed.event_id, kind, placed.identity_id, placed.sequence, payload))

    # -- writing
    # ------------------------------------------------------------------------------------------------------------

    async def write(self, conn: Connection) -> None:
        if self.conflicts:
            tenants, ids = zip(*sorted(self.conflicts), strict=True)
            await conn.execute(sql.MARK_CONFLICT, tenants, ids)
        if not self.new:
            return
        dirty_boxes = [box for box in self.boxes.values() if box.dirty]
        await conn.execute(
            sql.WRITE,
            self.now,
            self.new,
            [thread_row(self.boxes[box_id], t) for (box_id, _), t in self.threads.items() if t.dirty],
            self.recipients,
            self.attachments,
            self.verifications,
            self.events,
            [folder_row(f) for f in {f.id: f for f in self.folders.values() if f.dirty}.values()],
            [box_row(box) for box in dirty_boxes],
        )


async def append(
    conn: Connection, groups: Sequence[Group], *, now: datetime, wait_for: Collection[MailboxRef] = ()
) -> list[GroupOutcome]:
    """Store each group or say why not, in order, inside the caller's open transaction.

    A group with a mailbox that somebody else holds is `Busy` and untouched. Only `wait_for` is waited for, each at
    most the transaction's `lock_timeout` (asyncpg's LockNotAvailableError), and before any other mailbox is taken: who
    waits for one holds none, so no mailbox suffers for another with which it shares a message (B14). Only of `wait_for`
    is it known that they are gone. `append_sql.BEGIN` opens a suitable transaction.
    """
    gone = set(wait_for)
    if wait_for:
        columns = [ref.tenant_id for ref in wait_for], [ref.mailbox_id for ref in wait_for]
        rows = await conn.fetch(sql.LOCK_WAITING, *columns)
        gone -= {MailboxRef(row["tenant_id"], row["id"]) for row in rows}
    batch = _Batch(now)
    await batch.read(conn, [m for group in groups for m in group])
    missing = [[ref for m in group for ref in m.mailboxes if ref.mailbox_id not in batch.boxes] for group in groups]
    messages = [m for group, absent in zip(groups, missing, strict=True) if not absent for m in group]
    if messages:
        await batch.read_numbered(conn, messages)
        await batch.read_crowds(conn, messages)
    replacing = await Replacing.read(conn, messages, now)
    outcomes: list[GroupOutcome] = []
    for group, absent in zip(groups, missing, strict=True):
        if absent:
            outcomes.append(Refused(Refusal.MAILBOX_GONE) if gone.intersection(absent) else Busy(absent[0]))
            continue
        refused = replacing.refusal(group) or batch.refusal(group, replacing.freed(group))
        outcomes.append(refused or tuple(batch.add(m) for m in replacing.take(group)))
    await batch.write(conn)
    return await replacing.finish(outcomes, {key for key, box in batch.boxes.items() if box.dirty})


def _is_stranger(m: NewMessage, thread: Thread, box: Box) -> bool:
    """Whether somebody wrote it who is neither of the mailbox nor a participant of the thread."""
    sender = m.content.sender.address if m.content.sender else ""
    return (
        m.direction is Direction.INBOUND
        and not is_own(sender, box.own)
        and sender not in thread.beyond
        and all(p["address"] != sender for p in thread.participants)
    )


def _candidates(m: NewMessage) -> list[str]:
    """Message-IDs that may name the thread, best first: In-Reply-To, then References from the last (inbound.md
    §28.4)."""
    ids = [m.content.in_reply_to] if m.content.in_reply_to else []
    ids += [i for i in reversed(m.content.reference_ids) if i not in ids]
    return ids[:MAX_REFERENCE_LOOKUPS]
