"""Events put into the outbox inside the transaction that makes them true."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from postroom.events.catalogue import envelope, timestamp
from postroom.mailbox.writing import MailboxWrite

# An array for each column.
_INSERT: Final = """
INSERT INTO events (public_id, type, tenant_id, identity_id, owner_kind, owner_id, message_id, sequence, payload,
  occurred_at)
SELECT e.public_id, e.type, e.tenant_id, e.mailbox_id, 'mailbox', e.owner, e.message_id, e.sequence, e.payload, $1
FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[], $8::bigint[], $9::bytea[])
  AS e (public_id, type, tenant_id, mailbox_id, owner, message_id, sequence, payload)
"""


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """An event about a message of the mailbox that is written, `message` its row's key; the other ids are the public
    ones of the mailbox's tenant and identity."""

    write: MailboxWrite
    tenant_id: str
    identity_id: str
    message: int
    type: str
    data: Mapping[str, Any]


async def put(events: Sequence[MessageEvent], *, occurred_at: datetime, new_id: Callable[[str], str]) -> None:
    """Store them in order, each numbered by its mailbox's sequence, in the transaction that writes these mailboxes."""
    if not events:
        return
    at = timestamp(occurred_at)
    rows = [_row(event, at, new_id("evt")) for event in events]
    await events[0].write.conn.execute(_INSERT, occurred_at, *zip(*rows, strict=True))


def _row(event: MessageEvent, occurred_at: str, event_id: str) -> tuple[object, ...]:
    ref = event.write.ref
    (sequence,) = event.write.take_event_sequences(1)
    payload = envelope(
        event_id=event_id,
        kind=event.type,
        occurred_at=occurred_at,
        tenant_id=event.tenant_id,
        identity_id=event.identity_id,
        sequence=sequence,
        data=event.data,
    )
    owner = (ref.tenant_id, ref.mailbox_id, event.identity_id)
    return event_id, event.type, *owner, event.message, sequence, payload
