"""A deployment with tenants, a partner, events and endpoints, and receivers that answer as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, cast

from postroom.accounts.audit import HOST
from postroom.accounts.models import NewTenant, Principal, PrincipalKind
from postroom.accounts.partners import NewPartner, PartnerChanges, PartnerStatus
from postroom.accounts.permissions import MAY_HOLD, Level, Permission
from postroom.accounts.policy_rules import Stance
from postroom.accounts.service.partners import Partners
from postroom.accounts.service.tenants import Tenants
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring
from postroom.db import Database
from postroom.events.catalogue import envelope
from postroom.events.webhooks.delivering import Deliverer
from postroom.events.webhooks.dispatch import Dispatcher
from postroom.events.webhooks.endpoints import Endpoints, NewEndpoint
from postroom.events.webhooks.models import Endpoint
from postroom.events.webhooks.outcomes import Outcomes
from postroom.events.webhooks.replay import Replays
from postroom.events.webhooks.sending import Sender
from postroom.events.webhooks.store import Owner
from postroom.events.webhooks.upkeep import Upkeep
from postroom.net.guard import Refusal, check_url
from postroom.net.guarded_http import Failure, GuardedClient, Response

KEYRING: Final = Keyring(b"m" * 32)
HASH_KEY: Final = b"h" * 32
PLATFORM: Final = Principal(
    kind=PrincipalKind.KEY,
    public_id="key_00000000000000000000000000",
    row_id=1,
    level=Level.PLATFORM,
    permissions=frozenset(Permission),
)
OK: Final = Response(204, 3, b"", complete=True)


@dataclass
class Request:
    url: str
    body: bytes
    headers: Mapping[str, str]

    @property
    def event(self) -> str:
        return self.headers["webhook-id"]


@dataclass
class Receivers:
    """Stands for the guarded client. `answers`: URL → what its next request gets, or all of them."""

    requests: list[Request] = field(default_factory=list)
    answers: dict[str, Response | Failure] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    slow: dict[str, asyncio.Event] = field(default_factory=dict)
    """URL → what its requests wait for."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], **_: Any) -> Response | Failure:
        self.requests.append(Request(url, body, headers))
        self.asked.set()
        if url in self.slow:
            await self.slow[url].wait()
        return self.answers.get(url, OK)

    async def check(self, url: str, **_: Any) -> Refusal | None:
        found = check_url(url, own_hosts=(), platform_domain=None)
        if isinstance(found, Refusal):
            return found
        return Refusal.NO_ADDRESS if url in self.refused else None

    def taken(self, url: str) -> list[str]:
        """Ids of the events that went to the URL, in order."""
        return [one.event for one in self.requests if one.url == url]


@dataclass
class Room:
    db: Database
    clock: ManualClock
    ids: IdGenerator
    receivers: Receivers = field(default_factory=Receivers)
    sequence: int = 0
    keyring: Keyring = KEYRING
    endpoints: Endpoints = field(init=False)
    replays: Replays = field(init=False)
    dispatcher: Dispatcher = field(init=False)
    upkeep: Upkeep = field(init=False)
    partners: Partners = field(init=False)

    def __post_init__(self) -> None:
        client = cast(GuardedClient, self.receivers)
        self.endpoints = Endpoints(self.db, self.ids, self.clock, self.keyring, client)
        self.replays = Replays(self.db, self.ids, self.clock, stance=Stance())
        self.dispatcher = self.another_dispatcher()
        self.upkeep = Upkeep(self.db, self.clock, self.ids)
        self.partners = Partners(self.db, self.ids, self.clock)

    def another_dispatcher(self, dispatched: Callable[[], None] = lambda: None) -> Dispatcher:
        return Dispatcher(self.db, self.clock, dispatched=dispatched)

    def deliverer(self, drawn: float = 0.5, **more: Any) -> Deliverer:
        sender = Sender(self.clock, self.keyring, self.receivers.post)
        outcomes = Outcomes(self.ids, HASH_KEY, lambda: drawn)
        return Deliverer(self.db, self.clock, sender, outcomes, self.upkeep, **more)

    async def value(self, statement: str, *values: Any) -> Any:
        async with self.db.acquire() as conn:
            return await conn.fetchval(statement, *values)

    async def rows(self, statement: str, *values: Any) -> list[Any]:
        async with self.db.acquire() as conn:
            return list(await conn.fetch(statement, *values))

    async def tenant(self, slug: str, partner: int | None = None) -> int:
        made = await Tenants(self.db, self.ids, self.clock).create(NewTenant(slug=slug, name=slug))
        if partner is not None:
            await self.value(
                "INSERT INTO partner_tenants (partner_id, tenant_id) VALUES ($1, $2) RETURNING 1", partner, made.id
            )
        return made.id

    async def partner(self, name: str) -> tuple[int, str]:
        made = await self.partners.create(NewPartner(name=name))
        return made.id, made.public_id

    async def stand(self, partner: str, status: PartnerStatus) -> None:
        await self.partners.update(partner, PartnerChanges(status=status))

    async def identity(self, tenant: int, *, is_system: bool = False) -> tuple[int, str]:
        public_id = self.ids.new("idn_")
        key = await self.value(
            "INSERT INTO identities (public_id, tenant_id, username, username_fold, display_name, kind, is_system,"
            " created_at, updated_at) VALUES ($1, $2, $3, $3, 'n', 'agent', $4, $5, $5) RETURNING id",
            *(public_id, tenant, f"u{public_id[-6:].lower()}", is_system, self.clock.now()),
        )
        return key, public_id

    async def event(
        self,
        tenant: int | None,
        kind: str = "message.received",
        *,
        identity: tuple[int, str] | None = None,
        partner: int | None = None,
        about: str | None = None,
    ) -> str:
        """An event as it is in the outbox; its public id. `about`: the endpoint that was disabled."""
        self.sequence += 1
        public_id, owner = self.ids.new("evt_"), about or (identity[1] if identity else "platform")
        payload = envelope(
            event_id=public_id,
            kind=kind,
            occurred_at=self.clock.now(),
            tenant_id=await self.value("SELECT public_id FROM tenants WHERE id = $1", tenant) if about else None,
            identity_id=identity[1] if identity else None,
            sequence=None if about else self.sequence,
            data={"webhook_id": about, "reason": "failing"} if about else {"n": self.sequence},
        )
        await self.value(
            "INSERT INTO events (public_id, type, tenant_id, partner_id, identity_id, owner_kind, owner_id, sequence,"
            " payload, occurred_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING id",
            *(public_id, kind, tenant, partner, identity[0] if identity else None),
            *(
                "mailbox" if identity else "platform",
                owner,
                None if about else self.sequence,
                payload,
                self.clock.now(),
            ),
        )
        return public_id

    async def hook(
        self,
        tenant: int | None = None,
        partner: int | None = None,
        *,
        url: str | None = None,
        events: tuple[str, ...] = ("*",),
        identity_ids: tuple[str, ...] | None = None,
    ) -> Endpoint:
        made, _ = await self.endpoints.create(
            PLATFORM,
            Owner(tenant, partner),
            NewEndpoint(url or f"https://{self.ids.ulid().lower()}.example.com/", events, identity_ids),
            by=HOST,
        )
        return made

    async def dispatch(self) -> None:
        while await self.dispatcher.step():
            pass

    async def told(self) -> dict[str, list[str]]:
        """Dispatch and deliver what there is: URL → ids of events, in order."""
        before = len(self.receivers.requests)
        await self.dispatch()
        await self.deliverer().run_due()
        found: dict[str, list[str]] = {}
        for one in self.receivers.requests[before:]:
            found.setdefault(one.url, []).append(one.event)
        return found

    async def state(self, one: Endpoint) -> Any:
        return (await self.rows("SELECT * FROM webhook_endpoints WHERE id = $1", one.id))[0]

    async def attempts(self, one: Endpoint) -> list[Any]:
        return await self.rows("SELECT * FROM webhook_deliveries WHERE endpoint_id = $1 ORDER BY id", one.id)

    async def tasks(self) -> list[Any]:
        return await self.rows("SELECT * FROM webhook_tasks ORDER BY id")


def principal(level: Level, permissions: frozenset[Permission] | None = None, **keys: Any) -> Principal:
    return Principal(
        kind=PrincipalKind.KEY,
        public_id="key_00000000000000000000000001",
        row_id=2,
        level=level,
        permissions=MAY_HOLD[level] if permissions is None else permissions,
        **keys,
    )


MINUTE: Final = timedelta(minutes=1)
