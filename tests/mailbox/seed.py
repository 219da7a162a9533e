"""Mailboxes and messages put into the database by plain SQL, for tests of what happens to them afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database
from postroom.mailbox.models import ChangeKind, FolderKey, MailboxRef
from postroom.mailbox.service import Mailboxes
from postroom.mailbox.writing import MailboxWrite, begin_write

_numbers = itertools.count(1)


class Blobs:
    """Remembers which keys were deleted."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    async def delete(self, keys: Iterable[str]) -> None:
        self.deleted += keys


@dataclass(frozen=True, slots=True)
class Seeded:
    """A message as it was put there."""

    key: int
    id: str
    thread: str
    thread_seq: int
    uid: int
    blob_key: str


@dataclass(slots=True)
class World:
    """A database with one mailbox, the service under test, and what it told."""

    db: Database
    clock: ManualClock
    ids: IdGenerator
    blobs: Blobs
    boxes: Mailboxes
    ref: MailboxRef
    told: list[tuple[MailboxRef, int]] = field(default_factory=list)

    async def folder(self, name: str) -> FolderKey:
        return (await self.boxes.folder(self.ref, name)).id

    async def value(self, statement: str, *args: object) -> Any:
        """One value; `$1` and `$2` are the tenant and the mailbox."""
        async with self.db.acquire() as conn:
            return await conn.fetchval(statement, self.ref.tenant_id, self.ref.mailbox_id, *args)

    async def rows(self, statement: str, *args: object) -> list[Any]:
        async with self.db.acquire() as conn:
            return list(await conn.fetch(statement, self.ref.tenant_id, self.ref.mailbox_id, *args))

    async def add(
        self,
        folder: str = "INBOX",
        *,
        flags: Sequence[str] = (),
        direction: str = "inbound",
        thread: Seeded | None = None,
        size: int = 1000,
        subject: str = "Hello",
        sender: tuple[str, str] | None = ("anna@example.com", "Anna"),
        to: Sequence[tuple[str, str]] = (("box@agents.example", "Box"),),
        cc: Sequence[tuple[str, str]] = (),
        received_at: datetime | None = None,
        facts: Sequence[str] = (),
        text: str = "Hello there",
        attachments: int = 0,
    ) -> Seeded:
        """A message in a folder, with every row and counter that delivery leaves."""
        folder_id = await self.folder(folder)
        now = self.clock.now()
        letter = _Letter(
            message_id=self.ids.new("msg_"),
            number=next(_numbers),
            flags=flags,
            is_inbound=direction == "inbound",
            size=size,
            subject=subject,
            sender=sender,
            to=to,
            cc=cc,
            at=received_at or now,
            facts=facts,
            text=text,
        )
        async with self.db.transaction() as conn:
            write = await begin_write(conn, self.ref, now)
            if thread is None:
                seq, thread_id = await _new_thread(conn, self.ref, self.ids.new("thr_"), letter)
            else:
                seq, thread_id = thread.thread_seq, thread.thread
            await _grow_thread(conn, self.ref, seq, letter)
            key = await _insert_message(conn, self.ref, seq, letter)
            await _insert_parts(conn, self.ref, key, letter, [self.ids.new("att_") for _ in range(attachments)])
            uid = await _place(write, folder_id, key, letter)
            await write.finish()
        return Seeded(key, letter.message_id, thread_id, seq, uid, letter.blob_key)

    async def remove(self, message_id: str) -> None:
        """Expunge a message from every folder in which it stands."""
        await self.boxes.change_message(self.ref, message_id, add=["$deleted"])
        for row in await self.rows(
            "SELECT p.folder_id, p.uid FROM placements p JOIN messages m ON m.id = p.message_id "
            "WHERE p.tenant_id = $1 AND p.mailbox_id = $2 AND m.public_id = $3",
            message_id,
        ):
            await self.boxes.expunge(self.ref, row["folder_id"], [row["uid"]])

    async def fill(self, folder: str, count: int, *, per_thread: int = 1, analyze: bool = True) -> range:
        """`count` unseen messages at once; the UIDs they got. `analyze` brings statistics up to date."""
        folder_id = await self.folder(folder)
        t, b, start = self.ref.tenant_id, self.ref.mailbox_id, self.clock.now()
        base = next(_numbers) * 10_000_000
        async with self.db.transaction() as conn:
            write = await begin_write(conn, self.ref, start)
            for statement in _FILL:
                await conn.execute(statement, t, b, folder_id, count, start, base, per_thread, write.modseq)
            uid_next = await conn.fetchval("SELECT uid_next FROM folders WHERE id = $1", folder_id)
            rows = await conn.fetch(
                "SELECT p.uid, m.public_id FROM placements p JOIN messages m ON m.id = p.message_id "
                "WHERE p.folder_id = $1 AND p.uid >= $2 ORDER BY p.uid",
                *(folder_id, uid_next - count),
            )
            for row in rows:
                write.log(ChangeKind.PLACED, folder_id=folder_id, uid=row["uid"], message=row["public_id"], flags=())
            write.used_bytes += 1000 * count
            await write.finish()
        if analyze:
            async with self.db.acquire() as conn:
                await conn.execute("ANALYZE")
        return range(uid_next - count, uid_next)


@dataclass(frozen=True, slots=True)
class _Letter:
    """What `World.add` was asked for."""

    message_id: str
    number: int
    flags: Sequence[str]
    is_inbound: bool
    size: int
    subject: str
    sender: tuple[str, str] | None
    to: Sequence[tuple[str, str]]
    cc: Sequence[tuple[str, str]]
    at: datetime
    facts: Sequence[str]
    text: str

    @property
    def blob_key(self) -> str:
        return f"blob/{self.message_id}"


async def _new_thread(conn: Connection, ref: MailboxRef, thread_id: str, letter: _Letter) -> tuple[int, str]:
    seq = await conn.fetchval(
        "UPDATE mailboxes SET next_thread_seq = next_thread_seq + 1 WHERE id = $1 RETURNING next_thread_seq - 1",
        ref.mailbox_id,
    )
    await conn.execute(
        "INSERT INTO threads (tenant_id, mailbox_id, seq, public_id, subject, first_at, last_at) "
        "VALUES ($1, $2, $3, $4, $5, $6, $6)",
        *(ref.tenant_id, ref.mailbox_id, seq, thread_id, letter.subject, letter.at),
    )
    return seq, thread_id


async def _grow_thread(conn: Connection, ref: MailboxRef, seq: int, letter: _Letter) -> None:
    sender = [letter.sender] if letter.sender and letter.is_inbound else []
    people = [{"address": a, "name": n} for a, n in (*sender, *letter.to, *letter.cc)]
    await conn.execute(
        """
        UPDATE threads SET message_count = message_count + 1, unread_count = unread_count + $4,
          last_at = greatest(last_at, $5), participants_json = $7,
          last_inbound_at = CASE WHEN $6 THEN greatest(last_inbound_at, $5) ELSE last_inbound_at END,
          last_outbound_at = CASE WHEN $6 THEN last_outbound_at ELSE greatest(last_outbound_at, $5) END
        WHERE tenant_id = $1 AND mailbox_id = $2 AND seq = $3
        """,
        *(ref.tenant_id, ref.mailbox_id, seq, int(letter.is_inbound and "$seen" not in letter.flags)),
        *(letter.at, letter.is_inbound, people),
    )


async def _insert_message(conn: Connection, ref: MailboxRef, seq: int, letter: _Letter) -> int:
    direction, status = ("inbound", "received") if letter.is_inbound else ("outbound", "submitted")
    key: int = await conn.fetchval(
        """
        INSERT INTO messages (tenant_id, id, public_id, mailbox_id, thread_seq, source, direction, status,
          rfc_message_id, in_reply_to, reference_ids, raw_sha256, body_sha256, blob_key, raw_size, raw_prefix_len,
          from_address, from_name, delivered_to, is_bcc, is_primary_recipient, subject, subject_fold, snippet,
          sent_at, received_at, kind, verdict, facts, parser_version, envelope, body_structure, part_tree)
        VALUES ($1, nextval('message_ids'), $3, $2, $4, 'mx', $5, $6, $7, NULL, '{}', $8, $8, $9, $10, 120, $11, $12,
          'box@agents.example', false, true, $13, lower($13), left($14, 240), $15, $15, 'normal', 'pass', $16, 1,
          'envelope', 'structure', 'parts')
        RETURNING id
        """,
        *(ref.tenant_id, ref.mailbox_id, letter.message_id, seq, direction, status, f"{letter.number}@example.com"),
        *(letter.number.to_bytes(32, "big"), letter.blob_key, letter.size, *(letter.sender or (None, None))),
        *(letter.subject, letter.text, letter.at, list(letter.facts)),
    )
    return key


async def _insert_parts(
    conn: Connection, ref: MailboxRef, key: int, letter: _Letter, attachment_ids: Sequence[str]
) -> None:
    """Texts, recipients and attachments."""
    text = letter.text
    await conn.execute(
        "INSERT INTO message_texts VALUES ($1, $2, $3, $4, $5)",
        *(ref.tenant_id, key, text + " all", f"<p>{text}", text),
    )
    for kind, group in (("to", letter.to), ("cc", letter.cc)):
        for position, (address, name) in enumerate(group):
            await conn.execute(
                "INSERT INTO recipients VALUES ($1, $2, $3, $4, $5, $6)",
                *(ref.tenant_id, key, kind, position, address, name),
            )
    for position, attachment_id in enumerate(attachment_ids):
        await conn.execute(
            "INSERT INTO attachments VALUES ($1, $2, $3, $4, '2', 'a.pdf', 'application/pdf', 10, 'attachment', NULL)",
            *(ref.tenant_id, key, position, attachment_id),
        )


async def _place(write: MailboxWrite, folder_id: FolderKey, key: int, letter: _Letter) -> int:
    """The UID that the message got."""
    flags, size, ref = letter.flags, letter.size, write.ref
    uid: int = await write.conn.fetchval(
        """
        UPDATE folders SET uid_next = uid_next + 1, message_count = message_count + 1,
          unseen_count = unseen_count + $3,
          deleted_count = deleted_count + $4, total_bytes = total_bytes + $5, highest_modseq = $6
        WHERE tenant_id = $1 AND id = $2 RETURNING uid_next - 1
        """,
        *(ref.tenant_id, folder_id, int("$seen" not in flags), int("$deleted" in flags), size, write.modseq),
    )
    await write.conn.execute(
        "INSERT INTO placements VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        *(ref.tenant_id, folder_id, uid, ref.mailbox_id, key, size, write.modseq, letter.at, write.now, list(flags)),
    )
    write.used_bytes += size
    write.log(ChangeKind.PLACED, folder_id=folder_id, uid=uid, message=letter.message_id, flags=flags)
    return uid


# $1 tenant, $2 mailbox, $3 folder, $4 count, $5 start, $6 base of numbers, $7 messages of a thread, $8 modseq
_FILL = (
    """
    INSERT INTO threads (tenant_id, mailbox_id, seq, public_id, subject, first_at, last_at, last_inbound_at,
                         message_count, unread_count,
                         participants_json)
    SELECT $1::bigint, $2::bigint, $6::bigint + g, 'thr_01' || lpad(($6::bigint + g)::text, 24, '0'), 'Filled',
           $5::timestamptz,
           $5::timestamptz + interval '1s' * least((g + 1) * $7::int - 1, $4::int - 1),
           $5::timestamptz + interval '1s' * least((g + 1) * $7::int - 1, $4::int - 1), least($7::int, $4::int - g *
           $7::int), least($7::int, $4::int - g * $7::int), '[]'
    FROM generate_series(0, ($4::int - 1) / $7::int) g WHERE $3::bigint > 0 AND $8::bigint > 0
    """,
    """
    WITH f AS (
      UPDATE folders SET uid_next = uid_next + $4::int, message_count = message_count + $4::int,
             unseen_count = unseen_count + $4::int,
             total_bytes = total_bytes + 1000 * $4::int, highest_modseq = $8::bigint WHERE tenant_id = $1
               AND id = $3::bigint
      RETURNING uid_next - $4::int AS first
    ), m AS (
      INSERT INTO messages (tenant_id, id, public_id, mailbox_id, thread_seq, source, direction, status,
        rfc_message_id, in_reply_to,
        reference_ids, raw_sha256, body_sha256, blob_key, raw_size, raw_prefix_len, from_address, from_name,
          delivered_to, is_bcc,
        is_primary_recipient, subject, subject_fold, snippet, sent_at, received_at, kind, verdict, facts,
          parser_version, envelope,
        body_structure, part_tree)
      SELECT $1::bigint, nextval('message_ids'), 'msg_01' || lpad(($6::bigint + g)::text, 24, '0'), $2::bigint,
        $6::bigint + g / $7::int, 'mx', 'inbound', 'received', g || '@example.com', NULL, '{}', sha256(($6::bigint +
        g)::text::bytea), sha256('b'), 'blob/' || ($6::bigint + g), 1000, 120, 'p' || g % 50 || '@example.com', 'P',
        'box@agents.example', false, true, 'Subject ' || g, 'subject ' || g, repeat('snippet ', 20), $5::timestamptz,
        $5::timestamptz + interval '1s' * g, 'normal', 'pass', '{}', 1, repeat('e', 400)::bytea, repeat('s',
        300)::bytea, repeat('t', 200)::bytea
      FROM generate_series(0, $4::int - 1) g ORDER BY g RETURNING id, received_at
    ), x AS (
      INSERT INTO message_texts SELECT $1, id, repeat('text ', 200), NULL, repeat('text ', 200) FROM m
    ), r AS (
      INSERT INTO recipients SELECT $1, id, 'to', 0, 'box@agents.example', 'Box' FROM m
    )
    INSERT INTO placements SELECT $1, $3::bigint, f.first + row_number() OVER (ORDER BY m.id) - 1, $2, m.id, 1000,
      $8::bigint,
      m.received_at, $5::timestamptz, '{}' FROM m, f
    """,
)


async def make_world(db: Database, clock: ManualClock, ids: IdGenerator, *, quota_bytes: int | None = None) -> World:
    """A tenant with one identity, whose mailbox has the standard folders and holds nothing."""
    told: list[tuple[MailboxRef, int]] = []
    blobs = Blobs()
    boxes = Mailboxes(db, blobs, clock, ids, lambda ref, modseq: told.append((ref, modseq)))
    ref = await add_mailbox(db, boxes, ids, clock, quota_bytes=quota_bytes)
    return World(db, clock, ids, blobs, boxes, ref, told)


async def add_mailbox(
    db: Database, boxes: Mailboxes, ids: IdGenerator, clock: ManualClock, *, quota_bytes: int | None = None
) -> MailboxRef:
    number = next(_numbers)
    now = clock.now()
    tenant_id, identity_id = ids.new("ten_"), ids.new("idn_")
    async with db.transaction() as conn:
        tenant = await conn.fetchval(
            "INSERT INTO tenants (public_id, slug, name, mode, address_suffix, suffix_fold, created_at, updated_at) "
            "VALUES ($1, $2, 'T', 'live', $2, $2, $3, $3) RETURNING id",
            *(tenant_id, f"tenant-{number}", now),
        )
        identity = await conn.fetchval(
            "INSERT INTO identities (tenant_id, public_id, kind, username, username_fold, display_name, created_at, "
            "updated_at) "
            "VALUES ($1, $2, 'agent', 'box', 'box', 'Box', $3, $3) RETURNING id",
            *(tenant, identity_id, now),
        )
        ref = MailboxRef(tenant, identity)
        await boxes.create_mailbox_rows(
            conn, ref, identity_id=identity_id, tenant_id=tenant_id, quota_bytes=quota_bytes
        )
        domain = await conn.fetchval(
            "INSERT INTO domains (public_id, tenant_id, name, kind, status, created_at, updated_at) "
            "VALUES ($1, $2, $3, 'external', 'healthy', $4, $4) RETURNING id",
            *(ids.new("dom_"), tenant, f"d{number}.agents.example", now),
        )
        await conn.execute(
            "INSERT INTO addresses (tenant_id, public_id, address, local_part, domain_id, identity_id, role, status, "
            "created_at, updated_at) VALUES ($1, $2, $3, 'box', $4, $5, 'primary', 'active', $6, $6)",
            *(tenant, ids.new("adr_"), f"box@d{number}.agents.example", domain, identity, now),
        )
    return ref
