"""Everything between acceptance and the wire, on a database of the test's own and servers on this machine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs import MaildirStore
from postroom.db import Database
from postroom.events.catalogue import DELIVERY_UPDATED
from postroom.inbound.describe import describe
from postroom.mailbox.models import Appended, MailboxRef
from postroom.net.mx import Family, RoutePolicy
from postroom.outbound import store
from postroom.outbound.accept import Acceptance
from postroom.outbound.breakers import Breakers
from postroom.outbound.claiming import Group
from postroom.outbound.dispatch import Dispatcher, ReturnPath
from postroom.outbound.lanes import DispatchLimits
from postroom.outbound.models import (
    NewRecipient,
    Operation,
    OutboundState,
    Outgoing,
    RecipientField,
    RouteKind,
    SendKind,
)
from postroom.outbound.outcomes import Outcomes
from postroom.outbound.return_paths import own_sender
from postroom.outbound.settling import TELL_OUTCOMES, Telling
from postroom.outbound.transports.base import Transport
from postroom.outbound.transports.direct import Direct, DirectConfig
from postroom.outbound.transports.link import Timeouts
from postroom.outbound.transports.pool import Links
from postroom.outbound.transports.simulator import Simulator
from postroom.outbound.unsent import Unsent
from tests.mailbox.letters import Box, make_boxes
from tests.outbound.fake_mx import Net

HOSTNAME = "out.agents.example"
SOON = Timeouts(connect=2.0, command=5.0, final=5.0, attempt=20.0, block=5.0)
"""Long enough for a busy machine; tests of time-outs name shorter ones."""


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Until it holds; fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        await asyncio.sleep(0.005)


async def unsigned(wire: bytes, domain: str) -> bytes:
    return wire


async def in_process(size: int, function: Any, *arguments: Any) -> Any:
    return function(*arguments)


@dataclass
class MailRoom:
    """Accepts, dispatches, and shows what became of it."""

    db: Database
    clock: ManualClock
    ids: IdGenerator
    blobs: MaildirStore
    net: Net
    box: Box
    transports: dict[RouteKind, Transport]
    outcomes: Outcomes
    acceptance: Acceptance
    breakers: Breakers
    changed: list[tuple[MailboxRef, int]]
    noticed: list[bool] = field(default_factory=list)
    return_path: ReturnPath = own_sender

    @classmethod
    async def open(
        cls,
        db: Database,
        clock: ManualClock,
        ids: IdGenerator,
        directory: Path,
        *,
        kind: str = "agent",
        timeouts: Timeouts = SOON,
        policy: RoutePolicy | None = None,
        links: Links | None = None,
        telling: Telling = TELL_OUTCOMES,
    ) -> MailRoom:
        blobs = MaildirStore(directory, fsync=False)
        net = Net()
        (box,) = await make_boxes(db, ids, clock)
        if kind == "person":
            async with db.acquire() as conn:
                await conn.execute("UPDATE identities SET kind = 'person' WHERE id = $1", box.ref.mailbox_id)
        changed: list[tuple[MailboxRef, int]] = []
        noticed: list[bool] = []
        chance = random.Random(7)
        outcomes = Outcomes(
            db,
            blobs,
            clock,
            ids,
            random=chance.random,
            changed=lambda ref, modseq: changed.append((ref, modseq)),
            noticed=lambda: noticed.append(True),
            telling=telling,
        )
        breakers = Breakers(db, clock)

        def new_id(group: Group) -> str:
            return f"{group.route.value}:{ids.ulid()}"

        direct = Direct(
            DirectConfig(HOSTNAME, policy or RoutePolicy(family=Family.IPV4_ONLY), timeouts),
            net.dns,
            breakers,
            clock,
            random=chance.random,
            new_id=new_id,
            links=links,
            connect=net.connect,
        )

        def accepted(stored: Sequence[Appended]) -> None:
            pass

        acceptance = Acceptance(db, blobs, clock, ids, changed=accepted, wake=lambda: None)
        transports: dict[RouteKind, Transport] = {
            RouteKind.DIRECT: direct,
            RouteKind.SIMULATOR: Simulator(clock, new_id=new_id),
        }
        return cls(db, clock, ids, blobs, net, box, transports, outcomes, acceptance, breakers, changed, noticed)

    def dispatcher(self, limits: DispatchLimits | None = None, unsent: Unsent | None = None) -> Dispatcher:
        return Dispatcher(
            self.db,
            self.blobs,
            self.clock,
            self.outcomes,
            self.transports,
            sign=unsigned,
            offload=in_process,
            return_path=self.return_path,
            limits=limits,
            unsent=unsent,
        )

    async def accept(
        self,
        *recipients: str | NewRecipient,
        body: str = "Hello there",
        raw: bytes | None = None,
        route: RouteKind = RouteKind.DIRECT,
        **changes: Any,
    ) -> str:
        """Accept a message; its id."""
        message_id = self.ids.new("msg")
        if raw is None:
            raw = (
                f"From: Box <{self.box.address}>\r\nTo: somebody@example.com\r\nSubject: A subject\r\n"
                f"Date: Tue, 01 Jan 2030 00:00:00 +0000\r\nMessage-ID: <{message_id}@agents.example>\r\n\r\n{body}\r\n"
            ).encode()
        outgoing = Outgoing(
            id=message_id,
            mailbox=self.box.ref,
            tenant_id=self.box.tenant_id,
            identity_id=self.box.identity_id,
            operation=Operation.SEND,
            kind=SendKind.TRANSACTIONAL,
            envelope_from=self.box.address,
            recipients=tuple(
                one if isinstance(one, NewRecipient) else NewRecipient(one, RecipientField.TO, route)
                for one in recipients
            ),
            sent_copy=raw,
            wire=raw,
            content=describe(b"", raw, self.clock.now()),
        )
        await self.acceptance.accept(replace(outgoing, **changes))
        return message_id

    async def state(self, message_id: str) -> OutboundState:
        async with self.db.acquire() as conn:
            return (await store.states(conn, self.box.ref, [message_id]))[message_id]

    async def deliveries(self, message_id: str) -> dict[str, str]:
        """Recipient → status."""
        return {one.recipient: one.status.value for one in (await self.state(message_id)).deliveries}

    async def status(self, message_id: str) -> str:
        async with self.db.acquire() as conn:
            found = await conn.fetchval("SELECT status FROM messages WHERE public_id = $1", message_id)
        return str(found)

    async def events(self, message_id: str | None = None) -> list[tuple[str, dict[str, Any]]]:
        """Types and data of what integrators are told, in the mailbox's order."""
        return [event for event in await self.all_events(message_id) if event[0] != DELIVERY_UPDATED]

    async def updates(self, message_id: str | None = None) -> list[dict[str, Any]]:
        """What mail clients are told of deliveries (C2)."""
        return [data for kind, data in await self.all_events(message_id) if kind == DELIVERY_UPDATED]

    async def all_events(self, message_id: str | None = None) -> list[tuple[str, dict[str, Any]]]:
        """Types and data, in the mailbox's order."""
        async with self.db.acquire() as conn:
            rows = await conn.fetch(
                "SELECT e.type, e.payload FROM events e LEFT JOIN messages m ON m.id = e.message_id "
                "WHERE e.identity_id = $1 AND ($2::text IS NULL OR m.public_id = $2) ORDER BY e.sequence",
                *(self.box.ref.mailbox_id, message_id),
            )
        return [(row["type"], orjson.loads(row["payload"])["data"]) for row in rows]

    async def row(self, message_id: str, recipient: str | None = None) -> dict[str, Any]:
        """The delivery's row."""
        async with self.db.acquire() as conn:
            row = await conn.fetchrow(
                "SELECT d.* FROM deliveries d JOIN messages m ON m.id = d.message_id "
                "WHERE m.public_id = $1 AND ($2::text IS NULL OR d.recipient = $2)",
                *(message_id, recipient),
            )
        assert row is not None
        return dict(row)

    async def wire_key(self, message_id: str) -> str | None:
        async with self.db.acquire() as conn:
            key: str | None = await conn.fetchval(
                "SELECT o.wire_key FROM outbound_messages o JOIN messages m ON m.id = o.message_id "
                "WHERE m.public_id = $1",
                message_id,
            )
        return key

    async def close(self) -> None:
        for transport in self.transports.values():
            await transport.close()
        await self.blobs.close()
