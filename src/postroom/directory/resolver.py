"""Who is this recipient? The answer to every RCPT (inbound §7; mail-server A6; A6, A16, D22).

Only answers that accept are remembered. Every refusal is what the database says at that moment, so that an address, an
alias, a quota or a domain that came into being a moment ago counts at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from postroom.accounts.names import RELAYED_ROLES
from postroom.base import log
from postroom.base.clock import Clock
from postroom.db import Database, is_transient
from postroom.directory import routes, rules
from postroom.directory.models import Forward, Recipient, Refusal
from postroom.directory.rules import Route, Step

CACHE_SIZE: Final = 10_000
CACHE_SECONDS: Final = 60.0
QUERY_SECONDS: Final = 2.0
GUARD_MISSES: Final = 20
"""Unknown addresses of one domain in a second, after which the rest of that second is answered without a query (A16).
"""

TELL_SECONDS: Final = 3600.0
"""How often a process logs the same aliases that lead in a circle, or through too many."""

_MAX_CHAINS: Final = 1000
_GUARDED_DOMAINS: Final = 10_000
_EVERYTHING: Final = "*"

_log = log.get("directory")


@dataclass(frozen=True, slots=True)
class _Cached:
    route: Route
    until: float


@dataclass(frozen=True, slots=True)
class _Flight:
    """A query on its way, shared by all who ask for the same address."""

    task: asyncio.Task[Route]


class DictionaryGuard:
    """Counts misses by domain and second (A16). Bounded, and forgets with the second."""

    def __init__(self, limit: int = GUARD_MISSES) -> None:
        self._limit = limit
        self._second = 0
        self._misses: dict[str, int] = {}
        self.refused = 0
        """Recipients answered without a query since the start (`inbound_dictionary_guard_total`)."""

    def trips(self, domain: str, now: float) -> bool:
        """Whether the domain has had its misses of this second; counts what is refused for it."""
        self._turn(now)
        if self._misses.get(domain, 0) <= self._limit:
            return False
        self.refused += 1
        return True

    def missed(self, domain: str, now: float) -> None:
        """An unknown address was asked for."""
        self._turn(now)
        if domain in self._misses or len(self._misses) < _GUARDED_DOMAINS:
            self._misses[domain] = self._misses.get(domain, 0) + 1

    def _turn(self, now: float) -> None:
        if int(now) != self._second:
            self._second = int(now)
            self._misses.clear()


class BrokenChains:
    """Tells the operator of aliases that lead to nowhere (A6): of each chain once in an hour, whoever writes to it."""

    def __init__(self) -> None:
        self._told: OrderedDict[frozenset[str], float] = OrderedDict()

    def tell(self, steps: Sequence[Step], now: float) -> None:
        """`now` is of a clock that never goes back. From all addresses of a circle it is the same chain."""
        chain = frozenset(step.public_id for step in steps)
        if now < self._told.get(chain, now):
            return
        self._told[chain] = now + TELL_SECONDS
        self._told.move_to_end(chain)
        if len(self._told) > _MAX_CHAINS:
            self._told.popitem(last=False)
        _log.warning("alias chain without end", tenant=steps[0].tenant_public_id, alias=steps[0].public_id)


class Directory:
    """Answers for one process. It lives on the event loop.

    `security_contact` is a local address that the platform domain's role mail goes to; without one such mail is refused
    as unknown (A4). Call `invalidate` for every change of an address, identity, domain or tenant that another process
    tells of, and `invalidate("*")` when such news may have been lost.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        platform_domain: str,
        *,
        security_contact: str | None = None,
        cache_size: int = CACHE_SIZE,
        query_seconds: float = QUERY_SECONDS,
        guard: DictionaryGuard | None = None,
    ) -> None:
        self._db, self._clock = db, clock
        self._platform_domain = platform_domain
        self._security_contact = security_contact
        self._size = cache_size
        self._query_seconds = query_seconds
        self.guard = guard or DictionaryGuard()
        self._cache: OrderedDict[str, _Cached] = OrderedDict()
        self._flights: dict[str, _Flight] = {}
        self._broken = BrokenChains()
        self._generation = 0

    async def resolve(self, address: str) -> Recipient | Forward | Refusal:
        """The mailbox for a recipient, where its mail is to be passed on to, or the SMTP answer that refuses it. Never
        raises for what a client sent.

        A refusal for our own fault is always temporary.
        """
        parsed = rules.parse_recipient(address, self._platform_domain)
        if parsed is None:
            return rules.MALFORMED
        local, domain = parsed
        base_local, detail = rules.split_detail(local)
        asked = f"{local.lower()}@{domain}"
        if domain == self._platform_domain and base_local in RELAYED_ROLES:
            return await self._role(asked, detail)
        if not rules.is_plausible(base_local):
            base_local = ""
        return await self._find(f"{base_local}@{domain}", domain, asked, detail)

    async def owner_of(self, address: str) -> Recipient | None:
        """Whose an address in a header is, if its mailbox would take mail now; None also while the database is away.

        Nobody asked to send there, so it is no guess: it neither counts for the dictionary guard nor is refused by it.
        """
        parsed = rules.parse_recipient(address, self._platform_domain)
        if parsed is None:
            return None
        local, domain = parsed
        base_local, detail = rules.split_detail(local)
        if not rules.is_plausible(base_local):
            return None
        asked = f"{local.lower()}@{domain}"
        if domain == self._platform_domain and base_local in RELAYED_ROLES:
            found = await self._role(asked, detail, guarded=False)
        else:
            found = await self._find(f"{base_local}@{domain}", domain, asked, detail, guarded=False)
        return found if isinstance(found, Recipient) else None

    def invalidate(self, what: str) -> None:
        """Forget an address or alias, everything of an identity (`idn_…`) or a tenant (`ten_…`), a domain (`@name`), or
        all (`*`), with what was found by way of it.
        """
        # Answers that are on their way may be from before the change.
        self._generation += 1
        if what == _EVERYTHING:
            self._cache.clear()
        elif what.startswith("@"):
            self._forget(lambda names: any(name.endswith(what) for name in names))
        else:
            self._forget(lambda names: what in names)

    async def _role(self, asked: str, detail: str, *, guarded: bool = True) -> Recipient | Forward | Refusal:
        contact = None
        if self._security_contact is not None:
            contact = rules.parse_recipient(self._security_contact, self._platform_domain)
        if contact is None or (
            rules.split_detail(contact[0])[0] in RELAYED_ROLES and contact[1] == self._platform_domain
        ):
            return rules.UNKNOWN
        local, domain = contact
        base = f"{rules.split_detail(local)[0]}@{domain}"
        found = await self._find(base, domain, asked, detail, role=True, guarded=guarded)
        if isinstance(found, Refusal) and not found.is_temporary:
            return rules.UNKNOWN
        return found

    async def _find(
        self, base: str, domain: str, asked: str, detail: str, *, role: bool = False, guarded: bool = True
    ) -> Recipient | Forward | Refusal:
        now = self._clock.monotonic()
        cached = self._cache.get(base)
        if cached is not None and now < cached.until and rules.answer(cached.route, self._clock.now()) is None:
            self._cache.move_to_end(base)
            return _found(cached.route, base, asked, detail, role)
        if guarded and self.guard.trips(domain, now):
            return rules.GUARDED
        try:
            found = await self._ask(base, domain)
        except Exception as exc:
            if not is_transient(exc):
                raise
            _log.warning("directory unavailable", exc_info=exc)
            return rules.UNAVAILABLE
        refusal = rules.answer(found, self._clock.now())
        if refusal is None:
            return _found(found, base, asked, detail, role)
        if refusal is rules.BROKEN_CHAIN:
            self._broken.tell(found.steps, self._clock.monotonic())
        elif not role and self._ends_at_role(found):
            end = await self._role(asked, detail or found.steps[-1].detail, guarded=False)
            return replace(end, via=_names(found)) if isinstance(end, Recipient) else end
        elif found.is_local and found.domain_enabled and found.entry is None and not found.steps and guarded:
            self.guard.missed(domain, self._clock.monotonic())
        return refusal

    def _ends_at_role(self, route: Route) -> bool:
        """Whether aliases that may be followed lead to a role of the platform domain, which nobody has."""
        if not route.steps or route.entry is not None:
            return False
        local, _, domain = route.steps[-1].target_base.rpartition("@")
        followed = rules.answer(replace(route, leaves=True), self._clock.now()) is None
        return followed and domain == self._platform_domain and local in RELAYED_ROLES

    async def _ask(self, base: str, domain: str) -> Route:
        """The database's answer. One query at a time for an address, but a refusal is only taken from a query that
        was begun after the question came: an older one may not have seen what was committed since (D22).
        """
        joined = self._flights.get(base)
        if joined is not None:
            found = await asyncio.shield(joined.task)
            if rules.answer(found, self._clock.now()) is None:
                return found
        flight = self._flights.get(base)
        if flight is None or flight is joined:
            flight = self._start(base, domain)
        return await asyncio.shield(flight.task)

    def _start(self, base: str, domain: str) -> _Flight:
        flight = _Flight(asyncio.create_task(self._query(base, domain, self._generation)))
        self._flights[base] = flight
        flight.task.add_done_callback(lambda _: self._landed(base, flight))
        return flight

    def _landed(self, base: str, flight: _Flight) -> None:
        if self._flights.get(base) is flight:
            del self._flights[base]
        if not flight.task.cancelled():
            flight.task.exception()  # whoever asked has it; nobody may be left to ask

    async def _query(self, base: str, domain: str, generation: int) -> Route:
        async with asyncio.timeout(self._query_seconds), self._db.acquire() as conn:
            found = await routes.whole_route(conn, base, domain)
        if generation == self._generation:
            self._remember(base, found)
        return found

    def _remember(self, base: str, route: Route) -> None:
        if rules.answer(route, self._clock.now()) is not None:
            self._cache.pop(base, None)
            return
        self._cache[base] = _Cached(route, self._clock.monotonic() + CACHE_SECONDS)
        self._cache.move_to_end(base)
        if len(self._cache) > self._size:
            self._cache.popitem(last=False)

    def _forget(self, matches: Callable[[Collection[str]], bool]) -> None:
        for base in [base for base, cached in self._cache.items() if matches(_involved(base, cached.route))]:
            del self._cache[base]


def _involved(base: str, route: Route) -> list[str]:
    """The addresses, identities and tenants that an answer depends on."""
    names = [base]
    for step in route.steps:
        names += (step.target_base, step.tenant_public_id)
    if route.entry is not None:
        names += (route.entry.identity_public_id, route.entry.tenant_public_id)
    return names


def _names(route: Route) -> tuple[str, ...]:
    return tuple(step.address for step in route.steps)


def _found(route: Route, base: str, asked: str, detail: str, role: bool) -> Recipient | Forward:
    """What an accepted route is to whoever asked."""
    entry, last = route.entry, route.steps[-1] if route.steps else None
    if entry is None:
        assert last is not None, "somebody has it, or it is an alias"
        return Forward(last.tenant_id, last.tenant_public_id, last.mode, last.address, base, last.target)
    if last is not None:
        base, detail = last.target_base, detail or last.detail
    return Recipient(
        tenant_id=entry.tenant_id,
        mailbox_id=entry.identity_id,
        tenant_public_id=entry.tenant_public_id,
        identity_public_id=entry.identity_public_id,
        address=asked,
        base=base,
        detail=detail,
        kind=entry.kind,
        own_addresses=entry.own_addresses,
        role=role,
        via=_names(route),
    )
