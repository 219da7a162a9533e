"""How the control plane grows: the same questions to a deployment of 10 tenants with 100 identities each, and to one of
10,000 such tenants.

Run by name: `make bench ARGS="--only control_scale"`; with `--quick` the large one has 1,000 tenants. What is wanted is
the same time: at most one and a half times that of the small one, at the median. Services are asked in this process,
without HTTP before them and without anything remembered between two questions; each question is about another tenant,
identity, address or key than the last.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import uvloop

from postroom.accounts import Keys, KeyVerifier, Level, NewKey, Tenants, ensure_deployment, tenant_scope
from postroom.accounts.audit import AuditLog, Filter
from postroom.accounts.models import PLATFORM_SCOPE, Principal, PrincipalKind, identity_scope, partner_scope
from postroom.accounts.permissions import MAY_HOLD
from postroom.base import log
from postroom.base.clock import SystemClock
from postroom.base.ids import IdGenerator
from postroom.db import Connection, ConnectionTarget, Database, LocalPostgres, Migrator
from postroom.directory import Directory, Identities, NewMailbox, Recipient
from postroom.events.identities import IdentityAnnouncer

from .common import Row, row, work_directory
from .control_fill import DOMAIN, Size, fill, public_id

SMALL: Final = Size(10, 100)
LARGE: Final = Size(10_000, 100)
LARGE_QUICK: Final = Size(1_000, 100)
RATIO: Final = 1.5
"""How much longer the large one may take."""
PAGE: Final = 26
"""25 are shown, one tells whether more follow."""
SAMPLE: Final = 100
"""Keys whose secrets are known, of as many tenants where there are."""
_PEPPER: Final = b"p" * 32
_SETTINGS: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_size": "4GB",
    "max_locks_per_transaction": "512",
    "shared_buffers": "1GB",
}
"""For filling; nothing is written while it is measured. The memory is what somebody with a million mailboxes gives
PostgreSQL: whose pages are cold waits for them, whatever is asked.
"""

Question = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class House:
    """A deployment of a size, with the services that are asked."""

    size: Size
    tenants: Tenants
    identities: Identities
    keys: Keys
    verifier: KeyVerifier
    directory: Directory
    audit: AuditLog
    secrets: tuple[str, ...]

    def questions(self) -> dict[str, Question]:
        """What is measured, by name."""
        draw, size = random.Random(1), self.size
        secrets = itertools.cycle(self.secrets)

        def identity() -> int:
            return draw.randint(1, size.all_identities)

        def tenant() -> int:
            return draw.randint(1, size.tenants)

        def partner() -> int:
            return draw.randint(1, size.partners)

        def page(scope: Any, of: int | None, **more: Any) -> Awaitable[object]:
            return self.identities.page(scope, of, limit=PAGE, **more)

        def of_tenant(**more: Any) -> Awaitable[object]:
            chosen = tenant()
            return page(tenant_scope(chosen), chosen, **more)

        def deep() -> Awaitable[object]:
            """The last page of a tenant: after all but 25."""
            chosen = tenant()
            at = chosen + (PAGE - 1) * size.tenants
            return page(tenant_scope(chosen), chosen, after=size.made(at))

        def of_client() -> Awaitable[object]:
            chosen = identity()
            of = size.tenant_of(chosen)
            return page(tenant_scope(of), of, client_id=f"client-{chosen}")

        def one() -> Awaitable[object]:
            chosen = identity()
            of = size.tenant_of(chosen)
            return self.identities.get(identity_scope(of, chosen), public_id("idn_", chosen))

        def caller(level: Level) -> Principal:
            """Who holds all that the keys of the filling hold."""
            held = MAY_HOLD[level]
            if level is Level.PARTNER:
                return Principal(PrincipalKind.KEY, "key_", 0, level, held, partner_id=partner())
            return Principal(PrincipalKind.KEY, "key_", 0, level, held, tenant_id=tenant())

        return {
            "list identities of a tenant": of_tenant,
            "list identities of a tenant, the last page": deep,
            "list identities of a partner": lambda: page(partner_scope(partner()), None),
            "list all identities": lambda: page(PLATFORM_SCOPE, None),
            "list all identities, a page in the middle": lambda: page(
                PLATFORM_SCOPE, None, after=size.made(size.all_identities // 2)
            ),
            "get an identity": one,
            "get an identity by client_id": of_client,
            "look up an identity by address": lambda: self.identities.by_address(
                PLATFORM_SCOPE, size.address_of(identity())
            ),
            "list tenants of a partner": lambda: self.tenants.search(partner_id=partner(), limit=PAGE),
            "list ten tenants of all": lambda: self.tenants.search(limit=SMALL.tenants),
            "get a tenant": lambda: self.tenants.get(public_id("ten_", tenant())),
            "route an address": lambda: self._routed(size.address_of(identity())),
            "route an address that nobody has": lambda: self.directory.owner_of(f"nobody-{identity()}@{DOMAIN}"),
            "authorise a key": lambda: self.verifier.verify(next(secrets)),
            "list keys of a tenant": lambda: self.keys.page(None, tenant_id=tenant(), limit=PAGE),
            "list keys of a tenant, as its own key": lambda: self.keys.page(caller(Level.TENANT), limit=PAGE),
            "list keys of a partner": lambda: self.keys.page(caller(Level.PARTNER), limit=PAGE),
            "list audit of a tenant": lambda: self.audit.page(PLATFORM_SCOPE, tenant(), limit=PAGE),
            "list audit of a tenant, as its own key": lambda: self.audit.page(tenant_scope(tenant()), limit=PAGE),
            "list audit of an identity": lambda: self.audit.page(
                PLATFORM_SCOPE, filter_=Filter(target_id=public_id("idn_", identity())), limit=PAGE
            ),
            "list audit of a partner": lambda: self.audit.page(partner_scope(partner()), limit=PAGE),
            "list all audit": lambda: self.audit.page(PLATFORM_SCOPE, limit=PAGE),
        }

    async def _routed(self, address: str) -> None:
        # The database is what answers: whatever the directory remembers, it forgets.
        self.directory.invalidate("*")
        assert isinstance(await self.directory.resolve(address), Recipient)


@contextlib.asynccontextmanager
async def opened(url: str, size: Size) -> AsyncIterator[House]:
    """A deployment of that size in the empty database at `url`."""
    await Migrator(ConnectionTarget(url)).run()
    clock = SystemClock()
    ids = IdGenerator(clock)

    async def no_mailbox(conn: Connection, new: NewMailbox) -> None:
        raise NotImplementedError("nothing is made")

    async with Database(url, min_size=2, max_size=4) as db:
        await ensure_deployment(db, ids, clock, "bench", DOMAIN)
        await fill(url, size)
        keys = Keys(db, ids, clock, _PEPPER)
        secrets = []
        for number in range(min(SAMPLE, size.all_identities)):
            tenant = 1 + number * size.tenants // SAMPLE
            new = NewKey("a key", Level.TENANT, ("messages:read", "identities:read"), tenant)
            secrets.append((await keys.create(None, new))[1])
        yield House(
            size,
            Tenants(db, ids, clock),
            Identities(db, ids, clock, b"h" * 32, no_mailbox, IdentityAnnouncer(ids), lambda identity: None),
            keys,
            KeyVerifier(db, clock, _PEPPER),
            Directory(db, clock, DOMAIN),
            AuditLog(db),
            tuple(secrets),
        )


async def _times(questions: Sequence[Question], count: int) -> list[list[float]]:
    """Milliseconds of each of `count` answers to each of the questions, after a tenth of them to warm up. They are
    asked in turns, so that a busy moment of the machine is no difference between them.
    """
    times: list[list[float]] = [[] for _ in questions]
    for number in range(-max(20, count // 10), count):
        for question, found in zip(questions, times, strict=True):
            begun = time.perf_counter()
            await question()
            if number >= 0:
                found.append((time.perf_counter() - begun) * 1e3)
    return times


async def measure(small: Size, large: Size, count: int) -> list[Row]:
    """The rows for both sizes and their ratios."""
    rows: list[Row] = []
    async with contextlib.AsyncExitStack() as stack:
        server = LocalPostgres(
            stack.enter_context(work_directory("control-")), max_connections=30, settings=_SETTINGS, watch=False
        )
        await server.start()
        stack.push_async_callback(server.stop)
        begun = time.perf_counter()
        houses = []
        for name, size in (("small", small), ("large", large)):
            admin = await ConnectionTarget(server.dsn).connect()
            await admin.execute(f"CREATE DATABASE {name}")
            await admin.close()
            houses.append(await stack.enter_async_context(opened(server.dsn_for(name), size)))
        identities = large.all_identities
        rows.append(
            row(f"filling {large.tenants:,} tenants, {identities:,} identities", time.perf_counter() - begun, "s")
        )
        both = [house.questions() for house in houses]
        for name in both[0]:
            few, many = map(statistics.median, await _times([questions[name] for questions in both], count))
            rows.append(row(f"{name}, {small.tenants} tenants, p50", few, "ms"))
            rows.append(row(f"{name}, {large.tenants:,} tenants, p50", many, "ms"))
            rows.append(row(f"{name}, ratio", many / few, "×", target=RATIO))
    return rows


def run(quick: bool) -> list[Row]:
    """The rows of the table."""
    log.configure("warning", "text", sys.stderr)
    return uvloop.run(measure(SMALL, LARGE_QUICK if quick else LARGE, 200 if quick else 1000))
