"""By the operator's relay: TLS with a certificate that holds, sign-in, one connection per message (mail-server C6,
outbound §9.3; N14, N16, N20)."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import Final

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.outbound.breakers import Breakers
from postroom.outbound.transports.base import Attempt, NoRoom, Parcel, for_all, paused, verdict_of
from postroom.outbound.transports.link import (
    Connect,
    Endpoint,
    Timeouts,
    TlsUse,
    Unusable,
    connect_tcp,
    open_link,
)
from postroom.outbound.transports.pool import PER_HOST, Links
from postroom.outbound.transports.smtp_driver import send
from postroom.smtp.client_events import ClientConfig
from postroom.smtp.outcome import Outcome, Verdict, classify
from postroom.smtp.schedule import Route

log = base_log.get("outbound")

SCOPE: Final = "smtp:deployment"
BREAKER_OPEN: Final = "The relay gave unknown outcomes; it is left alone for a while"
ALERT_SECONDS: Final = 60.0
"""How often the log tells of the same trouble with the relay."""


@dataclass(frozen=True, slots=True)
class SmarthostConfig:
    """`queue.relay_*`. `hostname` is our name in EHLO. Credentials never go without TLS."""

    hostname: str
    relay_host: str
    relay_port: int = 587
    tls: TlsUse = TlsUse.STARTTLS
    username: str = ""
    password: str = field(default="", repr=False)
    timeouts: Timeouts = field(default_factory=lambda: Timeouts.of(Route.SMARTHOST))

    def __post_init__(self) -> None:
        """Raises ValueError for what would send credentials in clear text, or would not insist on TLS (N16)."""
        if self.tls is TlsUse.OPPORTUNISTIC or (self.username and self.tls is TlsUse.NONE):
            raise ValueError("a relay with credentials is spoken to under TLS")


class Smarthost:
    """Hands everything to one relay, which reports nothing back: what it takes is `submitted`."""

    def __init__(
        self,
        config: SmarthostConfig,
        breakers: Breakers,
        clock: Clock,
        *,
        connect: Connect = connect_tcp,
        context: ssl.SSLContext | None = None,
        connections: int = PER_HOST,
    ) -> None:
        self._config = config
        self._breakers = breakers
        self._clock = clock
        self._connect = connect
        self._links = Links(connections, idle_seconds=0.0)
        verified = context or ssl.create_default_context()
        self._endpoint = Endpoint(
            config.relay_host,
            config.relay_host,
            config.relay_port,
            config.tls,
            None if config.tls is TlsUse.NONE else verified,
            config.username,
            config.password,
        )
        self._client = ClientConfig(config.hostname, pipelining=False)
        self._silent_until = float("-inf")

    async def attempt(self, parcel: Parcel) -> Attempt | NoRoom:
        """One attempt, within `timeouts.attempt`."""
        passage = await self._breakers.passage(SCOPE)
        if passage is None:
            return Attempt(for_all(parcel.group, paused(BREAKER_OPEN)), made=False)
        endpoint = self._endpoint
        if not self._links.reserve(endpoint.key):
            return NoRoom()
        deadline = asyncio.get_running_loop().time() + self._config.timeouts.attempt
        link = None
        try:
            link = await open_link(endpoint, self._client, self._config.timeouts, self._connect, deadline)
            sent = await send(link, parcel, Route.SMARTHOST, endpoint.name, deadline)
        except Unusable as unusable:
            outcome = classify(unusable.evidence, Route.SMARTHOST)
            self._alert(outcome)
            return Attempt(for_all(parcel.group, outcome, endpoint.name), is_down=True)
        finally:
            self._links.drop(endpoint.key, link)
        if any(verdict_of(report) is Verdict.UNCERTAIN for report in sent.reports):
            await self._breakers.unknown(passage)
        elif any(evidence.reply is not None for evidence in sent.evidence):
            await self._breakers.definite(passage)
        return Attempt(sent.reports, f"smtp:{endpoint.name}:{parcel.group.letter.rfc_message_id}")

    def _alert(self, outcome: Outcome) -> None:
        """Its login or its TLS does not work: an operator is to mend it, and mail waits (§9.3)."""
        now = self._clock.monotonic()
        if outcome.issue is not None and now >= self._silent_until:
            self._silent_until = now + ALERT_SECONDS
            log.error("smarthost_refuses", issue=outcome.issue.value, smtp_code=outcome.code)

    async def close(self) -> None:
        self._links.close()
