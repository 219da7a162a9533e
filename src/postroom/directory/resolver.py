"""Who is this recipient? The answer to every RCPT (inbound §7; mail-server A6; A6, A16, D22).

Only answers that accept are remembered. Every refusal is what the database says at that moment, so that an address, a
quota or a domain that came into being a moment ago counts at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from postroom.accounts.names import RELAYED_ROLES
from postroom.base import log
from postroom.base.clock import Clock
from postroom.db import Database, is_transient
from postroom.directory import routes, rules
from postroom.directory.models import Recipient, Refusal
from postroom.directory.routes import Route
from postroom.directory.rules import Entry

CACHE_SIZE: Final = 10_000
CACHE_SECONDS: Final = 60.0
QUERY_SECONDS: Final = 2.0
GUARD_MISSES: Final = 20
"""Unknown addresses of one domain in a second, after which the rest of that second is answered without a query (A16).
"""

_GUARDED_DOMAINS: Final = 10_000
_EVERYTHING: Final = "*"

_log = log.get("directory")


@dataclass(frozen=True, slots=True)
class _Cached:
    entry: Entry
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
        self._generation = 0

    async def resolve(self, address: str) -> Recipient | Refusal:
        """The mailbox for a recipient, or the SMTP answer that refuses it. Never raises for what a client sent.

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
        """Whose an address in a header is, if mail to it would be taken now; None also while the database is away.

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
        return None if isinstance(found, Refusal) else found

    def invalidate(self, what: str) -> None:
        """Forget an address, everything of an identity (`idn_…`) or a tenant (`ten_…`), a domain (`@name`), or all
        (`*`).
        """
        # Answers that are on their way may be from before the change.
        self._generation += 1
        if what == _EVERYTHING:
            self._cache.clear()
        elif what.startswith("@"):
            self._forget(lambda base, _: base.endswith(what))
        elif "@" in what:
            self._cache.pop(what, None)
        else:
            self._forget(lambda _, entry: what in (entry.identity_public_id, entry.tenant_public_id))

    async def _role(self, asked: str, detail: str, *, guarded: bool = True) -> Recipient | Refusal:
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
    ) -> Recipient | Refusal:
        now = self._clock.monotonic()
        cached = self._cache.get(base)
        if cached is not None and now < cached.until and rules.decide(cached.entry, self._clock.now()) is None:
            self._cache.move_to_end(base)
            return _recipient(cached.entry, base, asked, detail, role)
        if guarded and self.guard.trips(domain, now):
            return rules.GUARDED
        try:
            found = await self._ask(base, domain)
        except Exception as exc:
            if not is_transient(exc):
                raise
            _log.warning("directory unavailable", exc_info=exc)
            return rules.UNAVAILABLE
        if not found.is_local:
            return rules.FOREIGN
        if not found.domain_enabled:
            return rules.DISABLED_DOMAIN
        if found.entry is None:
            if guarded:
                self.guard.missed(domain, self._clock.monotonic())
            return rules.UNKNOWN
        refusal = rules.decide(found.entry, self._clock.now())
        return refusal or _recipient(found.entry, base, asked, detail, role)

    async def _ask(self, base: str, domain: str) -> Route:
        """The database's answer. One query at a time for an address, but a refusal is only taken from a query that
        was begun after the question came: an older one may not have seen what was committed since (D22).
        """
        joined = self._flights.get(base)
        if joined is not None:
            found = await asyncio.shield(joined.task)
            if found.entry is not None and rules.decide(found.entry, self._clock.now()) is None:
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
            found = await routes.route(conn, base, domain)
        if generation == self._generation:
            self._remember(base, found.entry)
        return found

    def _remember(self, base: str, entry: Entry | None) -> None:
        if entry is None or rules.decide(entry, self._clock.now()) is not None:
            self._cache.pop(base, None)
            return
        self._cache[base] = _Cached(entry, self._clock.monotonic() + CACHE_SECONDS)
        self._cache.move_to_end(base)
        if len(self._cache) > self._size:
            self._cache.popitem(last=False)

    def _forget(self, matches: Callable[[str, Entry], bool]) -> None:
        for base in [base for base, cached in self._cache.items() if matches(base, cached.entry)]:
            del self._cache[base]


def _recipient(entry: Entry, base: str, asked: str, detail: str, role: bool) -> Recipient:
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
    )
