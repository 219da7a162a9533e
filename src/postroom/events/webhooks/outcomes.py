"""What becomes of attempts: written down, tried again or given up, and endpoints that fail disabled (§8, §9)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from postroom.base.ids import IdGenerator, ulid_of
from postroom.db.pool import Connection
from postroom.events.catalogue import envelope
from postroom.events.registry import DISABLED
from postroom.events.webhooks.models import Answered, AttemptStatus, Task, Trouble
from postroom.events.webhooks.rules import Health, wait_after

_PURPOSE: Final = DISABLED.encode()

# Endpoints before tasks, each by its key: whoever deletes an endpoint goes the same way (B10).
_HOLD_ENDPOINTS: Final = """
SELECT e.id, e.public_id, e.url, e.enabled, e.consecutive_failures, e.failing_since, e.tenant_id, e.partner_id,
  t.public_id AS tenant, o.partner_id AS tenants_partner
FROM webhook_endpoints e LEFT JOIN tenants t ON t.id = e.tenant_id
LEFT JOIN partner_tenants o ON o.tenant_id = e.tenant_id
WHERE e.id = ANY ($1::bigint[]) OR e.id = ANY ($2::bigint[]) AND e.consecutive_failures > 0
ORDER BY e.id FOR NO KEY UPDATE OF e
"""
# Those that stay as they are, too: attempts refer to them, and whoever deletes one would wait for its tasks meanwhile.
_KEEP_ENDPOINTS: Final = """
SELECT FROM webhook_endpoints WHERE id = ANY ($1::bigint[]) ORDER BY id FOR KEY SHARE
"""
_HEALTH: Final = """
UPDATE webhook_endpoints SET consecutive_failures = $2, failing_since = $3, paused_until = $4 WHERE id = $1
"""
_DISABLE: Final = """
UPDATE webhook_endpoints SET enabled = false, disabled_reason = 'failing', updated_at = $2 WHERE id = $1 AND enabled
"""
_HOLD_TASKS: Final = """
SELECT t.id, t.first_attempt FROM webhook_tasks t JOIN unnest($1::uuid[], $2::bigint[]) AS held (token, id)
  ON t.id = held.id AND t.claim_token = held.token
ORDER BY t.id FOR UPDATE OF t
"""
WRITE: Final = """
INSERT INTO webhook_deliveries (public_id, endpoint_id, tenant_id, event_id, event_type, attempt, status, http_status,
  error, duration_ms, next_attempt_at, created_at)
SELECT a.*, $1 FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::integer[], $8::text[],
  $9::integer[], $10::text[], $11::integer[], $12::timestamptz[]) AS a
ON CONFLICT (endpoint_id, event_id, attempt) DO NOTHING
"""
_DONE: Final = "DELETE FROM webhook_tasks WHERE id = ANY ($1::bigint[])"
_AGAIN: Final = """
UPDATE webhook_tasks t SET attempt = t.attempt + 1, next_attempt_at = again.at, lease_until = NULL, claim_token = NULL,
  attempts = 0, last_error = again.error
FROM unnest($1::bigint[], $2::timestamptz[], $3::text[]) AS again (id, at, error) WHERE t.id = again.id
"""
_TELL: Final = """
INSERT INTO events (public_id, type, tenant_id, partner_id, owner_kind, owner_id, payload, occurred_at)
VALUES ($1, $2, $3, $4, 'platform', $5, $6, $7) ON CONFLICT (public_id) DO NOTHING
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An attempt that is over."""

    task: Task
    answered: Answered
    at: datetime


@dataclass(frozen=True, slots=True)
class Disabled:
    """An endpoint that was switched off; `reason` is `failing` or `gone`."""

    public_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """What a batch of outcomes did: what was written of those that were still ours, and which endpoints were
    disabled."""

    statuses: tuple[tuple[Outcome, AttemptStatus], ...]
    disabled: tuple[Disabled, ...]


class Outcomes:
    """Writes outcomes, in the caller's transaction."""

    def __init__(self, ids: IdGenerator, hash_key: bytes, draw: Callable[[], float]) -> None:
        """`draw` gives a number from [0, 1) for the jitter of a wait."""
        self._ids, self._hash_key, self._draw = ids, hash_key, draw

    async def write(self, conn: Connection, outcomes: Sequence[Outcome], now: datetime) -> Written:
        """Write them all down. What is not ours any more is another's by now, and left alone."""
        failed = sorted({one.task.endpoint_id for one in outcomes if _counts(one)})
        well = sorted({one.task.endpoint_id for one in outcomes if one.answered.error is None})
        await conn.execute(_KEEP_ENDPOINTS, sorted({one.task.endpoint_id for one in outcomes}))
        held = await conn.fetch(_HOLD_ENDPOINTS, failed, well)
        rows = await conn.fetch(_HOLD_TASKS, [one.task.token for one in outcomes], [one.task.id for one in outcomes])
        # A replay may have begun the schedule anew meanwhile.
        ours = {row["id"]: row["first_attempt"] for row in rows}
        mine = [
            replace(one, task=replace(one.task, first_attempt=ours[one.task.id]))
            for one in outcomes
            if one.task.id in ours
        ]
        statuses = await self._write_attempts(conn, mine, now, {row["id"]: row["url"] for row in held})
        disabled = [
            one for row in held if (one := await self._follow(conn, row, [one for one in mine if _is_of(one, row)]))
        ]
        return Written(tuple(zip(mine, statuses, strict=True)), tuple(disabled))

    async def _write_attempts(
        self, conn: Connection, outcomes: Sequence[Outcome], now: datetime, urls: Mapping[int, str]
    ) -> list[AttemptStatus]:
        written, done, again = [], [], []
        statuses = []
        for one in outcomes:
            task, answered = one.task, one.answered
            status, at = self._next(one, urls)
            statuses.append(status)
            if at is None:
                done.append(task.id)
            else:
                again.append((task.id, at, answered.error))
            written.append(
                (
                    *(self._ids.new("dlv_"), task.endpoint_id, task.tenant_id, task.event_id, task.event_type),
                    *(task.attempt, status.value, answered.http_status, answered.error, answered.duration_ms, at),
                )
            )
        if written:
            await conn.execute(WRITE, now, *map(list, zip(*written, strict=True)))
        if done:
            await conn.execute(_DONE, done)
        if again:
            await conn.execute(_AGAIN, *map(list, zip(*again, strict=True)))
        return statuses

    def _next(self, one: Outcome, urls: Mapping[int, str]) -> tuple[AttemptStatus, datetime | None]:
        error = one.answered.error
        if error is None:
            return AttemptStatus.SUCCEEDED, None
        if error in (Trouble.EVENT_UNAVAILABLE, Trouble.ENDPOINT_DISABLED):
            return AttemptStatus.DEAD, None
        if error == Trouble.STATUS_410 and urls.get(one.task.endpoint_id) == one.task.url:
            return AttemptStatus.DEAD, None  # which disables the endpoint: nothing follows
        wait = wait_after(one.task.number, self._draw())
        if wait is None:
            return AttemptStatus.DEAD, None
        return AttemptStatus.FAILED, one.at + wait

    async def _follow(self, conn: Connection, row: Any, outcomes: Sequence[Outcome]) -> Disabled | None:
        """Let the endpoint's health follow the outcomes, in their order; what is told if it is disabled for them."""
        before = health = Health(row["consecutive_failures"], row["failing_since"])
        reason: str | None = None
        last: Outcome | None = None
        for one in sorted(outcomes, key=lambda one: one.at):
            if one.answered.error is None:
                health = Health()
                continue
            if not _counts(one):
                continue
            health, last = health.failed(one.at), one
            if one.answered.error == Trouble.STATUS_410:
                reason = "gone"
            elif health.is_lost(one.at):
                reason = reason or "failing"
            if reason:
                break
        if health != before:
            paused = None if last is None else health.paused_until(last.at)
            await conn.execute(_HEALTH, row["id"], health.failures, health.since, paused)
        if reason is None or last is None or not row["enabled"]:
            return None
        await conn.execute(_DISABLE, row["id"], last.at)
        await self._tell(conn, row, reason, last)
        return Disabled(row["public_id"], reason)

    async def _tell(self, conn: Connection, row: Any, reason: str, cause: Outcome) -> None:
        """`webhook.disabled`, of an id that the same cause has again (§1)."""
        fields = f"{row['public_id']}\0{cause.task.event_id}\0{cause.task.attempt}".encode()
        drawn = hmac.new(self._hash_key, _PURPOSE + b"\0" + fields, hashlib.sha256).digest()[:10]
        event_id = f"evt_{ulid_of(cause.at, drawn)}"
        payload = envelope(
            event_id=event_id,
            kind=DISABLED,
            occurred_at=cause.at,
            tenant_id=row["tenant"],
            identity_id=None,
            sequence=None,
            data={"webhook_id": row["public_id"], "reason": reason},
        )
        partner = row["partner_id"] if row["partner_id"] is not None else row["tenants_partner"]
        await conn.execute(_TELL, event_id, DISABLED, row["tenant_id"], partner, row["public_id"], payload, cause.at)


def _is_of(one: Outcome, row: Any) -> bool:
    """Whether it says something of the endpoint as it is: it may have another URL by now."""
    return bool(one.task.endpoint_id == row["id"] and one.task.url == row["url"])


def _counts(one: Outcome) -> bool:
    """Whether it says something of the endpoint: not what is our own doing."""
    return one.answered.error not in (
        *(None, Trouble.EVENT_UNAVAILABLE, Trouble.ENDPOINT_DISABLED, Trouble.SECRET_UNAVAILABLE),
    )
