"""What a process counts, and the page on which Prometheus reads it (cli-config-ops C3; events-webhooks-errors §15).

Each process counts what it did itself, from its start on, in a registry of its own. What stands in the database is
looked up when it is read. Labels are words of a fixed list: no id, no address, nothing that somebody sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.db import errors as db_errors
from postroom.events.webhooks.backlog import Backlog
from postroom.events.webhooks.models import AttemptStatus
from postroom.events.webhooks.outcomes import Outcome, Written
from postroom.net.guarded_http import Code
from postroom.servers.live_metrics import PREFIX, LiveMetrics

log = base_log.get("servers.metrics")

PATH: Final = "/metrics"
CACHE_SECONDS: Final = 5.0
"""For so long what stands in the database is not asked again, however often the page is read."""
LOOK_SECONDS: Final = 5.0
"""How long that may take; Prometheus gives up after ten seconds."""
ATTEMPT_MS: Final = (10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 15_000)
"""An attempt ends after 15 s."""
LATENCY_MS: Final = (
    *(50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000),
    *(30_000, 60_000, 120_000, 600_000, 3_600_000, 86_400_000),
)
"""With the bounds of NFR-REL-3 (30 s, 120 s) and NFR-REL-4 (24 h)."""
_INBOUND: Final = frozenset({"message.received", "message.quarantined"})
_CLASSES: Final = ("inbound", "other")

Look = Callable[[], Awaitable[Backlog]]
Firing = Callable[[], Awaitable[Mapping[tuple[str, str], int]]]
"""How many alerts fire, by kind and severity."""


async def none_firing() -> Mapping[tuple[str, str], int]:
    return {}


class Metrics:
    """Of one process. Counting never fails and never waits."""

    def __init__(self, clock: Clock, look: Look, *, firing: Firing = none_firing) -> None:
        self._clock, self._look, self._firing = clock, look, firing
        self._looking = asyncio.Lock()
        self._looked_at = float("-inf")
        self._standing = _Standing()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self._standing)
        ProcessCollector(registry=self.registry)
        registry = self.registry
        self._attempts = Counter(
            f"{PREFIX}webhook_attempts", "Attempts to tell an endpoint of an event", ["result"], registry=registry
        )
        self._attempt_ms = Histogram(
            f"{PREFIX}webhook_attempt_ms", "How long requests took", ["result"], buckets=ATTEMPT_MS, registry=registry
        )
        self._first_attempt_ms = Histogram(
            f"{PREFIX}webhook_first_attempt_ms",
            "From an event to the beginning of the first attempt",
            ["event_class"],
            buckets=LATENCY_MS,
            registry=registry,
        )
        self._latency = Histogram(
            f"{PREFIX}webhook_delivery_latency_ms",
            "From an event until an endpoint took it",
            ["event_class", "first_attempt"],
            buckets=LATENCY_MS,
            registry=registry,
        )
        self._dead = Counter(
            f"{PREFIX}webhook_dead", "Deliveries that were given up", ["event_class"], registry=registry
        )
        self._disabled = Counter(
            f"{PREFIX}webhook_disabled", "Endpoints that were switched off", ["reason"], registry=registry
        )
        self._blocked = Counter(
            f"{PREFIX}webhook_ssrf_blocked", "Attempts that would have reached what is inside", registry=registry
        )
        self.live = LiveMetrics(registry)
        self._begin()

    def _begin(self) -> None:
        """Everything is there at 0: what appears with its first count has no rate."""
        for status in AttemptStatus:
            self._attempts.labels(status.value)
            self._attempt_ms.labels(status.value)
        for name in _CLASSES:
            self._first_attempt_ms.labels(name)
            self._dead.labels(name)
            for first in ("true", "false"):
                self._latency.labels(name, first)
        for reason in ("failing", "gone"):
            self._disabled.labels(reason)

    def webhooks(self, written: Written) -> None:
        """What was written down of attempts. Retries and replays count as attempts; latencies are those of the
        schedule that the event itself began, not of one that a person asked for later."""
        for outcome, status in written.statuses:
            self._attempt(outcome, status)
        for one in written.disabled:
            self._disabled.labels(one.reason).inc()

    def _attempt(self, outcome: Outcome, status: AttemptStatus) -> None:
        task, answered = outcome.task, outcome.answered
        event_class = "inbound" if task.event_type in _INBOUND else "other"
        self._attempts.labels(status.value).inc()
        if answered.duration_ms is not None:
            self._attempt_ms.labels(status.value).observe(answered.duration_ms)
        if answered.error == Code.SSRF_BLOCKED:
            self._blocked.inc()
        if status is AttemptStatus.DEAD:
            self._dead.labels(event_class).inc()
        if task.first_attempt != 1 or task.is_older:
            return
        took = max(0.0, (outcome.at - task.occurred_at).total_seconds() * 1000)
        if task.attempt == 1:
            self._first_attempt_ms.labels(event_class).observe(max(0.0, took - (answered.duration_ms or 0)))
        if status is AttemptStatus.SUCCEEDED:
            self._latency.labels(event_class, "true" if task.attempt == 1 else "false").observe(took)

    async def page(self) -> bytes:
        """Everything in the text format of Prometheus. While the database is away, what stands in it is left out."""
        async with self._looking:
            now = self._clock.monotonic()
            if now - self._looked_at >= CACHE_SECONDS:
                self._standing.found = await self._looked()
                self._looked_at = now
        return generate_latest(self.registry)

    async def _looked(self) -> tuple[Backlog, Mapping[tuple[str, str], int]] | None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await self._look(), await self._firing()
        except Exception as error:
            if not (isinstance(error, TimeoutError) or db_errors.is_transient(error)):
                raise
            log.warning("metrics_incomplete", error=type(error).__name__)
            return None


class _Standing(Collector):
    """What was found in the database last."""

    def __init__(self) -> None:
        self.found: tuple[Backlog, Mapping[tuple[str, str], int]] | None = None

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            f"{PREFIX}database_up",
            "Whether the database answered; without it gauges are missing",
            float(self.found is not None),
        )
        if self.found is None:
            return
        found, firing = self.found
        alerts = GaugeMetricFamily(f"{PREFIX}alert_fired", "Alerts that fire", labels=["alert", "severity"])
        for labels, count in sorted(firing.items()):
            alerts.add_metric(labels, count)
        yield alerts
        yield GaugeMetricFamily(
            f"{PREFIX}outbox_undispatched_age_ms", "Age of the oldest event that is not dispatched", found.oldest_ms
        )
        yield GaugeMetricFamily(f"{PREFIX}outbox_undispatched", "Events that are not dispatched", found.undispatched)
        tasks = GaugeMetricFamily(
            f"{PREFIX}webhook_tasks", "Events that endpoints are still to be told of", labels=["state"]
        )
        for state in ("due", "waiting", "held", "parked"):
            tasks.add_metric([state], getattr(found, state))
        yield tasks


def create_metrics(metrics: Metrics) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """The ASGI application of the listener: one page, and nothing that a page of somebody else may read."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        status, body = 404, b"not found\n"
        if scope["path"] == PATH:
            status, body = 405, b"read it with GET\n"
            if scope["method"] in ("GET", "HEAD"):
                status, body = 200, await metrics.page()
        headers = [
            (b"content-type", (CONTENT_TYPE_PLAIN_0_0_4 if status == 200 else "text/plain; charset=utf-8").encode()),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]
        if status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return app
