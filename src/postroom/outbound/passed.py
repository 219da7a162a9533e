"""SQL of what was passed on: so that nobody gets the same twice, and no author is flooded with what comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from postroom.db.pool import Connection
from postroom.mailbox.models import MailboxRef
from postroom.outbound.models import Status

NOTHING_PASSED: Final = tuple(
    status.value for status in (Status.BOUNCED, Status.FAILED, Status.REJECTED, Status.CANCELED, Status.SUPPRESSED)
)
"""States of a delivery in which its recipient has not had the mail. Who sends it again is not told that they have."""
MAX_RETURNS: Final = 30
"""Bounces that one tenant passes back to one author in an hour."""

# One look-up for each, whatever a plan that was made while the tables were small thinks of it (`outcome_sql`).
# $3: states in which a delivery has passed nothing on.
_MISSING: Final = """
SELECT n.digest FROM unnest($2::bytea[]) AS n (digest)
LEFT JOIN LATERAL (
  SELECT f.tenant_id, f.delivery_id FROM forwards f WHERE f.tenant_id = $1 AND f.digest = n.digest LIMIT 1
) f ON true
LEFT JOIN LATERAL (
  SELECT d.status FROM deliveries d WHERE d.tenant_id + 0 = f.tenant_id AND d.id = f.delivery_id LIMIT 1
) d ON true
WHERE f.tenant_id IS NULL OR d.status = ANY ($3)
"""
# $2 the message, $3 now, $4 as above, $5 digests, $6 recipients. Of two at once the second waits for the first one's
# transaction, and does not see its delivery: to the second it has not failed.
_RECORD: Final = """
INSERT INTO forwards AS f (tenant_id, digest, passed_at, delivery_id)
SELECT $1, n.digest, $3, d.id
FROM (SELECT m.id FROM messages m WHERE m.tenant_id + 0 = $1 AND m.public_id = $2 LIMIT 1) m
CROSS JOIN unnest($5::bytea[], $6::text[]) AS n (digest, recipient)
CROSS JOIN LATERAL (
  SELECT d.id FROM deliveries d WHERE d.tenant_id = $1 AND d.message_id = m.id AND d.recipient = n.recipient LIMIT 1
) d
ON CONFLICT (tenant_id, digest) DO UPDATE SET passed_at = EXCLUDED.passed_at, delivery_id = EXCLUDED.delivery_id
WHERE (SELECT d.status FROM deliveries d WHERE d.tenant_id + 0 = f.tenant_id AND d.id = f.delivery_id) = ANY ($4)
"""
# $2 messages. Without its delivery nobody would know any more that it failed.
_FREE: Final = """
DELETE FROM forwards f USING unnest($2::bigint[]) AS k (message_id)
CROSS JOIN LATERAL (
  SELECT d.id, d.status FROM deliveries d WHERE d.tenant_id = $1 AND d.message_id = k.message_id OFFSET 0
) d
WHERE f.tenant_id + 0 = $1 AND f.delivery_id = d.id AND d.status = ANY ($3)
"""
_FORGET: Final = "DELETE FROM forwards WHERE passed_at < $1"

_RETURNED: Final = "SELECT passed FROM forward_returns WHERE tenant_id = $1 AND author = $2 AND hour = $3"
_COUNT_RETURN: Final = """
INSERT INTO forward_returns AS r (tenant_id, author, hour, passed) VALUES ($1, $2, $3, 1)
ON CONFLICT (tenant_id, author, hour) DO UPDATE SET passed = r.passed + 1 WHERE r.passed < $4
"""
_FORGET_RETURNS: Final = "DELETE FROM forward_returns WHERE hour < $1"


async def missing(conn: Connection, tenant_id: int, digests: Sequence[bytes]) -> list[bytes]:
    """Those that nobody has passed on, or whose delivery came to nothing."""
    return [row["digest"] for row in await conn.fetch(_MISSING, tenant_id, digests, NOTHING_PASSED)]


async def record(
    conn: Connection, ref: MailboxRef, message_id: str, passed: Sequence[tuple[bytes, str]], now: datetime
) -> bool:
    """Remember digests with the recipients of the message that passes them on, which the transaction has just stored.
    False, with some of them remembered perhaps, when one of them was passed on meanwhile."""
    digests, recipients = [digest for digest, _ in passed], [recipient for _, recipient in passed]
    done = await conn.execute(_RECORD, ref.tenant_id, message_id, now, NOTHING_PASSED, digests, recipients)
    return done == f"INSERT 0 {len(passed)}"


async def free(conn: Connection, tenant_id: int, message_ids: Sequence[int]) -> None:
    """Forget what failed with these messages, whose rows are about to go."""
    await conn.execute(_FREE, tenant_id, message_ids, NOTHING_PASSED)


async def forget(conn: Connection, *, passed_before: datetime, now: datetime) -> None:
    """Forget what is too old to matter, of all tenants."""
    await conn.execute(_FORGET, passed_before)
    # Another process's clock may be in the hour before.
    await conn.execute(_FORGET_RETURNS, _hour(now - timedelta(hours=1)))


async def may_return(conn: Connection, tenant_id: int, author: str, now: datetime) -> bool:
    """Whether the author may be passed another bounce in this hour."""
    passed = await conn.fetchval(_RETURNED, tenant_id, _author(author), _hour(now))
    return (passed or 0) < MAX_RETURNS


async def count_returns(conn: Connection, tenant_id: int, authors: Iterable[str], now: datetime) -> bool:
    """Count a bounce for each of the authors; False when there were too many. The row is the lock, so that processes
    together pass no more; those who raise several do it in one order."""
    for author in sorted({_author(author) for author in authors}):
        if await conn.execute(_COUNT_RETURN, tenant_id, author, _hour(now), MAX_RETURNS) != "INSERT 0 1":
            return False
    return True


def _author(address: str) -> bytes:
    """By which an author is known: relays may have changed the case of what names them."""
    return hashlib.sha256(address.lower().encode("utf-8", "surrogatepass")).digest()


def _hour(moment: datetime) -> datetime:
    """Its beginning, by UTC."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
