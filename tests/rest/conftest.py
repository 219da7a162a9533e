"""A whole deployment behind the ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from tests.rest.lobby import Lobby, open_lobby
from tests.rest.standing import open_world
from tests.rest.world import World


@pytest.fixture
async def world(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(db, clock, ids, tmp_path) as made:
        yield made


@pytest.fixture
async def lobby(world: World) -> AsyncIterator[Lobby]:
    async with open_lobby(world) as made:
        yield made
