"""A room with webhooks."""

from __future__ import annotations

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from tests.events.hooks import Room


@pytest.fixture
def room(db: Database, clock: ManualClock, ids: IdGenerator) -> Room:
    return Room(db, clock, ids)
