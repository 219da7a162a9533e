"""Threads that are written from the platform address, since the address that they were written from had a domain that
failed; and when that ends (outbound §6.2; FR-DOM-6)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from postroom.db.pool import Database
from postroom.mailbox.writing import MailboxWrite

SENT_VIA_FALLBACK: Final = "sent_via_fallback"
"""The fact that a message left from the platform address, though it was written from another."""
QUIET: Final = timedelta(hours=72)
MAX_LIFTED: Final = 500
"""Threads that one run looks at."""

_MARK: Final = """
WITH m AS (
  UPDATE messages m SET facts = m.facts || $4::text
  WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.id = $3 AND NOT $4::text = ANY (m.facts)
  RETURNING m.thread_seq
)
UPDATE threads t SET fallback_pinned = true FROM m
WHERE t.tenant_id = $1 AND t.mailbox_id = $2 AND t.seq = m.thread_seq
"""

# The domain that failed is that of the newest message that left by fallback: its row says what it was written from.
# Where there is none any more, nobody remembers why.
_LIFT: Final = """
WITH quiet AS (
  SELECT t.tenant_id, t.mailbox_id, t.seq FROM threads t
  WHERE t.fallback_pinned AND t.last_at <= $1 ORDER BY t.last_at LIMIT $2
)
UPDATE threads t SET fallback_pinned = false
FROM quiet q LEFT JOIN LATERAL (
  SELECT m.from_address FROM messages m
  WHERE m.tenant_id = q.tenant_id AND m.mailbox_id = q.mailbox_id AND m.thread_seq = q.seq AND $3::text = ANY (m.facts)
  ORDER BY m.received_at DESC, m.id DESC LIMIT 1
) m ON true
WHERE t.tenant_id = q.tenant_id AND t.mailbox_id = q.mailbox_id AND t.seq = q.seq
  AND t.fallback_pinned AND t.last_at <= $1
  AND (m.from_address IS NULL OR EXISTS (
    SELECT FROM domains d WHERE d.name = lower(substring(m.from_address FROM '[^@]*$'))
      AND (d.tenant_id = t.tenant_id OR d.tenant_id IS NULL) AND d.status = 'healthy' AND d.enabled
  ))
"""


async def pin(write: MailboxWrite, message_key: int) -> None:
    """Mark a message as one that leaves from the platform address, and with it the thread that it is in."""
    await write.conn.execute(_MARK, write.ref.tenant_id, write.ref.mailbox_id, message_key, SENT_VIA_FALLBACK)


async def lift_pins(database: Database, now: datetime) -> int:
    """Unpin threads that were quiet for `QUIET` and whose domain is healthy again, a bounded number; how many."""
    async with database.acquire() as conn:
        done = await conn.execute(_LIFT, now - QUIET, MAX_LIFTED, SENT_VIA_FALLBACK)
    return int(done.rpartition(" ")[2])
