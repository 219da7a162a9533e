"""Mail of a test tenant to its own mailboxes: trusted without a look at DNS, and nobody else's is (L3; inbound §30)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.inbound import receive
from postroom.inbound.parsing import Parser
from postroom.inbound.receive import Receiver
from postroom.inbound.reception import Reception
from postroom.mailbox.ingest import Ingest
from postroom.outbound.models import Operation, RouteKind
from postroom.outbound.transports.local import Local
from tests.inbound.fakes import To, reader
from tests.logs import Log
from tests.mailbox.letters import Box, check_mailbox, make_boxes
from tests.outbound.mail_room import HOSTNAME, MailRoom

pytestmark = pytest.mark.covers("edge:L3", "FR-OUT-12")


@pytest.fixture
async def room(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[MailRoom]:
    made = await MailRoom.open(db, clock, ids, tmp_path / "blobs")
    yield made
    async with db.acquire() as conn:
        await check_mailbox(conn, made.box.ref)
    await made.close()


@asynccontextmanager
async def mailboxes(room: MailRoom, boxes: Mapping[str, Box]) -> AsyncIterator[None]:
    """The local transport, to these addresses."""

    async def resolve(address: str) -> Any:
        box = boxes[address]
        return To(address, box.ref.mailbox_id, box.ref.tenant_id, box.tenant_id, box.identity_id)

    async def nobody(address: str) -> To | None:
        return None

    ingest = Ingest(room.db, room.blobs, room.clock, committed=lambda _: None)
    ingest.start()
    receiver = Receiver(
        *(ingest, Parser(), room.clock, room.ids),
        hostname=HOSTNAME,
        version="1",
        local_mailbox=nobody,
        tokens=reader(room.clock),
    )
    reception = Reception(resolve, receiver)
    room.transports[RouteKind.LOCAL] = Local(
        reception.resolve, reception.receive, room.clock, hostname=HOSTNAME, new_id=lambda _: "local:1"
    )
    yield
    await ingest.stop()


async def received(room: MailRoom) -> dict[int, tuple[str, list[str]]]:
    """Mailbox → verdict and facts of what it received."""
    async with room.db.acquire() as conn:
        rows = await conn.fetch("SELECT mailbox_id, verdict, facts FROM messages WHERE source = 'mx'")
    assert len(rows) == len({row["mailbox_id"] for row in rows})
    return {row["mailbox_id"]: (row["verdict"], list(row["facts"])) for row in rows}


async def make_test_tenant(room: MailRoom) -> None:
    async with room.db.acquire() as conn:
        await conn.execute("UPDATE tenants SET mode = 'test' WHERE id = $1", room.box.ref.tenant_id)


async def test_it_passes_and_says_so(room: MailRoom) -> None:
    await make_test_tenant(room)
    async with mailboxes(room, {room.box.address: room.box}):
        message = await room.accept(room.box.address, route=RouteKind.LOCAL)
        await room.dispatcher().run_due()
    assert await room.deliveries(message) == {room.box.address: "delivered"}
    assert await received(room) == {room.box.ref.mailbox_id: ("pass", ["loopback", "bcc"])}
    (sent, delivered) = await room.events(message)
    assert (sent[0], sent[1]["provider"], delivered[0]) == ("message.sent", "loopback", "message.delivered")
    async with room.db.acquire() as conn:
        payload = await conn.fetchval("SELECT payload FROM events WHERE type = 'message.received'")
    data = orjson.loads(payload)["data"]
    assert (data["trust"]["verdict"], data["message"]["flags"]) == ("pass", ["loopback", "bcc"])


async def test_another_tenant_does_not_trust_it(room: MailRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever let it come so far: its copy is mail like any other, though the tenant's own copy came with it."""
    log = Log()
    monkeypatch.setattr(receive, "log", log)
    await make_test_tenant(room)
    (stranger,) = await make_boxes(room.db, room.ids, room.clock)
    domain = room.box.address.rpartition("@")[2]
    async with mailboxes(room, {room.box.address: room.box, f"out@{domain}": stranger}):
        await room.accept(room.box.address, f"out@{domain}", route=RouteKind.LOCAL)
        await room.dispatcher().run_due()
    assert await received(room) == {
        room.box.ref.mailbox_id: ("pass", ["loopback", "bcc"]),
        stranger.ref.mailbox_id: ("unverified", ["bcc"]),
    }
    assert "loopback_refused" in log.events


@pytest.mark.parametrize(
    ("is_test", "operation"), [(False, Operation.SEND), (True, Operation.REDIRECT), (False, Operation.REDIRECT)]
)
async def test_what_was_not_composed_by_a_test_tenant_is_mail_like_any_other(
    room: MailRoom, is_test: bool, operation: Operation
) -> None:
    """G11 for live mail; what is passed on was written by somebody else."""
    if is_test:
        await make_test_tenant(room)
    async with mailboxes(room, {room.box.address: room.box}):
        await room.accept(room.box.address, route=RouteKind.LOCAL, operation=operation)
        await room.dispatcher().run_due()
    assert await received(room) == {room.box.ref.mailbox_id: ("unverified", ["bcc"])}
