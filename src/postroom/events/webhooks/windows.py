"""Which events a replay is about: SQL (events-webhooks-errors §10).

A window costs what is in it, of those tenants whose events the endpoint may be told of, and ends soon after there are
more than a replay takes: each tenant's events are read by its own index, in the order of time. Two things are read
otherwise. What an endpoint missed (`dead`, `failed`) is found among its attempts, of which few failed; and events that
are named are found by their names. How long a tenant keeps its events is not SQL's to know (`events.retention`): what
it keeps no longer, and a pass has not taken yet, is left out afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from postroom.accounts.policy_rules import Stance
from postroom.db.pool import Connection
from postroom.events.reading import PARTNER, WHOSE
from postroom.events.registry import NEVER_FANNED_OUT
from postroom.events.retention import REPLAY, kept_of, oldest
from postroom.events.webhooks.models import AttemptStatus, Endpoint, EndpointScope

MAX_IDS: Final = 100
MAX_EVENTS: Final = 1000
_LIMIT: Final = f"LIMIT {MAX_EVENTS + 1}"
"""So that it is seen that there are more."""


@dataclass(frozen=True, slots=True)
class ByIds:
    event_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ByWindow:
    """`since` ≤ when it happened < `until`."""

    since: datetime
    until: datetime | None = None
    status: AttemptStatus | None = None


Asked = ByIds | ByWindow

_TENANT, _PARTNER, _PLATFORM = EndpointScope.TENANT, EndpointScope.PARTNER, EndpointScope.PLATFORM


def _sql(*parts: str, **marks: str) -> str:
    text = " ".join(parts)
    for name, part in marks.items():
        text = text.replace("{" + name + "}", part)
    return text


# $1 key of the tenant or partner, $2 the oldest moment of all, $3 the endpoint, by its public id; $4 types and $5
# identities, by their public ids, of which null is everything. What is left out here, `rules.matches` leaves out, too:
# this is so that what nobody is told of does not count.
_COLUMNS: Final = """
e.id, e.public_id, e.type, e.tenant_id, {partner} AS partner_id, e.occurred_at, e.owner_id,
i.public_id AS identity, coalesce(i.is_system, false) AS is_system
"""
_IDENTITY: Final = "LEFT JOIN identities i ON i.tenant_id = e.tenant_id AND i.id = e.identity_id"
_NEVER: Final = _sql(
    "e.type NOT IN ({never}) AND (e.type <> 'webhook.disabled' OR {disabled})",
    never=", ".join(f"'{kind}'" for kind in sorted(NEVER_FANNED_OUT)),
)
_OF_OTHERS: Final = "e.owner_id <> $3::text"
_FILTER: Final = "($4::text[] IS NULL OR e.type = ANY ($4)) AND ($5::text[] IS NULL OR i.public_id = ANY ($5))"
_TOLD: Final = {
    _TENANT: _sql(_NEVER, "AND $3::text IS NOT NULL AND NOT coalesce(i.is_system, false)", disabled="false"),
    _PARTNER: _sql(_NEVER, "AND NOT coalesce(i.is_system, false)", disabled=_OF_OTHERS),
    _PLATFORM: _sql(_NEVER, disabled=_OF_OTHERS),
}

# -- by ids, and by attempts: the events are known, and it is asked whether they are of the scope

_ANY_COLUMNS: Final = _sql("SELECT", _COLUMNS, partner=PARTNER)
_KEPT: Final = "e.occurred_at >= $2::timestamptz"
_SCOPES: Final = {
    _TENANT: "e.tenant_id = $1::bigint",
    _PARTNER: f"{PARTNER} = $1::bigint",
    _PLATFORM: "$1::bigint IS NULL",
}
# One event after another, by its name. LIMIT 1 leaves the planner, which may know nothing of these tables yet, no other
# way; so whatever else is asked about the event stands outside.
_ONE: Final = """
CROSS JOIN LATERAL (
  SELECT e.id, e.public_id, e.type, e.tenant_id, e.partner_id, e.identity_id, e.occurred_at, e.owner_id
  FROM events e WHERE e.public_id = d.event_id AND {first} LIMIT 1
) AS e
"""
_BY_IDS: Final = {
    scope: _sql(
        *(_ANY_COLUMNS, "FROM unnest($6::text[]) AS d (event_id)", _ONE, WHOSE),
        *("WHERE", _FILTER, "AND", of_scope, "AND", _KEPT, "AND", _TOLD[scope]),
        first="true",
    )
    for scope, of_scope in _SCOPES.items()
}

# $6 since, $7 until, $8 the endpoint.
_UNTIL: Final = "coalesce($7::timestamptz, 'infinity')"
_ATTEMPTS: Final = "SELECT FROM webhook_deliveries x WHERE x.endpoint_id = $8 AND x.event_id = {event}"
_SUCCEEDED: Final = _sql("EXISTS (", _ATTEMPTS, "AND x.status = 'succeeded')")
_LATER: Final = _sql("NOT EXISTS (", _ATTEMPTS, "AND x.attempt > d.attempt {again})", event="d.event_id")
_MISSED: Final = {
    AttemptStatus.DEAD: _sql(_LATER, "AND NOT", _SUCCEEDED, again="AND x.status = 'dead'", event="d.event_id"),
    AttemptStatus.FAILED: _sql(_LATER, again=""),
}
# Nobody is told of what did not happen yet; a day is for clocks that go wrong.
_BY_ATTEMPTS: Final = {
    (scope, status): _sql(
        *(_ANY_COLUMNS, "FROM webhook_deliveries d", _ONE, WHOSE, "WHERE d.endpoint_id = $8"),
        *("AND d.status =", f"'{status.value}'", "AND d.created_at >= $6::timestamptz - interval '1 day'"),
        *("AND e.occurred_at >= $6 AND e.occurred_at <", _UNTIL),
        *("AND", _FILTER, "AND", of_scope, "AND", _KEPT, "AND", _TOLD[scope]),
        f"ORDER BY d.created_at {_LIMIT}",
        first=missed,
    )
    for scope, of_scope in _SCOPES.items()
    for status, missed in _MISSED.items()
}

# -- by time: of one tenant after another

_WENT: Final = {
    None: "$8::bigint IS NOT NULL",
    AttemptStatus.SUCCEEDED: _sql(_SUCCEEDED, event="e.public_id"),
}
_EACH: Final = """
SELECT {columns} FROM events e {identity}
WHERE {whose} AND e.occurred_at >= greatest($6::timestamptz, $2::timestamptz)
  AND e.occurred_at < {until} AND {filter} AND {told} AND {went}
ORDER BY e.occurred_at {limit}
"""
_OF_TENANTS: Final = "SELECT w.* FROM {tenants} CROSS JOIN LATERAL ({each}) AS w WHERE {which}"


def _each(scope: EndpointScope, went: str, *, whose: str, partner: str) -> str:
    marks = {"columns": _COLUMNS, "partner": partner, "identity": _IDENTITY, "whose": whose}
    return _sql(_EACH, **marks, until=_UNTIL, filter=_FILTER, told=_TOLD[scope], went=went, limit=_LIMIT)


def _of_tenants(scope: EndpointScope, went: str, *, tenants: str, which: str, whose: str, partner: str) -> str:
    each = _each(scope, went, whose=whose, partner=partner)
    return _sql(_OF_TENANTS, tenants=tenants, which=which, each=each)


def _by_time(scope: EndpointScope, went: str) -> str:
    if scope is _TENANT:
        of_them = {"tenants": "tenants n", "which": "n.id = $1::bigint", "whose": "e.tenant_id = n.id"}
        return _sql(_of_tenants(scope, went, **of_them, partner="NULL::bigint"), _LIMIT)
    if scope is _PARTNER:
        of_them = {
            "tenants": "partner_tenants pt JOIN tenants n ON n.id = pt.tenant_id",
            "which": "pt.partner_id = $1::bigint",
            "whose": "e.tenant_id = n.id",
            "partner": "$1::bigint",
        }
        of_none = "e.tenant_id IS NULL AND e.partner_id = $1::bigint"
    else:
        of_them = {
            "tenants": "tenants n LEFT JOIN partner_tenants pt ON pt.tenant_id = n.id",
            "which": "$1::bigint IS NULL",
            "whose": "e.tenant_id = n.id",
            "partner": "pt.partner_id",
        }
        of_none = "e.tenant_id IS NULL"
    beside = _each(scope, went, whose=of_none, partner="e.partner_id")
    return _sql("(", _of_tenants(scope, went, **of_them), ") UNION ALL (", beside, ")", _LIMIT)


_BY_TIME: Final = {(scope, status): _by_time(scope, went) for scope in EndpointScope for status, went in _WENT.items()}


def statement(one: Endpoint, asked: Asked, first: datetime) -> tuple[str, tuple[Any, ...]]:
    """What is asked of what happened from `first` on, and its arguments."""
    key = one.tenant_id if one.tenant_id is not None else one.partner_id
    types = None if "*" in one.events else list(one.events)
    identities = None if one.identity_ids is None else list(one.identity_ids)
    always = (key, first, one.public_id, types, identities)
    if isinstance(asked, ByIds):
        return _BY_IDS[one.scope], (*always, list(asked.event_ids))
    scope, status = one.scope, asked.status
    text = _BY_ATTEMPTS[scope, status] if status is not None and status in _MISSED else _BY_TIME[scope, status]
    return text, (*always, max(asked.since, first), asked.until, one.id)


async def events_of(conn: Connection, one: Endpoint, asked: Asked, now: datetime, stance: Stance) -> Sequence[Any]:
    """Events that the endpoint would be told of now, of those asked for and kept, in the order in which it would have
    been; of a window one more than MAX_EVENTS stands for more than that."""
    first = now - REPLAY
    if one.tenant_id is not None:
        first = oldest(now, (await kept_of(conn, stance, [one.tenant_id]))[one.tenant_id])
    text, values = statement(one, asked, first)
    rows = await conn.fetch(text, *values)
    if len(rows) <= MAX_EVENTS:
        kept = await kept_of(conn, stance, {row["tenant_id"] for row in rows} - {None})
        rows = [row for row in rows if row["occurred_at"] >= oldest(now, kept.get(row["tenant_id"]))]
    return sorted(rows, key=lambda row: int(row["id"]))
