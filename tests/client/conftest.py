"""The deployment of the REST tests, for clients in process and over a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.servers.http import HttpListener
from postroom_client import AsyncClient, Client
from tests.client.bridge import URL, Bridge
from tests.rest.sender import Sender, make_sender
from tests.rest.standing import open_world
from tests.rest.test_links import sender as linking  # noqa: F401 - a fixture, found here by its name
from tests.rest.world import World


@pytest.fixture
async def world(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(db, clock, ids, tmp_path) as made:
        yield made


@dataclass
class Desk:
    """A mailbox that may send, and clients with a key of its tenant."""

    world: World
    sender: Sender

    @property
    def key(self) -> str:
        return self.world.key["authorization"].removeprefix("Bearer ")

    @property
    def box(self) -> str:
        return self.sender.box.public_id

    @property
    def app(self) -> httpx.ASGITransport:
        return httpx.ASGITransport(app=self.world.app, raise_app_exceptions=False)

    def client(self, transport: httpx.AsyncBaseTransport | None = None, **options: Any) -> AsyncClient:
        return AsyncClient(URL, self.key, transport=transport or self.app, **options)

    def blocking(self, transport: httpx.AsyncBaseTransport | None = None, **options: Any) -> Client:
        """To be called in the loop, and used in a thread."""
        bridge = Bridge(transport or self.app, asyncio.get_running_loop())
        return Client(URL, self.key, transport=bridge, **options)


@pytest.fixture
async def desk(world: World) -> Desk:
    return Desk(world, await make_sender(world))


@pytest.fixture
async def port(world: World) -> AsyncIterator[int]:
    """Of a listener of 127.0.0.1 before the application."""
    listener = HttpListener(world.app, ids=world.ids, on_drain=world.app.services.stopping.set)
    await listener.start("127.0.0.1", 0)
    yield listener.port
    await listener.drain(2)
