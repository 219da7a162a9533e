"""Direct to MX: the hosts of the recipient's domain in order, until one takes the message (mail-server C5, outbound
§9.2)."""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from postroom.base.clock import Clock
from postroom.net.dns_types import Resolver
from postroom.net.mx import NoSuchDomain, NullMx, RouteError, RoutePolicy
from postroom.net.route import route as find_route
from postroom.outbound.breakers import Breakers, Passage, scope_of
from postroom.outbound.transports.base import Attempt, NewMessageId, NoRoom, Parcel, for_all, paused, verdict_of
from postroom.outbound.transports.link import (
    Connect,
    Endpoint,
    Link,
    Timeouts,
    TlsUse,
    Unusable,
    any_certificate,
    connect_tcp,
    open_link,
)
from postroom.outbound.transports.pool import Links
from postroom.outbound.transports.smtp_driver import Gone, Sent, send
from postroom.smtp.client_events import ClientConfig
from postroom.smtp.evidence import Evidence, Fault, Stage
from postroom.smtp.outcome import BounceType, DeliveryStatus, Outcome, Verdict, classify
from postroom.smtp.schedule import Route

SMTP_PORT: Final = 25
WAY_SECONDS: Final = 2.0
MAX_WAYS: Final = 1000
BREAKER_OPEN: Final = "The destination gave unknown outcomes; it is left alone for a while"


@dataclass(frozen=True, slots=True)
class DirectConfig:
    """`hostname` is our name in EHLO. `port` is another one only in tests and behind address translation."""

    hostname: str
    policy: RoutePolicy = field(default_factory=RoutePolicy)
    timeouts: Timeouts = field(default_factory=lambda: Timeouts.of(Route.DIRECT))
    port: int = SMTP_PORT


@dataclass(frozen=True, slots=True)
class _Way:
    """A domain's hosts, each with its addresses, in the order to try them; the scope of its breaker; until when it
    serves, by the monotonic clock."""

    hosts: tuple[tuple[Endpoint, ...], ...]
    scope: str
    until: float


class Direct:
    """Delivers to the MX hosts. One per process; it keeps connections for a few seconds."""

    def __init__(
        self,
        config: DirectConfig,
        resolver: Resolver,
        breakers: Breakers,
        clock: Clock,
        *,
        random: Callable[[], float],
        new_id: NewMessageId,
        links: Links | None = None,
        connect: Connect = connect_tcp,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._config = config
        self._resolver = resolver
        self._breakers = breakers
        self._clock = clock
        self._random = random
        self._new_id = new_id
        self._links = links or Links()
        self._connect = connect
        self._context = context or any_certificate()
        self._client = ClientConfig(config.hostname)
        self._ways: OrderedDict[str, _Way] = OrderedDict()

    async def attempt(self, parcel: Parcel) -> Attempt | NoRoom:
        """One attempt at all hosts, within `timeouts.attempt`."""
        group = parcel.group
        deadline = asyncio.get_running_loop().time() + self._config.timeouts.attempt
        try:
            way = await self._way(group.domain)
        except RouteError as error:
            return Attempt(for_all(group, of_route_error(error)), is_down=not error.permanent)
        passage = await self._breakers.passage(way.scope)
        if passage is None:
            return Attempt(for_all(group, paused(BREAKER_OPEN)), made=False)
        return await self._over(way, parcel, passage, deadline)

    async def _way(self, domain: str) -> _Way:
        """Raises RouteError. For a moment the way of the message before serves: what goes to a domain one after the
        other keeps its connections, and equal hosts take turns all the same."""
        now = self._clock.monotonic()
        known = self._ways.get(domain)
        if known is not None and now < known.until:
            return known
        route = await find_route(self._resolver, domain, policy=self._config.policy, random=self._random)
        hosts = tuple(
            tuple(
                Endpoint(host.name, str(address), self._config.port, TlsUse.OPPORTUNISTIC, self._context)
                for address in host.addresses
            )
            for host in route.hosts
        )
        self._ways[domain] = way = _Way(hosts, scope_of("direct", route.names), now + WAY_SECONDS)
        self._ways.move_to_end(domain)
        while len(self._ways) > MAX_WAYS:
            self._ways.popitem(last=False)
        return way

    async def _over(self, way: _Way, parcel: Parcel, passage: Passage, deadline: float) -> Attempt | NoRoom:
        last: tuple[Evidence, str] | None = None
        was_busy = False
        for host in way.hosts:
            for endpoint in host:
                try:
                    sent = await self._to(endpoint, parcel, deadline)
                except Unusable as unusable:
                    last = unusable.evidence, endpoint.name
                    if unusable.evidence.stage is Stage.CONNECT:
                        continue
                    break
                if sent is None:
                    was_busy = True
                    continue
                await self._note(passage, sent)
                return Attempt(sent.reports, self._new_id(parcel.group))
            if asyncio.get_running_loop().time() >= deadline:
                break
        if was_busy or last is None:
            return NoRoom()
        evidence, name = last
        self._ways.pop(parcel.group.domain, None)
        return Attempt(for_all(parcel.group, classify(evidence, Route.DIRECT), name), is_down=True)

    async def _to(self, endpoint: Endpoint, parcel: Parcel, deadline: float) -> Sent | None:
        """Send it there; None when there is no room for a connection. Raises Unusable."""
        while (kept := self._links.take(endpoint.key)) is not None:
            try:
                return await self._on(kept, endpoint, parcel, deadline)
            except Gone:
                continue
        if not self._links.reserve(endpoint.key):
            return None
        try:
            link = await open_link(endpoint, self._client, self._config.timeouts, self._connect, deadline)
        except BaseException:
            self._links.drop(endpoint.key, None)
            raise
        return await self._on(link, endpoint, parcel, deadline)

    async def _on(self, link: Link, endpoint: Endpoint, parcel: Parcel, deadline: float) -> Sent:
        try:
            return await send(link, parcel, Route.DIRECT, endpoint.name, deadline)
        finally:
            self._links.keep(endpoint.key, link)

    async def _note(self, passage: Passage, sent: Sent) -> None:
        if any(verdict_of(report) is Verdict.UNCERTAIN for report in sent.reports):
            await self._breakers.unknown(passage)
        elif any(evidence.reply is not None for evidence in sent.evidence):
            await self._breakers.definite(passage)

    async def close(self) -> None:
        self._links.close()


def of_route_error(error: RouteError) -> Outcome:
    """What it means that there is no way to a domain (C5): for good if it does not exist or takes no mail."""
    if not error.permanent:
        return classify(Evidence(Stage.ROUTE, fault=Fault.DNS_FAILURE), Route.DIRECT)
    hard = isinstance(error, NoSuchDomain | NullMx)
    return Outcome(
        Verdict.PERMANENT,
        DeliveryStatus.BOUNCED,
        error.status,
        error.code,
        str(error)[:1].upper() + str(error)[1:],
        bounce=BounceType.HARD if hard else BounceType.SOFT,
        suppress=hard,
    )
