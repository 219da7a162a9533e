"""STORE and its kin: what changes, what is counted, what is logged."""

import pytest

from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox.flags import FlagResult
from postroom.mailbox.rules import FlagMode, LimitExceeded
from .seed import World, make_world


@pytest.fixture
async def world(db: Database, clock: ManualClock, ids: IdGenerator) -> World:
    return await make_world(db, clock, ids)


async def test_smoke(world: World) -> None:
    m = await world.add()
    inbox = await world.folder("INBOX")
    print(await world.boxes.set_flags(world.ref, inbox, [m.uid, 99], FlagMode.ADD, ["$Seen", "x"]))
    print(await world.boxes.list_folders(world.ref))
    print(await world.boxes.queries.list_threads(world.ref, __import__("postroom.mailbox.queries").mailbox.queries.ThreadFilter(), limit=10))
    print(await world.boxes.queries.list_messages(world.ref, __import__("postroom.mailbox.queries").mailbox.queries.MessageFilter(label="x"), limit=10))
