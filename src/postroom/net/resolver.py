"""The DNS for everybody in one process: cached, bounded, and never for longer than it was given (mail-server G4).

Identical questions that are under way are one. The next name server is asked when one fails; one that did not answer is
asked last for a while. Answers are kept by their TTL, denials by the zone's SOA (RFC 2308 §5), failures for seconds
(RFC 9520 §3.2). A denial without SOA is not kept (RFC 2308 §5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address
from typing import Final, cast

from dns.name import Name

from postroom.base.clock import Clock
from postroom.net.dns_cache import Absent, AnswerCache, AnyRecord, Failed, Found, Outcome, Question
from postroom.net.dns_types import (
    Answer,
    Bogus,
    Failure,
    InvalidName,
    IpAddress,
    Kind,
    MxRecord,
    NoData,
    NoSuchName,
    TemporaryFailure,
    TlsaRecord,
    ascii_name,
)
from postroom.net.dns_wire import Follow, HttpsPost, Options, Scheme, Server, Wire, tls_context, wire_name

MAX_SERVERS: Final = 8
MAX_FOLLOWED: Final = 8
"""Further questions to follow CNAMEs that name servers leave to us."""
MAX_WAITING: Final = 10_000
"""Different questions under way, those included that wait for a socket."""
AVOID_SECONDS: Final = 30.0
"""How long a name server that did not answer is asked after the others."""
FAILURE_SECONDS: Final = 5.0
"""How long a failure is the answer (RFC 9520 §3.2: at least 1 s, at most 5 min)."""

_FIXED: Final[dict[str, dict[Kind, AnyRecord]]] = {
    # RFC 6761 §6.3 and §6.4, RFC 7686 §2: never asked for.
    "localhost": {Kind.A: IPv4Address("127.0.0.1"), Kind.AAAA: IPv6Address("::1")},
    "invalid": {},
    "onion": {},
}
_SILENT: Final = frozenset({Failure.TIMEOUT, Failure.NETWORK})


@dataclass(frozen=True, slots=True)
class ResolverLimits:
    """The section `dns` of the settings (mail-server G4), and bounds that nobody needs to set.

    `attempts` is the number of retries after the first try, each at the next name server.
    """

    timeout_secs: float = 3.0
    attempts: int = 1
    cache_ttl_secs: int = 300
    negative_ttl_secs: int = 60
    ttl_floor_secs: int = 5
    cache_entries: int = 10_000
    cache_bytes: int = 16 * 1024 * 1024
    sockets: int = 256

    @property
    def total_secs(self) -> float:
        """The longest that a question takes, however many CNAMEs it leads through."""
        return self.timeout_secs * (self.attempts + 1)


class CachingResolver:
    """A `Resolver` over name servers that recurse. It lives on one event loop; `aclose` it there.

    A server of `tls` or `https` without `https` given makes the constructor read the system's authorities, which
    blocks. Raises ValueError without a name server or for too many, ImportError when a URL is given without httpx.
    """

    def __init__(
        self,
        clock: Clock,
        servers: Sequence[Server],
        *,
        limits: ResolverLimits | None = None,
        options: Options | None = None,
        https: HttpsPost | None = None,
    ) -> None:
        if not 0 < len(servers) <= MAX_SERVERS:
            raise ValueError(f"from one to {MAX_SERVERS} name servers are needed")
        self._clock, self._servers = clock, tuple(servers)
        self._limits = limits or ResolverLimits()
        schemes = {server.scheme for server in servers}
        if Scheme.HTTPS in schemes and https is None:
            from postroom.net.doh import HttpxPost  # only here is an HTTP client needed

            https = HttpxPost()
        self._wire = Wire(options or Options(), tls=tls_context() if Scheme.TLS in schemes else None, https=https)
        self._cache = AnswerCache(entries=self._limits.cache_entries, size_bytes=self._limits.cache_bytes)
        self._sockets = asyncio.Semaphore(self._limits.sockets)
        self._flights: dict[Question, asyncio.Task[Outcome]] = {}
        self._avoided: dict[Server, float] = {}
        self._closed = False

    async def a(self, name: str, *, within: float | None = None) -> Answer[IPv4Address]:
        return cast(Answer[IPv4Address], await self._ask(name, Kind.A, within))

    async def aaaa(self, name: str, *, within: float | None = None) -> Answer[IPv6Address]:
        return cast(Answer[IPv6Address], await self._ask(name, Kind.AAAA, within))

    async def mx(self, name: str, *, within: float | None = None) -> Answer[MxRecord]:
        return cast(Answer[MxRecord], await self._ask(name, Kind.MX, within))

    async def txt(self, name: str, *, within: float | None = None) -> Answer[bytes]:
        """The strings of each record joined without anything between them (RFC 7208 §3.3)."""
        return cast(Answer[bytes], await self._ask(name, Kind.TXT, within))

    async def ptr(self, address: IpAddress, *, within: float | None = None) -> Answer[str]:
        return cast(Answer[str], await self._ask(address.reverse_pointer, Kind.PTR, within))

    async def tlsa(self, name: str, *, within: float | None = None) -> Answer[TlsaRecord]:
        return cast(Answer[TlsaRecord], await self._ask(name, Kind.TLSA, within))

    def known(self, name: str, kind: Kind) -> Outcome | None:
        """What can be said of a name (of `ascii_name`) without asking anybody, for who has no time to wait."""
        fixed = _fixed(name, kind)
        if fixed is not None:
            return fixed[0]
        kept = self._cache.get((name, kind), self._clock.monotonic())
        return None if kept is None else kept[0]

    def forget(self) -> None:
        """Empty the cache; questions under way go on."""
        self._cache.clear()

    async def aclose(self) -> None:
        """Give up what is under way: who waits for it gets a `TemporaryFailure`, as does who asks from now on."""
        self._closed = True
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        await self._wire.aclose()

    async def _ask(self, name: str, kind: Kind, within: float | None) -> Answer[AnyRecord]:
        asked = ascii_name(name)
        if asked is None:
            raise InvalidName(name, kind)
        outcome, left = _fixed(asked, kind) or self._cache.get((asked, kind), self._clock.monotonic()) or (None, 0.0)
        if outcome is None:
            outcome = await self._in_flight((asked, kind), within)
            left = self._seconds_to_keep(outcome)
        return _told(outcome, asked, kind, left)

    async def _in_flight(self, question: Question, within: float | None) -> Outcome:
        if self._closed:
            return Failed(Failure.CLOSED)
        flight = self._flights.get(question)
        if flight is None:
            if len(self._flights) >= MAX_WAITING:
                return Failed(Failure.OVERLOADED)
            flight = asyncio.create_task(self._fetch(question))
            self._flights[question] = flight
            flight.add_done_callback(lambda _: self._flights.pop(question, None))
        # `wait` neither cancels the question nor takes its cancellation for one of who waits: others may wait, too.
        await asyncio.wait((flight,), timeout=within)
        if not flight.done():
            return Failed(Failure.TIMEOUT)
        return Failed(Failure.CLOSED) if flight.cancelled() else flight.result()

    async def _fetch(self, question: Question) -> Outcome:
        try:
            async with asyncio.timeout(self._limits.total_secs), self._sockets:
                outcome = await self._follow(question)
        except TimeoutError:
            outcome = Failed(Failure.TIMEOUT)
        self._cache.put(question, outcome, self._clock.monotonic(), self._seconds_to_keep(outcome))
        return outcome

    def _seconds_to_keep(self, outcome: Outcome) -> float:
        limits = self._limits
        if isinstance(outcome, Failed):
            return FAILURE_SECONDS
        if isinstance(outcome, Absent):
            return (
                0.0 if outcome.ttl is None else min(max(outcome.ttl, limits.ttl_floor_secs), limits.negative_ttl_secs)
            )
        return min(max(outcome.ttl, limits.ttl_floor_secs), limits.cache_ttl_secs)

    async def _follow(self, question: Question) -> Outcome:
        """Ask, and ask on while servers leave the rest of a chain of CNAMEs to us (RFC 1034 §3.6.2)."""
        name, steps = wire_name(question[0]), list[Follow]()
        for _ in range(MAX_FOLLOWED + 1):
            outcome = await self._try_servers(name, question[1])
            if not isinstance(outcome, Follow):
                return _at_end(outcome, steps)
            steps.append(outcome)
            name = outcome.name
        return Failed(Failure.CHAIN)

    async def _try_servers(self, name: Name, kind: Kind) -> Outcome | Follow:
        servers = self._in_order()
        failed = Failed(Failure.TIMEOUT)
        for number in range(self._limits.attempts + 1):
            server = servers[number % len(servers)]
            outcome = await self._wire.ask(server, name, kind, self._limits.timeout_secs)
            if not isinstance(outcome, Failed):
                self._avoided.pop(server, None)
                return outcome
            if outcome.reason is Failure.BOGUS:
                return outcome  # a server that does not validate would pass the forgery on
            if outcome.reason in _SILENT:
                self._avoided[server] = self._clock.monotonic() + AVOID_SECONDS
            failed = outcome
        return failed

    def _in_order(self) -> list[Server]:
        now = self._clock.monotonic()
        return sorted(self._servers, key=lambda server: self._avoided.get(server, 0.0) > now)


def _fixed(name: str, kind: Kind) -> tuple[Outcome, float] | None:
    records = _FIXED.get(name.rpartition(".")[2])
    if records is None:
        return None
    record = records.get(kind)
    if record is not None:
        return Found(name, (record,), 300, False), 300.0
    return Absent(name, bool(records), None, False), 0.0


def _at_end(outcome: Outcome, steps: Sequence[Follow]) -> Outcome:
    """What the end of a chain says, for no longer and with no more certainty than its steps."""
    if isinstance(outcome, Failed) or not steps:
        return outcome
    authenticated = outcome.authenticated and all(step.authenticated for step in steps)
    ttl = None if outcome.ttl is None else min(outcome.ttl, *(step.ttl for step in steps))
    if isinstance(outcome, Absent):
        return replace(outcome, ttl=ttl, authenticated=authenticated)
    return replace(outcome, ttl=ttl or 0, authenticated=authenticated)


def _told(outcome: Outcome, name: str, kind: Kind, left: float) -> Answer[AnyRecord]:
    """The answer or the error that an outcome is. Errors are made anew each time: a traceback belongs to one caller."""
    match outcome:
        case Found():
            return Answer(name, outcome.canonical, outcome.records, left, outcome.authenticated)
        case Absent():
            error = NoData if outcome.name_exists else NoSuchName
            raise error(name, kind, canonical=outcome.canonical, authenticated=outcome.authenticated)
        case Failed(reason=Failure.BOGUS):
            raise Bogus(name, kind)
        case Failed():
            raise TemporaryFailure(name, kind, outcome.reason)
