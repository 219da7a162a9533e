"""As whom an account may send, and how much it has sent lately (mail-server A3, A7). SQL.

An account is a person, or an agent by one of its keys. It is looked up again for each message, so that a grant, a key
or a person that is gone ends the sending of sessions that are open.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from postroom.accounts.models import Mode, Principal, PrincipalKind, TenantStatus
from postroom.accounts.permissions import Permission
from postroom.accounts.policy import StoredPolicy
from postroom.accounts.store.reach import partner_status
from postroom.db.pool import Connection
from postroom.directory.models import AddressStatus, IdentityKind, IdentityStatus
from postroom.mailbox.models import Direction, MailboxRef
from postroom.mailbox.rules import without_token

HOUR: Final = timedelta(hours=1)

_OWNED: Final = """
SELECT a.address, a.status AS address_status, a.tenant_id, a.identity_id, i.public_id AS identity_public_id, i.kind,
       i.status AS identity_status, i.send_policy_json, i.owner_name, i.owner_email, t.public_id AS tenant_public_id,
       t.status AS tenant_status, t.mode, d.status AS domain_status, t.policy_json,
       t.policy_ceilings_json, t.partner_ceilings_json,
       t.sending_paused_at IS NOT NULL OR d.sending_paused_at IS NOT NULL AS sending_paused
FROM addresses a
JOIN identities i ON i.tenant_id = a.tenant_id AND i.id = a.identity_id
JOIN tenants t ON t.id = a.tenant_id
JOIN domains d ON d.id = a.domain_id
WHERE a.tenant_id = $1 AND a.address = ANY ($2::text[]) AND a.status IN ('pending', 'active', 'retiring')
  AND i.status IN ('active', 'paused') AND NOT i.is_system AND d.enabled
  AND CASE $3::text
    WHEN 'person' THEN EXISTS (
      SELECT FROM mailbox_grants g JOIN people p ON p.id = g.person_id
      WHERE g.tenant_id = a.tenant_id AND g.mailbox_id = i.id AND g.person_id = $4 AND g.role IN ('owner', 'full')
        AND p.enabled)
    WHEN 'key' THEN EXISTS (
      SELECT FROM api_keys k
      WHERE k.tenant_id = a.tenant_id AND k.identity_id = i.id AND k.id = $4 AND k.revoked_at IS NULL
        AND (k.expires_at IS NULL OR k.expires_at > $5) AND $6::text = ANY (k.permissions))
      AND coalesce({partner_status}, 'active') = 'active'
    ELSE false END
""".replace("{partner_status}", partner_status("a.tenant_id", "NULL::bigint"))

_USED: Final = """
SELECT count(*) FILTER (
         WHERE o.accepted_at > $3 AND (o.operation = 'submission' OR o.person_id IS NOT NULL)) AS messages,
       coalesce(sum(d.recipients) FILTER (WHERE o.accepted_at >= $4), 0)::bigint AS recipients,
       ARRAY(SELECT e.public_id::text FROM events e WHERE e.tenant_id = $1 AND e.public_id = ANY ($5::text[])) AS told
FROM outbound_messages o CROSS JOIN LATERAL (
  SELECT count(*) AS recipients FROM deliveries d
  WHERE d.tenant_id = o.tenant_id AND d.message_id = o.message_id AND d.status <> 'suppressed'
) d
WHERE o.tenant_id = $1 AND o.accepted_at >= least($3::timestamptz, $4::timestamptz)
"""
_USED_BY_PERSON: Final = " ".join((_USED, "AND o.person_id = $2"))
_USED_BY_AGENT: Final = " ".join(
    (_USED, "AND o.mailbox_id = $2 AND o.person_id IS NULL AND o.operation NOT IN ('bounce', 'redirect')")
)

# Of several messages with one Message-ID the one that came last. `automatic`: answers of its thread by machine since
# somebody last wrote by themselves (outbound §5.6).
_ANSWERED: Final = """
WITH target AS (
  SELECT m.* FROM messages m
  WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.rfc_message_id = $3
    AND m.status NOT IN ('hidden', 'throttled', 'quarantined')
  ORDER BY m.id DESC LIMIT 1
), ours AS (
  SELECT m.id, m.status, coalesce(o.kind = 'auto_reply', false) AS automatic
  FROM target t JOIN messages m ON m.tenant_id = $1 AND m.mailbox_id = $2 AND m.thread_seq = t.thread_seq
  LEFT JOIN outbound_messages o ON o.tenant_id = m.tenant_id AND o.message_id = m.id
  WHERE m.direction = 'outbound'
)
SELECT t.direction, t.kind, t.blob_key, t.raw_size, o.hop, th.public_id AS thread_id,
       (SELECT count(*) FROM ours
        WHERE automatic AND status NOT IN ('canceled', 'rejected', 'failed', 'suppressed')
          AND id > coalesce((SELECT max(id) FROM ours WHERE NOT automatic), 0)) AS automatic
FROM target t
JOIN threads th ON th.tenant_id = t.tenant_id AND th.mailbox_id = t.mailbox_id AND th.seq = t.thread_seq
LEFT JOIN outbound_messages o ON o.tenant_id = t.tenant_id AND o.message_id = t.id
"""
_WROTE_IT: Final = """
SELECT DISTINCT from_address FROM messages
WHERE tenant_id = $1 AND mailbox_id = $2 AND rfc_message_id = $3 AND direction = 'inbound' AND status = 'received'
  AND verdict = ANY ($4::text[]) AND from_address = ANY ($5::text[])
"""


@dataclass(frozen=True, slots=True)
class Sender:
    """An address that an account may send from, and what its mailbox is like."""

    address: str
    address_status: AddressStatus
    mailbox: MailboxRef
    tenant_id: str
    identity_id: str
    kind: IdentityKind
    status: IdentityStatus
    tenant_status: TenantStatus
    mode: Mode
    domain_status: str
    send_policy: Mapping[str, Any]
    has_owner: bool
    """Whether an accountable human is named (FR-IDN-2)."""
    sending_paused: bool = False
    """Of the tenant, or of the address's domain (G12)."""
    policy: StoredPolicy = field(default_factory=StoredPolicy)
    """What the tenant has set, and what is set above it."""


@dataclass(frozen=True, slots=True)
class Used:
    """Messages submitted within the last hour (of a person: sent in any way), and `recipients` of everything sent since
    the day began (UTC). `told` are the warnings of the day that there are.
    """

    messages: int
    recipients: int
    told: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Target:
    """A message of the mailbox that is answered. `hop` is None when it is in its header only."""

    thread_id: str
    direction: Direction
    kind: str
    blob_key: str
    raw_size: int
    hop: int | None
    automatic: int
    """Automatic answers in its thread since the last message of ours that was none."""


async def owned(conn: Connection, account: Principal, addresses: Collection[str], now: datetime) -> dict[str, Sender]:
    """Those of the addresses (lower case, without detail) that the account may send from, in its tenant."""
    rows = await conn.fetch(
        _OWNED,
        account.tenant_id,
        list(addresses),
        account.kind.value,
        account.row_id,
        now,
        Permission.MESSAGES_SEND.value,
    )
    return {
        row["address"]: Sender(
            address=row["address"],
            address_status=AddressStatus(row["address_status"]),
            mailbox=MailboxRef(row["tenant_id"], row["identity_id"]),
            tenant_id=row["tenant_public_id"],
            identity_id=row["identity_public_id"],
            kind=IdentityKind(row["kind"]),
            status=IdentityStatus(row["identity_status"]),
            tenant_status=TenantStatus(row["tenant_status"]),
            mode=Mode(row["mode"]),
            domain_status=row["domain_status"],
            send_policy=row["send_policy_json"],
            has_owner=bool(row["owner_name"] and row["owner_email"]),
            sending_paused=row["sending_paused"],
            policy=StoredPolicy.of(row),
        )
        for row in rows
    }


def midnight(now: datetime) -> datetime:
    """When the day began (UTC)."""
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


async def used(conn: Connection, account: Principal, now: datetime, warnings: Collection[str] = ()) -> Used:
    """What the account has sent, by the rows that say so (A7), and which of these warnings were written."""
    is_person = account.kind is PrincipalKind.PERSON
    row = await conn.fetchrow(
        *(_USED_BY_PERSON if is_person else _USED_BY_AGENT, account.tenant_id),
        account.row_id if is_person else account.identity_id,
        *(now - HOUR, midnight(now), list(warnings)),
    )
    assert row is not None
    return Used(row["messages"], row["recipients"], frozenset(row["told"]))


async def answered(conn: Connection, ref: MailboxRef, rfc_message_id: str) -> Target | None:
    """The visible message of the mailbox with that Message-ID."""
    row = await conn.fetchrow(_ANSWERED, ref.tenant_id, ref.mailbox_id, rfc_message_id)
    if row is None:
        return None
    return Target(
        thread_id=row["thread_id"],
        direction=Direction(row["direction"]),
        kind=row["kind"],
        blob_key=row["blob_key"],
        raw_size=row["raw_size"],
        hop=row["hop"],
        automatic=row["automatic"],
    )


async def wrote(
    conn: Connection, ref: MailboxRef, rfc_message_id: str, verdicts: Collection[str], addresses: Collection[str]
) -> frozenset[str]:
    """Those of the addresses whose owner wrote the message with that Message-ID, which the mailbox received."""
    people = {address: without_token(address) for address in addresses}
    rows = await conn.fetch(
        _WROTE_IT, ref.tenant_id, ref.mailbox_id, rfc_message_id, list(verdicts), list(people.values())
    )
    authors = {row["from_address"] for row in rows}
    return frozenset(address for address, one in people.items() if one in authors)
