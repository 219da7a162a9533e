"""Raw messages, their copies for mailboxes, and what must always hold of a mailbox: for tests of the writer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database
from postroom.events.catalogue import message_received
from postroom.inbound.describe import describe
from postroom.mailbox import append_sql
from postroom.mailbox.append import append
from postroom.mailbox.folders import ensure_standard, insert_mailbox
from postroom.mailbox.models import (
    Content,
    Direction,
    FolderKey,
    GroupOutcome,
    MailboxRef,
    NewMessage,
    Source,
)
from postroom.mailbox.writing import begin_write

_numbers = itertools.count(1)

TRACE = b"Return-Path: <anna@example.com>\r\nReceived: from mx.example.com; Tue, 01 Jan 2030 00:00:00 +0000\r\n"


@dataclass(frozen=True, slots=True)
class Box:
    """A mailbox with its primary and one alias address."""

    ref: MailboxRef
    tenant_id: str
    identity_id: str
    address: str
    alias: str


async def make_boxes(db: Database, ids: IdGenerator, clock: Clock, count: int = 1, **options: Any) -> list[Box]:
    """Mailboxes of one new tenant, with the standard folders."""
    now, number = clock.now(), next(_numbers)
    tenant_id, domain = ids.new("ten"), f"l{number}.agents.example"
    boxes = []
    async with db.transaction() as conn:
        tenant = await conn.fetchval(
            "INSERT INTO tenants (public_id, slug, name, mode, address_suffix, suffix_fold, created_at, updated_at) "
            "VALUES ($1, $2, 'T', 'live', $2, $2, $3, $3) RETURNING id",
            *(tenant_id, f"letters-{number}", now),
        )
        domain_key = await conn.fetchval(
            "INSERT INTO domains (public_id, tenant_id, name, kind, status, created_at, updated_at) "
            "VALUES ($1, $2, $3, 'external', 'healthy', $4, $4) RETURNING id",
            *(ids.new("dom"), tenant, domain, now),
        )
        for n in range(count):
            identity_id = ids.new("idn")
            key = await conn.fetchval(
                "INSERT INTO identities (tenant_id, public_id, kind, username, username_fold, display_name, "
                "created_at, updated_at) VALUES ($1, $2, 'agent', $3, $3, 'Box', $4, $4) RETURNING id",
                *(tenant, identity_id, f"box{n}", now),
            )
            ref = MailboxRef(tenant, key)
            await insert_mailbox(
                conn,
                ref,
                identity_id=identity_id,
                tenant_id=tenant_id,
                quota_bytes=options.get("quota_bytes"),
                is_system=False,
                now=now,
            )
            write = await begin_write(conn, ref, now)
            await ensure_standard(write, ids.new)
            await write.finish()
            for role, local in (("primary", f"box{n}"), ("alias", f"box{n}-alias")):
                await conn.execute(
                    "INSERT INTO addresses (tenant_id, public_id, address, local_part, domain_id, identity_id, role, "
                    "status, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, 'active', $8, $8)",
                    *(tenant, ids.new("adr"), f"{local}@{domain}", local, domain_key, key, role, now),
                )
            boxes.append(Box(ref, tenant_id, identity_id, f"box{n}@{domain}", f"box{n}-alias@{domain}"))
    return boxes


def raw_mail(
    *,
    message_id: str | None = None,
    in_reply_to: str | None = None,
    references: Sequence[str] = (),
    sender: str = "Anna <anna@example.com>",
    to: str = "box@agents.example",
    cc: str = "",
    subject: str = "Hello",
    body: str = "Hello there",
    trace: str = "",
) -> bytes:
    lines = [f"From: {sender}", f"To: {to}", f"Subject: {subject}", "Date: Tue, 01 Jan 2030 00:00:00 +0000"]
    lines += [f"Cc: {cc}"] if cc else []
    lines += [f"X-Trace: {trace}"] if trace else []
    lines += [f"Message-ID: <{message_id}>"] if message_id else []
    lines += [f"In-Reply-To: <{in_reply_to}>"] if in_reply_to else []
    lines += ["References: " + " ".join(f"<{one}>" for one in references)] if references else []
    return ("\r\n".join(lines) + "\r\n\r\n" + body + "\r\n").encode()


@dataclass(slots=True)
class Pen:
    """Writes copies of messages for mailboxes."""

    ids: IdGenerator
    clock: Clock

    def copy(self, box: Box, raw: bytes, **changes: Any) -> NewMessage:
        """A copy of `raw` for the mailbox; `changes` are fields of NewMessage."""
        content: Content = changes.pop("content", None) or describe(TRACE, raw, self.clock.now())
        message_id = self.ids.new("msg")
        message = NewMessage(
            id=message_id,
            mailbox=box.ref,
            source=Source.MX,
            direction=Direction.INBOUND,
            blob_key=f"t/{box.tenant_id}/i/{box.identity_id}/m/{message_id}/raw.eml",
            content=content,
            thread_id=self.ids.new("thr"),
            event_id=self.ids.new("evt"),
            attachment_ids=tuple(self.ids.new("att") for _ in content.attachments),
            received_at=self.clock.now(),
            internal_date=self.clock.now().replace(microsecond=0),
            delivered_to=box.address,
            announce=message_received,
        )
        return replace(message, **changes)

    async def store(self, conn: Connection, *groups: Sequence[NewMessage]) -> list[GroupOutcome]:
        """`append` in a transaction of its own."""
        await conn.execute(append_sql.BEGIN)
        try:
            outcomes = await append(conn, groups, now=self.clock.now())
            await conn.execute("COMMIT")
        except BaseException:
            await conn.execute("ROLLBACK")
            raise
        return outcomes


async def inbox(conn: Connection, ref: MailboxRef) -> FolderKey:
    return FolderKey(
        await conn.fetchval("SELECT id FROM folders WHERE mailbox_id = $1 AND special_use = 'inbox'", ref.mailbox_id)
    )


_RECOUNT = """
SELECT count(*) AS messages, count(*) FILTER (WHERE NOT '$seen' = ANY (flags)) AS unseen,
       count(*) FILTER (WHERE '$deleted' = ANY (flags)) AS deleted, coalesce(sum(size), 0) AS bytes,
       coalesce(max(uid), 0) AS uid, coalesce(max(modseq), 0) AS modseq
FROM placements WHERE folder_id = $1
"""

_THREADS = """
SELECT t.seq, t.message_count, t.unread_count,
       (SELECT count(*) FROM messages m WHERE m.mailbox_id = t.mailbox_id AND m.thread_seq = t.seq) AS messages,
       (SELECT count(*) FROM messages m JOIN placements p ON p.message_id = m.id
        WHERE m.mailbox_id = t.mailbox_id AND m.thread_seq = t.seq AND m.direction = 'inbound'
        AND NOT '$seen' = ANY (p.flags)) AS unread
FROM threads t WHERE t.mailbox_id = $1
"""

# Messages that are neither in the word index nor in its tail.
_NOWHERE = """
SELECT count(*) FROM messages m WHERE m.mailbox_id = $1
AND NOT EXISTS (SELECT FROM message_words w WHERE w.message_id = m.id)
AND NOT EXISTS (SELECT FROM word_tasks t WHERE t.mailbox_id = $1 AND m.id BETWEEN t.first_id AND t.last_id)
"""


async def check_mailbox(conn: Connection, ref: MailboxRef) -> None:
    """Every counter equals a recount; logs have no gaps; UIDs lie below UIDNEXT."""
    key = ref.mailbox_id
    box = await conn.fetchrow("SELECT * FROM mailboxes WHERE id = $1", key)
    assert box is not None
    for folder in await conn.fetch("SELECT * FROM folders WHERE mailbox_id = $1", key):
        counted = await conn.fetchrow(_RECOUNT, folder["id"])
        assert counted is not None
        assert (folder["message_count"], folder["unseen_count"]) == (counted["messages"], counted["unseen"])
        assert (folder["deleted_count"], folder["total_bytes"]) == (counted["deleted"], counted["bytes"])
        assert counted["uid"] < folder["uid_next"]
        assert counted["modseq"] <= folder["highest_modseq"] <= box["modseq"]
    placed = await conn.fetchval("SELECT coalesce(sum(size), 0) FROM placements WHERE mailbox_id = $1", key)
    assert box["used_bytes"] == placed
    changes = [r["seq"] for r in await conn.fetch("SELECT seq FROM changes WHERE mailbox_id = $1 ORDER BY seq", key)]
    assert changes == list(range(1, box["change_seq"] + 1))
    events = await conn.fetch(
        "SELECT sequence FROM events WHERE owner_kind = 'mailbox' AND owner_id = $1 ORDER BY sequence",
        box["identity_public_id"],
    )
    assert [r["sequence"] for r in events] == list(range(1, box["event_seq"] + 1))
    threads = await conn.fetch(_THREADS, key)
    for thread in threads:
        assert (thread["message_count"], thread["unread_count"]) == (thread["messages"], thread["unread"])
        assert thread["seq"] < box["next_thread_seq"]
    tail = await conn.fetchval(_NOWHERE, key)
    assert tail == 0
