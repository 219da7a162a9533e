"""Idempotency of sends (outbound §3, G1): one e-mail for one key, whatever is repeated, raced or killed.

A request *begins* and so holds the key for 45 s; acceptance records its answer in the transaction that stores the
message, and only there; every other end gives the key back. Whoever did not come to an end is taken over from.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NoReturn
from uuid import UUID, uuid4

import asyncpg

from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.db.pool import Connection, Database
from postroom.mailbox.models import MailboxRef
from postroom.outbound.models import Operation

LEASE: Final = timedelta(seconds=45)
"""How long a request holds a key; a send takes 30 s at the most, and its acceptance a few more."""
LIFE: Final = timedelta(days=30)
RETRY_SECONDS: Final = 1.0

_KEY: Final = re.compile(r"[\x20-\x7e]{1,255}")

_LOOK: Final = """
SELECT fingerprint, message, response, lease_until, expires_at FROM send_ledger
WHERE tenant_id = $1 AND mailbox_id = $2 AND key_hash = $3
"""
# Of two that see the same lapsed row, the second finds it taken when the first has committed.
_RESERVE: Final = """
INSERT INTO send_ledger (tenant_id, mailbox_id, key_hash, fingerprint, operation, holder, lease_until, created_at,
                         expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (tenant_id, mailbox_id, key_hash) DO UPDATE SET
  fingerprint = excluded.fingerprint, operation = excluded.operation, holder = excluded.holder,
  lease_until = excluded.lease_until, message = NULL, response = NULL, created_at = excluded.created_at,
  expires_at = excluded.expires_at
WHERE send_ledger.expires_at <= $8 OR (send_ledger.message IS NULL AND send_ledger.lease_until <= $8)
RETURNING holder
"""
_RELEASE: Final = """
DELETE FROM send_ledger
WHERE tenant_id = $1 AND mailbox_id = $2 AND key_hash = $3 AND holder = $4 AND message IS NULL
"""
_PRUNE: Final = """
DELETE FROM send_ledger WHERE (tenant_id, mailbox_id, key_hash) IN (
  SELECT tenant_id, mailbox_id, key_hash FROM send_ledger WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)
"""


class NotCanonical(ValueError):
    """The octets are no JSON object of which everybody reads the same: a member stands twice, or a number is none."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The key is this request's until it is accepted, released, or 45 s old and taken over."""

    ref: MailboxRef
    key_hash: str
    fingerprint: str
    holder: UUID


@dataclass(frozen=True, slots=True)
class Recorded:
    """The key was used for the same request: its message, and the answer without texts."""

    message_id: str
    response: Mapping[str, Any]


def check_key(key: str) -> str:
    """The key, if it is 1 to 255 printable ASCII characters, spaces among them; else `invalid_idempotency_key`."""
    if _KEY.fullmatch(key) is None:
        raise PostroomError("invalid_idempotency_key")
    return key


def key_hash(key: str) -> str:
    """What is kept of a key. Raises `invalid_idempotency_key`."""
    return hashlib.sha256(check_key(key).encode("ascii")).hexdigest()


def fingerprint(body: Any, operation: Operation, target: str) -> str:
    """What makes two requests the same (outbound §3.2). `body` as it was received, without defaults; `target` is the
    identity, for an answer or a forward followed by `/` and the message."""
    # Sorting by code points is sorting by the octets of UTF-8.
    canonical = json.dumps(
        {"body": body, "operation": operation.value, "target": target},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def fingerprint_json(octets: bytes, operation: Operation, target: str) -> str:
    """`fingerprint` of a body in JSON. Raises NotCanonical. Linear in the octets, and slow: large ones are not for the
    event loop."""
    try:
        body = json.loads(octets, object_pairs_hook=_members, parse_constant=_refuse)
        return fingerprint(body, operation, target)
    except (ValueError, RecursionError) as error:
        raise NotCanonical from error


def try_fingerprint(octets: bytes, operation: Operation, target: str) -> str | None:
    """`fingerprint_json` for a child process, where an error would look like a fault of ours: None for NotCanonical."""
    try:
        return fingerprint_json(octets, operation, target)
    except NotCanonical:
        return None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotCanonical
    return members


def _refuse(constant: str) -> NoReturn:
    raise NotCanonical


class Ledger:
    """The keys of all mailboxes of a deployment."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def begin(self, ref: MailboxRef, hashed: str, print_: str, operation: Operation) -> Reservation | Recorded:
        """Hold the key `hashed` for a request with the fingerprint `print_`, or what it led to before.

        Raises `idempotency_conflict` when the key led to a message for another request, `request_in_progress` while one
        runs: only an accepted one is known to be the key's.
        """
        now = self._clock.now()
        holder = uuid4()
        async with self._database.acquire() as conn:
            for attempt in range(2):
                row = await conn.fetchrow(_LOOK, ref.tenant_id, ref.mailbox_id, hashed)
                if row is not None and row["expires_at"] > now:
                    if row["message"] is not None:
                        return _recorded(row, print_)
                    if row["lease_until"] > now:
                        break
                if attempt == 0:
                    values = (print_, operation.value, holder, now + LEASE, now, now + LIFE)
                    if await conn.fetchval(_RESERVE, ref.tenant_id, ref.mailbox_id, hashed, *values) is not None:
                        return Reservation(ref, hashed, print_, holder)
        raise PostroomError("request_in_progress", retry_after=RETRY_SECONDS)

    async def prune(self, limit: int = 1000) -> int:
        """Delete at most `limit` keys that have expired; how many."""
        async with self._database.acquire() as conn:
            tag = await conn.execute(_PRUNE, self._clock.now(), limit)
        return int(tag.rpartition(" ")[2])


async def release(conn: Connection, reservation: Reservation) -> None:
    """Nothing was sent: the key may be used again, for anything. Leaves what was accepted after all."""
    ref = reservation.ref
    await conn.execute(_RELEASE, ref.tenant_id, ref.mailbox_id, reservation.key_hash, reservation.holder)


def _recorded(row: asyncpg.Record, print_: str) -> Recorded:
    if row["fingerprint"] != print_:
        raise PostroomError("idempotency_conflict", details={"original_message_id": row["message"]})
    return Recorded(row["message"], row["response"])
