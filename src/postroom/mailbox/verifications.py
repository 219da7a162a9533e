"""Codes and links that confirm a sign-up: who waits for them gets each for a short while (inbound.md §20, §21; E4).

Rows come with the message, of authenticated mail only. The first release consumes one; within an hour of it the same
may be asked for again, since an answer can be lost on its way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from postroom.db.pool import Database
from postroom.mailbox.models import MailboxRef

AGAIN: Final = timedelta(hours=1)
MAX_ROWS: Final = 5_000

_RELEASE: Final = """
UPDATE verifications v SET consumed_at = coalesce(v.consumed_at, $5)
FROM messages m
WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.public_id = $3 AND m.verdict = 'pass' AND m.status = 'received'
  AND v.tenant_id = m.tenant_id AND v.message_id = m.id AND v.sender_domain = $4
  AND v.expires_at > $5 AND (v.consumed_at IS NULL OR v.consumed_at > $6)
RETURNING v.kind, v.value
"""

_PRUNE: Final = """
WITH old AS (
  SELECT tenant_id, message_id, kind FROM verifications WHERE expires_at <= $1
  UNION ALL
  SELECT tenant_id, message_id, kind FROM verifications WHERE consumed_at <= $2 AND expires_at > $1
  LIMIT $3
), gone AS (
  DELETE FROM verifications v USING old
  WHERE v.tenant_id = old.tenant_id AND v.message_id = old.message_id AND v.kind = old.kind RETURNING 1
)
SELECT count(*) FROM gone
"""


@dataclass(frozen=True, slots=True)
class Released:
    code: str | None = field(repr=False)
    link: str | None = field(repr=False)
    sender_domain: str


async def release(
    database: Database, ref: MailboxRef, message_id: str, sender_domain: str, now: datetime
) -> Released | None:
    """What the message confirms, if it came from `sender_domain` (an organisational domain) and is not spent."""
    async with database.transaction() as conn:
        rows = await conn.fetch(_RELEASE, ref.tenant_id, ref.mailbox_id, message_id, sender_domain, now, now - AGAIN)
    if not rows:
        return None
    found = {row["kind"]: row["value"] for row in rows}
    return Released(found.get("code"), found.get("link"), sender_domain)


async def prune_verifications(database: Database, now: datetime) -> int:
    """Delete what is expired, or was consumed an hour ago, a bounded number; how many."""
    async with database.transaction() as conn:
        count: int = await conn.fetchval(_PRUNE, now, now - AGAIN, MAX_ROWS)
    return count
