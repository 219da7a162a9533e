"""Old rows of the change log go (A7): a client that is further behind is told everything.

The log loses its beginning only, so that what is left of it has no gaps, even where the clock stepped back between two
changes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from postroom.db.pool import Database

MAX_MAILBOXES: Final = 200
MAX_ROWS: Final = 5_000

_OLD: Final = """
SELECT DISTINCT tenant_id, mailbox_id FROM (
  SELECT tenant_id, mailbox_id FROM changes WHERE at < $1 LIMIT 100000
) old ORDER BY mailbox_id LIMIT $2
"""

_LOCK: Final = "SELECT FROM mailboxes WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE SKIP LOCKED"

_PRUNE: Final = """
WITH gone AS (
  DELETE FROM changes WHERE tenant_id = $1 AND mailbox_id = $2 AND seq IN (
    SELECT seq FROM changes WHERE tenant_id = $1 AND mailbox_id = $2 AND seq < coalesce((
      SELECT seq FROM changes WHERE tenant_id = $1 AND mailbox_id = $2 AND at >= $3 ORDER BY seq LIMIT 1
    ), 9223372036854775807) ORDER BY seq LIMIT $4
  ) RETURNING folder_id, modseq
), kept AS (
  UPDATE folders f SET pruned_modseq = greatest(f.pruned_modseq, g.modseq)
  FROM (SELECT folder_id, max(modseq) AS modseq FROM gone GROUP BY folder_id) g
  WHERE f.tenant_id = $1 AND f.id = g.folder_id
)
SELECT count(*) FROM gone
"""


async def prune_changes(database: Database, before: datetime) -> int:
    """Delete changes older than `before`, a bounded number; how many. Mailboxes that are being written are left."""
    async with database.acquire() as conn:
        mailboxes = await conn.fetch(_OLD, before, MAX_MAILBOXES)
    total = 0
    for row in mailboxes:
        async with database.transaction() as conn:
            if await conn.fetchrow(_LOCK, row["tenant_id"], row["mailbox_id"]) is not None:
                total += await conn.fetchval(_PRUNE, row["tenant_id"], row["mailbox_id"], before, MAX_ROWS)
    return total
