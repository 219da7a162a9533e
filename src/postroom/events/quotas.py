"""`quota.warning`: that most, or all, of what may be sent in a day is used up (events-webhooks-errors §4)."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from postroom.base.ids import ulid_of
from postroom.db.pool import Connection
from postroom.events.catalogue import envelope
from postroom.events.registry import EventType
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.writing import next_event_sequence

QUOTA_WARNING: Final = EventType.QUOTA_WARNING.value
THRESHOLDS: Final = (80, 100)
"""Percent of a limit at which it is told of, once a day each."""

_PURPOSE: Final = b"quota.warning"
_INSERT: Final = """
INSERT INTO events (public_id, type, tenant_id, identity_id, owner_kind, owner_id, sequence, payload, occurred_at)
VALUES ($1, $2, $3, $4, 'mailbox', $5, $6, $7, $8)
"""


@dataclass(frozen=True, slots=True)
class Warned:
    """What a warning says: `used` of `limit` recipients of the day. The mailbox is whose event it is, named by its
    keys and by its public ids."""

    mailbox: MailboxRef
    tenant_id: str
    identity_id: str
    used: int
    limit: int
    scope: Literal["identity", "tenant"] = "identity"


def warning_id(hash_key: bytes, counted: str, day: datetime, percent: int) -> str:
    """The id of the one warning of that threshold, day (its midnight) and counter: whoever comes upon it finds the same
    (§1). `counted` says in the words of who counts what is counted, and no other counter has the same.
    """
    fields = f"{counted}\0{day.date().isoformat()}\0{percent}".encode()
    drawn = hmac.digest(hash_key, _PURPOSE + b"\0" + fields, "sha256")[:10]
    return f"evt_{ulid_of(day, drawn)}"


def mark(limit: int, percent: int) -> int:
    """The count at which so many percent are reached."""
    return -(-limit * percent // 100)


async def warn(conn: Connection, event_ids: Collection[str], warned: Warned, now: datetime) -> None:
    """Write a warning for each id, in the transaction that holds the mailbox. Whoever calls it has made sure that none
    of them was written before, and that nobody else writes them meanwhile."""
    for event_id in event_ids:
        sequence = await next_event_sequence(conn, warned.mailbox)
        payload = envelope(
            event_id=event_id,
            kind=QUOTA_WARNING,
            occurred_at=now,
            tenant_id=warned.tenant_id,
            identity_id=warned.identity_id,
            sequence=sequence,
            data={"metric": "sends", "used": warned.used, "limit": warned.limit, "scope": warned.scope},
        )
        owner = (warned.mailbox.tenant_id, warned.mailbox.mailbox_id, warned.identity_id)
        await conn.execute(_INSERT, event_id, QUOTA_WARNING, *owner, sequence, payload, now)
