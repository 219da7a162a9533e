"""What is wrong with the deployment, for whoever runs it (cli-config-ops C5): it fires once, is shown while it lasts,
and ends by itself. SQL.

Departments say what they look for; nobody else makes an alert. It is a row while it fires (`GET /v1/platform/status`),
a line in the log and a row of the audit log when it begins and when it ends, and a number for monitoring. No mail: that
channel is not there yet. Names hold ids and words of the program, never an address, a URL or what somebody wrote.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from postroom.accounts.audit import HOST, Entry, record
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.db import errors
from postroom.db.pool import Connection, Database

log = base_log.get("alerts")

MISSES: Final = 2
"""How often in a row it is found well again before an alert ends (C5)."""
MOST: Final = 1000
"""Alerts of one kind at a time; further ones wait until there is room."""
MOST_SHOWN: Final = 500


class Severity(StrEnum):
    PAGE = "page"
    """Somebody should look now."""
    TICKET = "ticket"


@dataclass(frozen=True, slots=True)
class Alert:
    """One that fires. `about` is an id or a word; empty where there is but one of its kind."""

    kind: str
    about: str
    severity: Severity
    fired_at: datetime

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.about}" if self.about else self.kind


@dataclass(frozen=True, slots=True)
class Condition:
    """What a department looks for. `look` says what it is true about at that moment, in an order that stays, and at
    most as many as it is told; `("",)` or nothing where there is but one."""

    kind: str
    severity: Severity
    look: Callable[[Connection, datetime, int], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Turn:
    """What a look changes, by `about`: what fires from now on, what was found well once more, what is over, and what
    turned out to be as bad as before."""

    fired: tuple[str, ...]
    missed: tuple[str, ...]
    resolved: tuple[str, ...]
    back: tuple[str, ...]


def turn(firing: Mapping[str, int], found: Collection[str]) -> Turn:
    """`firing`: what fires, and how often in a row it was found well again."""
    here = dict.fromkeys(found)
    gone = {about: misses + 1 for about, misses in firing.items() if about not in here}
    return Turn(
        fired=tuple(about for about in here if about not in firing),
        missed=tuple(about for about, misses in gone.items() if misses < MISSES),
        resolved=tuple(about for about, misses in gone.items() if misses >= MISSES),
        back=tuple(about for about, misses in firing.items() if about in here and misses),
    )


# One look of a kind at a time, whoever looks: nothing fires twice.
_HOLD: Final = "SELECT pg_advisory_xact_lock(hashtextextended('alerts:' || $1, 0))"
_FIRING: Final = "SELECT about, misses FROM alerts WHERE kind = $1"
_FIRE: Final = "INSERT INTO alerts (kind, about, severity, fired_at) SELECT $1, unnest($2::text[]), $3, $4"
_MISS: Final = "UPDATE alerts SET misses = misses + 1 WHERE kind = $1 AND about = ANY ($2::text[])"
_BACK: Final = "UPDATE alerts SET misses = 0 WHERE kind = $1 AND about = ANY ($2::text[])"
_RESOLVE: Final = "DELETE FROM alerts WHERE kind = $1 AND about = ANY ($2::text[])"
_SHOWN: Final = """
SELECT kind, about, severity, fired_at FROM alerts ORDER BY severity = 'page' DESC, fired_at DESC, kind, about LIMIT $1
"""
_COUNT: Final = "SELECT kind, severity, count(*) AS count FROM alerts GROUP BY kind, severity"


class Alerts:
    """Looks for everything that the departments look for; any number of processes may, and twice."""

    def __init__(self, database: Database, clock: Clock, ids: IdGenerator, conditions: Collection[Condition]) -> None:
        self._database, self._clock, self._ids, self._conditions = database, clock, ids, tuple(conditions)

    async def run(self) -> None:
        """Look once, at each by itself: one that cannot be looked at changes nothing, and keeps no other from it."""
        for one in self._conditions:
            try:
                await self._look(one)
            except Exception as error:
                if errors.is_transient(error):
                    raise
                log.error("alert_not_looked_at", alert=one.kind, error=type(error).__name__)

    async def counts(self) -> dict[tuple[str, str], int]:
        """How many fire, by kind and severity; 0 for what could."""
        found = {(one.kind, one.severity.value): 0 for one in self._conditions}
        async with self._database.acquire() as conn:
            rows = await conn.fetch(_COUNT)
        return found | {(row["kind"], row["severity"]): row["count"] for row in rows}

    async def _look(self, one: Condition) -> None:
        now = self._clock.now()
        async with self._database.transaction() as conn:
            await conn.execute(_HOLD, one.kind)
            firing = {row["about"]: row["misses"] for row in await conn.fetch(_FIRING, one.kind)}
            found = turn(firing, await one.look(conn, now, MOST))
            if found.missed:
                await conn.execute(_MISS, one.kind, found.missed)
            if found.back:
                await conn.execute(_BACK, one.kind, found.back)
            if found.resolved:
                await conn.execute(_RESOLVE, one.kind, found.resolved)
            if found.fired:
                await conn.execute(_FIRE, one.kind, found.fired, one.severity.value, now)
            for action, abouts in (("alert.fired", found.fired), ("alert.resolved", found.resolved)):
                for about in abouts:
                    name = Alert(one.kind, about, one.severity, now).name
                    entry = Entry(action, "alert", name, None, {"severity": one.severity.value})
                    await record(conn, self._ids, now, HOST, entry)
        tell = log.error if one.severity is Severity.PAGE else log.warning
        for about in found.fired:
            tell("alert_fired", alert=one.kind, about=about, severity=one.severity.value)
        for about in found.resolved:
            log.info("alert_resolved", alert=one.kind, about=about, severity=one.severity.value)


async def firing(conn: Connection) -> tuple[Alert, ...]:
    """What fires now, as many as are shown: those to look at now before the others, the newest first."""
    rows = await conn.fetch(_SHOWN, MOST_SHOWN)
    return tuple(Alert(row["kind"], row["about"], Severity(row["severity"]), row["fired_at"]) for row in rows)
