"""SQL of what was accepted for sending. Whoever changes outcomes later is in `outcomes`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from postroom.db.pool import Connection
from postroom.mailbox.models import MailboxRef
from postroom.outbound.models import (
    Accepted,
    Delivery,
    Operation,
    OutboundState,
    Outgoing,
    RecipientField,
    RouteKind,
    SendKind,
    Status,
)

THREAD_LEASE: Final = timedelta(seconds=120)
"""How long a thread's send lock holds by itself (outbound §7)."""

_INSERT: Final = """
WITH m AS (
  SELECT tenant_id, id, mailbox_id FROM messages WHERE tenant_id = $1 AND public_id = $2
), o AS (
  INSERT INTO outbound_messages (tenant_id, message_id, mailbox_id, operation, kind, person_id, envelope_from, reply_to,
    hop, metadata, wire_key, wire_size, eight_bit, smtputf8, dsn_ret, dsn_envid, accepted_at)
  SELECT tenant_id, id, mailbox_id, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16 FROM m
)
INSERT INTO deliveries (tenant_id, message_id, mailbox_id, position, recipient, field, domain, route, status, reason,
  smtp_response, dsn_notify, dsn_orcpt, created_at, updated_at, finished_at, next_attempt_at)
SELECT m.tenant_id, m.id, m.mailbox_id, r.position, r.recipient, r.field, r.domain, r.route,
  CASE WHEN r.suppressed IS NULL THEN 'queued' ELSE 'suppressed' END, r.suppressed, 'policy: ' || r.suppressed,
  string_to_array(r.notify, ' '), r.orcpt, $16, $16,
  CASE WHEN r.suppressed IS NOT NULL THEN $16::timestamptz END, CASE WHEN r.suppressed IS NULL THEN $16::timestamptz END
FROM m, unnest($17::smallint[], $18::text[], $19::text[], $20::text[], $21::text[], $22::text[], $23::text[],
  $24::text[]) AS r (position, recipient, field, domain, route, suppressed, notify, orcpt)
"""

_LOCK_THREAD: Final = """
UPDATE threads SET lock_owner = $3, lock_until = $4 WHERE tenant_id = $1 AND public_id = $2
"""

_ANSWER: Final = """
UPDATE send_ledger SET message = $5, response = $6
WHERE tenant_id = $1 AND mailbox_id = $2 AND key_hash = $3 AND holder = $4 AND message IS NULL
"""

_STATES: Final = """
SELECT m.public_id, o.operation, o.kind, o.reply_to, o.provider, o.provider_message_id, o.metadata,
       o.sent_from
FROM messages m JOIN outbound_messages o ON o.tenant_id = m.tenant_id AND o.message_id = m.id
WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.public_id = ANY ($3::text[])
"""

_DELIVERIES: Final = """
SELECT m.public_id, d.id, d.recipient, d.field, d.route, d.status, d.reason, d.smtp_code, d.enhanced_code,
       d.smtp_response, d.bounce_type, d.remote_mx, d.tries, d.next_attempt_at, d.updated_at
FROM messages m JOIN deliveries d ON d.tenant_id = m.tenant_id AND d.message_id = m.id
WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.public_id = ANY ($3::text[]) ORDER BY d.message_id, d.position
"""


class LeaseLost(Exception):
    """Another request holds the Idempotency-Key by now."""


async def insert(conn: Connection, outgoing: Outgoing, accepted: Accepted, *, wire_key: str) -> None:
    """What belongs to the message that the transaction has just stored. Raises LeaseLost."""
    ledger, now = outgoing.ledger, accepted.at
    if ledger is not None:
        done = await conn.execute(
            _ANSWER,
            outgoing.mailbox.tenant_id,
            outgoing.mailbox.mailbox_id,
            ledger.key_hash,
            ledger.holder,
            outgoing.id,
            dict(ledger.answer(accepted)),
        )
        if done != "UPDATE 1":
            raise LeaseLost
    rows = [
        (
            position,
            recipient.address,
            recipient.field.value,
            group_of(recipient.route, recipient.domain),
            recipient.route.value,
            recipient.suppressed,
            None if recipient.dsn_notify is None else " ".join(recipient.dsn_notify),
            recipient.dsn_orcpt,
        )
        for position, recipient in enumerate(outgoing.recipients)
    ]
    await conn.execute(
        _INSERT,
        outgoing.mailbox.tenant_id,
        outgoing.id,
        outgoing.operation.value,
        outgoing.kind.value,
        outgoing.person_id,
        outgoing.envelope_from,
        outgoing.reply_to,
        outgoing.hop,
        dict(outgoing.metadata),
        wire_key,
        len(outgoing.wire),
        outgoing.eight_bit,
        outgoing.smtputf8,
        outgoing.dsn_ret,
        outgoing.dsn_envid,
        now,
        *zip(*rows, strict=True),
    )
    if outgoing.lock_thread:
        await conn.execute(
            _LOCK_THREAD, outgoing.mailbox.tenant_id, accepted.thread_id, outgoing.id, now + THREAD_LEASE
        )


def group_of(route: RouteKind, domain: str) -> str:
    """What deliveries of one message share an attempt: those of a domain, or all that go to one relay (outbound §9)."""
    return domain if route in (RouteKind.DIRECT, RouteKind.LOCAL) else ""


async def states(conn: Connection, ref: MailboxRef, message_ids: Sequence[str]) -> dict[str, OutboundState]:
    """The outbound state of those of the messages that were accepted for sending."""
    arguments: tuple[Any, ...] = (ref.tenant_id, ref.mailbox_id, list(message_ids))
    deliveries: dict[str, list[Delivery]] = {}
    for row in await conn.fetch(_DELIVERIES, *arguments):
        deliveries.setdefault(row["public_id"], []).append(
            Delivery(
                id=row["id"],
                recipient=row["recipient"],
                field=RecipientField(row["field"]),
                route=RouteKind(row["route"]),
                status=Status(row["status"]),
                reason=row["reason"],
                smtp_code=row["smtp_code"],
                enhanced_code=row["enhanced_code"],
                smtp_response=row["smtp_response"],
                bounce_type=row["bounce_type"],
                remote_mx=row["remote_mx"],
                tries=row["tries"],
                next_attempt_at=row["next_attempt_at"],
                updated_at=row["updated_at"],
            )
        )
    return {
        row["public_id"]: OutboundState(
            operation=Operation(row["operation"]),
            kind=SendKind(row["kind"]),
            reply_to=row["reply_to"],
            provider=row["provider"],
            provider_message_id=row["provider_message_id"],
            metadata=row["metadata"],
            deliveries=tuple(deliveries.get(row["public_id"], ())),
            sent_from=row["sent_from"],
        )
        for row in await conn.fetch(_STATES, *arguments)
    }
