"""Webhooks: from the commit of an event to the beginning of its first attempt, while one endpoint in twenty is dead.

Each event is one tenant's and has one endpoint. The receivers are within this process: one that is well answers
after 5 ms, a dead one after 15 seconds with a time-out, so that what is timed is ours. Hints, dispatch, claims and
outcomes are those of an installation, on a PostgreSQL of the benchmark's own; TLS and the network are not measured.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping
from typing import Any, Final, cast

import uvloop

from benchmarks.common import Row, row, work_directory
from postroom.accounts.policy_rules import Stance
from postroom.base.clock import SystemClock
from postroom.base.ids import IdGenerator
from postroom.base.sealed_columns import WEBHOOK_SECRET
from postroom.base.sealing import Keyring
from postroom.db import Database, Listener, LocalPostgres, Migrator, Notifier
from postroom.events.live import CHANNEL
from postroom.events.webhooks.service import Webhooks
from postroom.net.guarded_http import Code, Failure, GuardedClient, Response

TARGET_MS: Final = 250.0
RATE: Final = 100
"""Events a second while the first rows are measured."""
DEAD: Final = 20
"""One endpoint in so many."""
_CLOCK: Final = SystemClock()
_FILL: Final = """
WITH t AS (
  INSERT INTO tenants (public_id, slug, name, mode, address_suffix, suffix_fold, created_at, updated_at)
  SELECT 'ten_' || lpad(n::text, 26, '0'), 'tenant' || n, 'n', 'live', '.tenant' || n, '.tenant' || n, now(), now()
  FROM generate_series(1, $1::integer) n RETURNING id
)
INSERT INTO webhook_endpoints (public_id, tenant_id, url, events, created_at, updated_at)
SELECT 'whk_' || lpad(id::text, 26, '0'), id, 'https://h' || id || '.example.com/', '{*}', now(), now() FROM t
RETURNING id, tenant_id
"""
_EVENT: Final = """
INSERT INTO events (public_id, type, tenant_id, owner_kind, owner_id, payload, occurred_at)
SELECT e, 'member.joined', t, 'platform', 'p', $3, $4 FROM unnest($1::text[], $2::bigint[]) AS x (e, t)
"""


class Receivers:
    """Notes when the first request about each event began."""

    def __init__(self, dead: frozenset[str]) -> None:
        self._dead = dead
        self.came: dict[str, float] = {}

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], **_: Any) -> Response | Failure:
        self.came.setdefault(headers["webhook-id"], time.perf_counter())
        if url in self._dead:
            await asyncio.sleep(15)
            return Failure(Code.TIMEOUT, 15_000)
        await asyncio.sleep(0.005)
        return Response(204, 5, b"", complete=True)


async def _measure(db: Database, endpoints: int, events: int) -> list[Row]:
    ids, ring, payload = IdGenerator(_CLOCK), Keyring(b"m" * 32), b'{"data": "' + b"x" * 1500 + b'"}'
    async with db.transaction() as conn:
        made = await conn.fetch(_FILL, endpoints)
        for one in made:
            sealed = ring.seal(WEBHOOK_SECRET, b"s" * 32, one["id"])
            await conn.execute(
                "INSERT INTO webhook_secrets (endpoint_id, secret_enc) VALUES ($1, $2)", one["id"], sealed
            )
    tenants = [one["tenant_id"] for one in made]
    dead = frozenset(tenants[::DEAD])
    receivers = Receivers(frozenset(f"https://h{tenant}.example.com/" for tenant in dead))
    notifier, listener = Notifier(db), Listener(db)
    webhooks = Webhooks(
        *(db, ids, _CLOCK, ring, cast(GuardedClient, receivers)),
        hash_key=b"h" * 32,
        stance=Stance(),
        hint=lambda key: None,
    )
    listener.add(CHANNEL, webhooks.happened)
    await notifier.start()
    await listener.start()
    work = [asyncio.create_task(webhooks.dispatcher.run()), asyncio.create_task(webhooks.deliverer.run())]
    await asyncio.sleep(1)
    committed: dict[str, float] = {}
    well: set[str] = set()

    async def commit(owners: list[int]) -> None:
        names = [ids.new("evt_") for _ in owners]
        async with db.acquire() as conn:
            await conn.execute(_EVENT, names, owners, payload, _CLOCK.now())
        at = time.perf_counter()
        committed.update(dict.fromkeys(names, at))
        well.update(name for name, owner in zip(names, owners, strict=True) if owner not in dead)
        notifier.hint(CHANNEL, owners[0], len(committed))

    async def drained(deadline: float) -> None:
        end = time.perf_counter() + deadline
        while not well <= receivers.came.keys():
            if time.perf_counter() > end:
                raise RuntimeError(f"{len(well - receivers.came.keys())} events of live endpoints were not sent")
            await asyncio.sleep(0.01)

    begun = time.perf_counter()
    for n in range(events):
        await asyncio.sleep(max(0.0, begun + n / RATE - time.perf_counter()))
        await commit([tenants[n % len(tenants)]])
    await drained(60)
    waits = sorted((receivers.came[name] - committed[name]) * 1e3 for name in well)
    burst = [tenants[n % len(tenants)] for n in range(events)]
    well.clear()
    begun = time.perf_counter()
    for at in range(0, events, 100):
        await commit(burst[at : at + 100])
    await drained(300)
    rate = len(well) / (time.perf_counter() - begun)
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await listener.stop()
    await notifier.stop()
    what = f"{endpoints} endpoints, 1 in {DEAD} dead"
    return [
        row(f"Commit to first attempt, {RATE} events/s, {what}, p50", statistics.median(waits), "ms"),
        row("  the same, p95", statistics.quantiles(waits, n=20)[18], "ms", target=TARGET_MS),
        row("  the same, the longest", waits[-1], "ms"),
        row(f"A burst of {events} events, live endpoints", rate, "events/s"),
    ]


async def _run(endpoints: int, events: int) -> list[Row]:
    with work_directory("webhooks") as root:
        server = LocalPostgres(root, watch=False)
        await server.start()
        try:
            async with Database(server.dsn, min_size=2, max_size=10) as db:
                await Migrator(db).run()
                return await _measure(db, endpoints, events)
        finally:
            await server.stop()


def run(quick: bool) -> list[Row]:
    """The rows of the table."""
    return uvloop.run(_run(100, 500) if quick else _run(1000, 10_000))
