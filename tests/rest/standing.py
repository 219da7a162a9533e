"""The deployment of `world` for fixtures that live as long as they like, and one with everything that can be served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path

import httpx

from postroom.accounts import Level, NewTenant, ensure_deployment
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs import MaildirStore
from postroom.db import Database
from postroom.directory import Aliases
from postroom.events.live import LiveHub
from postroom.mailbox.ingest import Ingest
from postroom.mailbox.models import Appended
from postroom.mailbox.service import Mailboxes
from postroom.outbound.queue import MailQueue
from postroom.servers.http import HttpServices, create_http
from postroom.servers.http.security_text import SecurityText
from tests.rest.lobby import Lobby, open_lobby
from tests.rest.world import DOMAIN, HASH_KEY, NoHints, World, services_of, unsigned


@asynccontextmanager
async def open_world(db: Database, clock: ManualClock, ids: IdGenerator, root: Path) -> AsyncIterator[World]:
    await ensure_deployment(db, ids, clock, "store-1", DOMAIN)
    blobs = MaildirStore(root / "mail", fsync=False, clock=clock)
    hub = LiveHub(NoHints())
    mailboxes = Mailboxes(db, blobs, clock, ids, lambda ref, modseq: hub.changed(ref.mailbox_id, modseq))

    def committed(stored: Sequence[Appended]) -> None:
        for one in stored:
            hub.changed(one.mailbox.mailbox_id, one.modseq)

    ingest = Ingest(db, blobs, clock, committed=committed)
    ingest.start()
    services = services_of(db, clock, ids, blobs, hub, mailboxes)
    app = create_http(services)
    assert services.streams is not None
    following = asyncio.create_task(services.streams.feed.run())
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api.example") as client:
        made = World(
            *(db, clock, ids, blobs, hub, mailboxes, ingest, services.tenants, services.identities, services.keys),
            *(app, client),
        )
        made.tenant = await made.tenants.create(NewTenant(slug="acme", name="Acme"))
        made.other_tenant = await made.tenants.create(NewTenant(slug="globex", name="Globex"))
        made.box = await made.new_identity(made.tenant, "box")
        made.other_box = await made.new_identity(made.other_tenant, "other")
        made.platform = await made.new_key(Level.PLATFORM)
        made.key = await made.new_key(Level.TENANT, tenant=made.tenant)
        made.other_key = await made.new_key(Level.TENANT, tenant=made.other_tenant)
        yield made
    following.cancel()
    await asyncio.wait([following])
    services.parser.close()
    await ingest.stop()
    await blobs.close()


@asynccontextmanager
async def open_all(db: Database, clock: ManualClock, ids: IdGenerator, root: Path) -> AsyncIterator[Lobby]:
    """A deployment that serves every route that there is. Its client and its document are those of all of them."""
    async with open_world(db, clock, ids, root) as world, open_lobby(world) as lobby:
        services = everything(lobby)
        missing = [one.name for one in fields(HttpServices) if getattr(services, one.name) is None]
        assert missing == [], f"give everything() in tests/rest/standing.py a service: {missing}"
        app = create_http(services)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://api.example") as client:
            world.app = lobby.app = app
            world.client = lobby.client = client
            lobby.document = (await client.get("/openapi.json")).json()
            yield lobby


def everything(lobby: Lobby) -> HttpServices:
    """All services; those that `world` and `lobby` do without are made here."""
    world = lobby.world
    services = lobby.app.services
    return replace(
        services,
        security=SecurityText.of("security@agents.example", "api.example"),
        aliases=services.aliases or Aliases(world.db, world.ids, world.clock, HASH_KEY, DOMAIN, lambda address: None),
        queue=services.queue
        or MailQueue(
            *(world.db, world.blobs, world.clock, world.ids),
            sign=unsigned,
            wake=lambda: None,
            changed=lambda ref, modseq: None,
        ),
    )
