"""Events put into the outbox inside the transaction that makes them true."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from postroom.events.catalogue import envelope
from postroom.mailbox.statuses import take_event_sequences
from postroom.mailbox.writing import MailboxWrite

_INSERT: Final = """
INSERT INTO events (public_id, type, tenant_id, identity_id, message_id, owner_kind, owner_id, sequence, payload,
  occurred_at)
SELECT e.public_id, e.type, $1, $2, e.message_id, 'mailbox', $3, e.sequence, e.payload, $4
FROM unnest($5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bytea[])
  AS e (public_id, type, message_id, sequence, payload)
"""


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """An event about a message of the mailbox, `message` its row's key."""

    message: int
    type: str
    data: Mapping[str, Any]


async def put(
    write: MailboxWrite,
    events: Sequence[MessageEvent],
    *,
    tenant_id: str,
    identity_id: str,
    occurred_at: datetime,
    new_id: Callable[[str], str],
) -> None:
    """Store them in order, numbered by the mailbox's sequence; the ids are the public ones of tenant and identity."""
    if not events:
        return
    sequences = await take_event_sequences(write, len(events))
    ids = [new_id("evt") for _ in events]
    payloads = [
        envelope(
            event_id=event_id,
            kind=event.type,
            occurred_at=occurred_at,
            tenant_id=tenant_id,
            identity_id=identity_id,
            sequence=sequence,
            data=event.data,
        )
        for event_id, event, sequence in zip(ids, events, sequences, strict=True)
    ]
    await write.conn.execute(
        _INSERT,
        write.ref.tenant_id,
        write.ref.mailbox_id,
        identity_id,
        occurred_at,
        ids,
        [event.type for event in events],
        [event.message for event in events],
        list(sequences),
        payloads,
    )
