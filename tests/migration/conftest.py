"""A house with services, on a database of the test's own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from tests.migration.moving import House, house


@pytest.fixture
async def home(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[House]:
    async with house(db, clock, ids, tmp_path) as made:
        yield made
