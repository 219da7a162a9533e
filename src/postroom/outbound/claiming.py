"""Which deliveries are worked on: claims on rows of `deliveries` (mail-server C3; decisions B1, D24).

The columns and their meaning are those of `db.claim`, whose queue serves for counting and for the operator. A claim
takes all due rows of one message, route and destination under one token. Two things are its own: a destination that has
no room at the moment is passed over inside the query, so that however much waits for it, whatever is due behind it is
reached; and no destination gets more than it has room for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from postroom.db.claim import ClaimQueue, ClaimSpec
from postroom.db.pool import Connection
from postroom.mailbox.models import MailboxRef
from postroom.outbound.models import Operation, RouteKind, SendKind, Status

LEASE: Final = timedelta(minutes=1)
"""How long a claim holds without a sign of life; whoever works on it extends it (`EXTEND_SECONDS`). So long does the
mail wait that a killed process had in hand."""
EXTEND_SECONDS: Final = 15.0
MAX_CLAIMS: Final = 100
"""Claims without a result that counts, after which a person decides: the rows may be what kills the workers."""
SCAN_ROWS: Final = 250
"""Due rows that one claim looks at. What is behind them is reached by the next claim, for which those of destinations
that are full by then are not there."""

QUEUE: Final = ClaimQueue(
    ClaimSpec(
        table="deliveries",
        keys={"tenant_id": "bigint", "id": "bigint"},
        lease=LEASE,
        max_attempts=MAX_CLAIMS,
        due="NOT t.held_by_operator",
        group=("tenant_id", "message_id", "domain", "route"),
    )
)

# Planning these statements takes longer than they do, so one plan serves for all.
PLANS: Final = "SET LOCAL plan_cache_mode = 'force_generic_plan'; SET LOCAL enable_seqscan = off; SET LOCAL jit = off"
# One round trip.
_BEGIN: Final = f"{PLANS}; SELECT pg_advisory_xact_lock(hashtextextended('claim:deliveries', 0))"

# $1 now, $2 groups, $3 lease until, $4 max claims, $5 rows to look at, $6 destinations and $7 how many groups each may
# get, $8 how many any other one may get.
_CLAIM: Final = """
WITH room AS MATERIALIZED (
  SELECT * FROM unnest($6::text[], $7::integer[]) AS r (destination, groups)
), heads AS MATERIALIZED (
  SELECT t.tenant_id, t.message_id, t.domain, t.route, t.next_attempt_at, t.id FROM deliveries t
  WHERE t.next_attempt_at <= $1 AND (t.lease_until IS NULL OR t.lease_until <= $1) AND NOT t.held_by_operator
    AND t.route || ':' || t.domain NOT IN (SELECT destination FROM room WHERE groups <= 0)
  ORDER BY t.next_attempt_at, t.id LIMIT $5
), groups AS MATERIALIZED (
  SELECT g.*, gen_random_uuid() AS token FROM (
    SELECT h.*, row_number() OVER (PARTITION BY h.route, h.domain ORDER BY h.at, h.id) AS place FROM (
      SELECT tenant_id, message_id, domain, route, min(next_attempt_at) AS at, min(id) AS id FROM heads
      GROUP BY tenant_id, message_id, domain, route
    ) h
  ) g LEFT JOIN room r ON r.destination = g.route || ':' || g.domain
  WHERE g.place <= coalesce(r.groups, $8) ORDER BY g.place, g.at, g.id LIMIT $2
), picked AS MATERIALIZED (
  SELECT t.tenant_id, t.id, g.token FROM groups g JOIN deliveries t
    ON t.tenant_id + 0 = g.tenant_id AND t.message_id = g.message_id AND t.domain = g.domain AND t.route = g.route
  WHERE t.next_attempt_at <= $1 AND (t.lease_until IS NULL OR t.lease_until <= $1) AND NOT t.held_by_operator
  ORDER BY t.id FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE deliveries t SET
  attempts = least(t.attempts + 1, $4),
  lease_until = CASE WHEN t.attempts < $4 THEN $3::timestamptz END,
  claim_token = CASE WHEN t.attempts < $4 THEN picked.token END,
  next_attempt_at = CASE WHEN t.attempts < $4 THEN t.next_attempt_at END,
  parked_at = CASE WHEN t.attempts >= $4 THEN $1::timestamptz END,
  last_error = CASE WHEN t.attempts >= $4 THEN coalesce(t.last_error, 'worker_lost') ELSE t.last_error END
FROM picked WHERE t.tenant_id + 0 = picked.tenant_id AND t.id = picked.id
RETURNING t.claim_token, t.tenant_id, t.id, t.message_id, t.mailbox_id, t.domain, t.route, t.recipient, t.status,
  t.tries, t.dsn_notify, t.dsn_orcpt, t.data_started_at, t.position, (SELECT count(*) FROM heads) AS seen
"""

# Each table by its key, for each message: joined, a plan that was made while the tables were small could read all of a
# tenant's rows for long.
_MESSAGES: Final = """
SELECT o.*, m.*, b.*, i.status <> 'active' OR t.status <> 'active' OR t.is_partner_stopped AS is_stopped, i.is_system,
  t.mode = 'test' AS is_test, t.is_paused, t.domain_fallback,
  d.status AS domain_status, d.enabled AS domain_enabled, d.kind = 'platform' AS from_platform,
  d.sending_paused_at IS NOT NULL AS domain_paused,
  EXISTS (SELECT FROM ops_switches s WHERE s.name = 'read_only' AND s.state = 'on') AS is_read_only
FROM unnest($1::bigint[], $2::bigint[]) AS k (tenant_id, message_id)
CROSS JOIN LATERAL (
  SELECT o.tenant_id, o.message_id, o.mailbox_id, o.operation, o.envelope_from, o.wire_key, o.wire_size, o.eight_bit,
    o.smtputf8, o.dsn_ret, o.dsn_envid, o.accepted_at, o.provider_message_id, o.kind, o.sent_from
  FROM outbound_messages o WHERE o.tenant_id + 0 = k.tenant_id AND o.message_id = k.message_id LIMIT 1
) o
CROSS JOIN LATERAL (
  SELECT m.public_id, m.rfc_message_id, coalesce(o.sent_from, m.from_address) AS from_address FROM messages m
  WHERE m.tenant_id = k.tenant_id AND m.id = k.message_id LIMIT 1
) m
CROSS JOIN LATERAL (
  SELECT b.tenant_public_id, b.identity_public_id FROM mailboxes b
  WHERE b.tenant_id + 0 = k.tenant_id AND b.id = o.mailbox_id LIMIT 1
) b
CROSS JOIN LATERAL (
  SELECT i.status, i.is_system FROM identities i
  WHERE i.tenant_id + 0 = k.tenant_id AND i.public_id = b.identity_public_id LIMIT 1
) i
CROSS JOIN LATERAL (
  SELECT t.status, t.mode, t.sending_paused_at IS NOT NULL AS is_paused,
    t.policy_json -> 'domain_fallback' AS domain_fallback,
    EXISTS (
      SELECT FROM partner_tenants o JOIN partners p ON p.id = o.partner_id
      WHERE o.tenant_id = t.id AND p.status <> 'active'
    ) AS is_partner_stopped
  FROM tenants t WHERE t.id = k.tenant_id LIMIT 1
) t
LEFT JOIN LATERAL (
  SELECT d.status, d.enabled, d.kind, d.sending_paused_at FROM domains d
  WHERE d.name = lower(substring(m.from_address FROM '[^@]*$')) AND (d.tenant_id = k.tenant_id OR d.tenant_id IS NULL)
  LIMIT 1
) d ON true
"""

# So that the next message of the thread waits for this one as long as it is under way (outbound §7).
_HOLD_THREADS: Final = """
UPDATE threads t SET lock_until = greatest(t.lock_until, $3)
FROM unnest($1::bigint[], $2::bigint[]) AS k (tenant_id, message_id)
JOIN messages m ON m.tenant_id = k.tenant_id AND m.id = k.message_id
WHERE t.tenant_id = m.tenant_id AND t.mailbox_id = m.mailbox_id AND t.seq = m.thread_seq AND t.lock_owner = m.public_id
"""

_NEXT_DUE: Final = """
SELECT next_attempt_at FROM deliveries WHERE next_attempt_at > $1 AND NOT held_by_operator
ORDER BY next_attempt_at, id LIMIT 1
"""

# $1 tokens, $2 tenants, $3 deliveries.
_EXTEND: Final = """
UPDATE deliveries t SET lease_until = $4
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS held (token, tenant_id, id)
WHERE t.claim_token = held.token AND t.tenant_id + 0 = held.tenant_id AND t.id = held.id
"""
_START: Final = """
UPDATE deliveries t SET data_started_at = $4, lease_until = $5
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS held (token, tenant_id, id)
WHERE t.claim_token = held.token AND t.tenant_id + 0 = held.tenant_id AND t.id = held.id
RETURNING t.claim_token, t.id
"""
_UNDO: Final = """
UPDATE deliveries t SET data_started_at = NULL
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS held (token, tenant_id, id)
WHERE t.claim_token = held.token AND t.tenant_id + 0 = held.tenant_id AND t.id = held.id
"""
# $5: whether it was begun and is known not to have been sent.
_PUT_BACK: Final = """
UPDATE deliveries t SET lease_until = NULL, claim_token = NULL, attempts = greatest(t.attempts - 1, 0),
  next_attempt_at = greatest(t.next_attempt_at, $4), data_started_at = NULL
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $5::boolean[]) AS held (token, tenant_id, id, unsent)
WHERE t.claim_token = held.token AND t.tenant_id + 0 = held.tenant_id AND t.id = held.id
  AND (t.data_started_at IS NULL OR held.unsent)
"""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery in our hands. `data_started_at`: an earlier claim began to send, and was lost: its fate is unknown."""

    id: int
    recipient: str
    status: Status
    tries: int
    dsn_notify: tuple[str, ...] | None
    dsn_orcpt: str | None
    data_started_at: datetime | None


@dataclass(frozen=True, slots=True)
class FromDomain:
    """The domain of From as it is when the message is to leave (outbound §6.2)."""

    status: str
    enabled: bool
    is_platform: bool
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Letter:
    """The message of a claim. `key` is its row's, `id` the public one; `envelope_from` is empty for the null sender.

    `wire_key` names the bytes that go out; None: they are gone. `was_sent`: some of its
    recipients were reached. `is_stopped`: nothing is sent for this identity now. `domain` is what the domain of From is
    like now; None when it is none of ours, or written in a way that it is not found by.
    """

    ref: MailboxRef
    key: int
    id: str
    tenant_id: str
    identity_id: str
    operation: Operation
    kind: SendKind
    envelope_from: str
    from_address: str | None
    rfc_message_id: str
    wire_key: str | None
    wire_size: int
    eight_bit: bool
    smtputf8: bool
    dsn_ret: str | None
    dsn_envid: str | None
    accepted_at: datetime
    was_sent: bool
    is_test: bool
    is_stopped: bool
    is_system: bool
    domain: FromDomain | None
    is_paused: bool = False
    """Nothing is sent for the tenant (G12)."""
    is_read_only: bool = False
    """Nothing leaves the deployment (J33)."""
    may_fall_back: bool | None = None
    """Whether the tenant wants its mail to leave from the platform address while the domain of From fails; None where
    it has not said."""


@dataclass(frozen=True, slots=True)
class Group:
    """What one attempt is made for: recipients of one message at one destination, under one token."""

    token: UUID
    route: RouteKind
    domain: str
    letter: Letter
    recipients: tuple[Claimed, ...]

    @property
    def destination(self) -> str:
        """Names what its attempts share: `direct:example.com`."""
        return f"{self.route.value}:{self.domain}"

    @property
    def ids(self) -> list[int]:
        return [recipient.id for recipient in self.recipients]


@dataclass(frozen=True, slots=True)
class Begun:
    """Deliveries of a claim whose message is about to be sent; with `undo`, was about to be, and is not sent."""

    token: UUID
    ref: MailboxRef
    ids: tuple[int, ...]
    undo: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """How many groups may be claimed: in all, of the destinations that are known, and of any other one."""

    groups: int
    known: Mapping[str, int]
    other: int = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """A delivery under a claim that was begun and not sent."""

    token: UUID
    tenant_id: int
    delivery_id: int


class Claims(tuple[Group, ...]):
    """Groups that were taken. `is_cut`: not all rows were looked at that were due where there was room."""

    is_cut: bool = False


async def claim(conn: Connection, *, now: datetime, room: Room) -> Claims:
    """Take due groups, the oldest first but each destination's first before any one's second.

    Claims run one after another, so that no group is split between two; the lock is held for this transaction.
    """
    if room.groups <= 0:
        return Claims()
    async with conn.transaction():
        await conn.execute(_BEGIN)
        rows = await conn.fetch(
            _CLAIM,
            now,
            room.groups,
            now + LEASE,
            MAX_CLAIMS,
            SCAN_ROWS,
            list(room.known),
            [max(0, count) for count in room.known.values()],
            room.other,
        )
        held: dict[UUID, list[Any]] = {}
        for row in rows:
            if row["claim_token"] is not None:
                held.setdefault(row["claim_token"], []).append(row)
        is_cut = bool(rows) and rows[0]["seen"] >= SCAN_ROWS
        if not held:
            claims = Claims()
            claims.is_cut = is_cut
            return claims
        messages = sorted({(rows[0]["tenant_id"], rows[0]["message_id"]) for rows in held.values()})
        tenants, keys = [tenant for tenant, _ in messages], [key for _, key in messages]
        found = await conn.fetch(_MESSAGES, tenants, keys)
        await conn.execute(_HOLD_THREADS, tenants, keys, now + LEASE)
    letters = {(row["tenant_id"], row["message_id"]): _letter(row) for row in found}
    claims = Claims(
        Group(
            token=token,
            route=RouteKind(rows[0]["route"]),
            domain=rows[0]["domain"],
            letter=letters[(rows[0]["tenant_id"], rows[0]["message_id"])],
            recipients=tuple(_claimed(row) for row in sorted(rows, key=lambda row: row["position"])),
        )
        for token, rows in held.items()
        if (rows[0]["tenant_id"], rows[0]["message_id"]) in letters
    )
    claims.is_cut = is_cut
    return claims


async def extend(conn: Connection, groups: Sequence[Group], *, until: datetime) -> None:
    """Hold the groups until a later instant; those that are lost already stay so."""
    await conn.execute(_EXTEND, *_held(groups), until)


async def start(conn: Connection, begun: Sequence[Begun], *, now: datetime, until: datetime) -> list[bool]:
    """Record that these messages go out now; False where a delivery is not ours any more: then it must not. First it is
    recorded of what is undone that it does not; that may be begun again beside it.

    On a connection without a transaction it is committed on return.
    """
    undone = _rows(one for one in begun if one.undo)
    if undone:
        await conn.execute(_UNDO, *map(list, zip(*undone, strict=True)))
    rows = _rows(one for one in begun if not one.undo)
    found = await conn.fetch(_START, *map(list, zip(*rows, strict=True)), now, until) if rows else []
    # By the claim, too: one that was lost may be asked for beside the one that has taken its deliveries.
    ours = {(row["claim_token"], row["id"]) for row in found}
    return [not one.undo and ours.issuperset((one.token, key) for key in one.ids) for one in begun]


def _rows(begun: Iterable[Begun]) -> list[tuple[UUID, int, int]]:
    return sorted(((one.token, one.ref.tenant_id, key) for one in begun for key in one.ids), key=lambda row: row[2])


async def put_back(
    conn: Connection, groups: Sequence[Group], *, at: datetime, unsent: Collection[UUID] = frozenset()
) -> None:
    """Give back what was not begun, due again at `at`; the claim does not count. `unsent`: tokens of what was begun and
    certainly not sent. What is being begun meanwhile finds no claim any more."""
    tokens, tenants, keys = _held(groups)
    await conn.execute(_PUT_BACK, tokens, tenants, keys, at, [token in unsent for token in tokens])


async def put_back_marked(conn: Connection, marks: Sequence[Mark], *, at: datetime) -> None:
    """`put_back` of what a worker that is gone had begun, and not sent."""
    rows = sorted(((one.token, one.tenant_id, one.delivery_id) for one in marks), key=lambda row: row[2])
    tokens, tenants, keys = ([row[n] for row in rows] for n in range(3))
    await conn.execute(_PUT_BACK, tokens, tenants, keys, at, [True] * len(rows))


async def next_due(conn: Connection, *, now: datetime) -> datetime | None:
    """When something becomes due that is not yet."""
    at: datetime | None = await conn.fetchval(_NEXT_DUE, now)
    return at


def _held(groups: Sequence[Group]) -> tuple[list[UUID], list[int], list[int]]:
    # In the order in which results lock them.
    rows = sorted(
        ((group.token, group.letter.ref.tenant_id, key) for group in groups for key in group.ids),
        key=lambda row: row[2],
    )
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def _claimed(row: Any) -> Claimed:
    return Claimed(
        id=row["id"],
        recipient=row["recipient"],
        status=Status(row["status"]),
        tries=row["tries"],
        dsn_notify=None if row["dsn_notify"] is None else tuple(row["dsn_notify"]),
        dsn_orcpt=row["dsn_orcpt"],
        data_started_at=row["data_started_at"],
    )


def _letter(row: Any) -> Letter:
    return Letter(
        ref=MailboxRef(row["tenant_id"], row["mailbox_id"]),
        key=row["message_id"],
        id=row["public_id"],
        tenant_id=row["tenant_public_id"],
        identity_id=row["identity_public_id"],
        operation=Operation(row["operation"]),
        kind=SendKind(row["kind"]),
        envelope_from=row["envelope_from"],
        from_address=row["from_address"],
        rfc_message_id=row["rfc_message_id"],
        wire_key=row["wire_key"],
        wire_size=row["wire_size"],
        eight_bit=row["eight_bit"],
        smtputf8=row["smtputf8"],
        dsn_ret=row["dsn_ret"],
        dsn_envid=row["dsn_envid"],
        accepted_at=row["accepted_at"],
        was_sent=row["provider_message_id"] is not None,
        is_test=row["is_test"],
        is_stopped=row["is_stopped"],
        is_system=row["is_system"],
        domain=_domain(row),
        is_paused=row["is_paused"],
        is_read_only=row["is_read_only"],
        may_fall_back=row["domain_fallback"] if isinstance(row["domain_fallback"], bool) else None,
    )


def _domain(row: Any) -> FromDomain | None:
    if row["domain_status"] is None:
        return None
    return FromDomain(row["domain_status"], row["domain_enabled"], row["from_platform"], row["domain_paused"])
