"""A whole deployment behind the ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest

from postroom.accounts import Level, NewTenant, ensure_deployment
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs import MaildirStore
from postroom.db import Database
from postroom.events.live import LiveHub
from postroom.mailbox.ingest import Ingest
from postroom.mailbox.models import Appended
from postroom.mailbox.service import Mailboxes
from postroom.servers.http import create_http
from tests.rest.lobby import Lobby, open_lobby
from tests.rest.world import DOMAIN, NoHints, World, services_of


@pytest.fixture
async def world(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[World]:
    await ensure_deployment(db, ids, clock, "store-1", DOMAIN)
    blobs = MaildirStore(tmp_path / "mail", fsync=False, clock=clock)
    hub = LiveHub(NoHints())
    mailboxes = Mailboxes(db, blobs, clock, ids, lambda ref, modseq: hub.changed(ref.mailbox_id, modseq))

    def committed(stored: Sequence[Appended]) -> None:
        for one in stored:
            hub.changed(one.mailbox.mailbox_id, one.modseq)

    ingest = Ingest(db, blobs, clock, committed=committed)
    ingest.start()
    services = services_of(db, clock, ids, blobs, hub, mailboxes)
    app = create_http(services)
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
    services.parser.close()
    await ingest.stop()
    await blobs.close()


@pytest.fixture
async def lobby(world: World) -> AsyncIterator[Lobby]:
    async with open_lobby(world) as made:
        yield made
