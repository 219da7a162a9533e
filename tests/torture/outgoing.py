"""Kills while mail leaves (edges G1, G2, K3): a server that sends to a relay of ours, on a deployment of its own.

Whatever is killed, each message that was accepted is at the relay once, or its delivery says that this is not known and
it is there once at the most. A message that is said to be delivered is there.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from postroom.blobs import layout
from postroom.db import Connection
from tests.torture import deployment
from tests.torture.deployment import Broken, Server, free_ports
from tests.torture.sending import Outbox, Sending
from tests.torture.sink import Sink
from tests.torture.verify import broken

SENDS_PER_ROUND: Final = 140
DELAY: Final = 0.04
"""Seconds that the relay takes for an answer, at the most: in these it is killed, or the server is."""
REFUSED: Final = 0.05
FIRST_ANSWERS: Final = 20.0
SETTLE_SECONDS: Final = 20.0
IN_HAND: Final = 12
"""Messages of which one server process does not know the end, or has not written it down: it has four connections to
the relay, and each goes on while what came of the last message is still to be committed."""
TAKEN: Final = {"submitted", "delivered"}
WAITING: Final = {"queued", "deferred"}

# The time that a killed process's claims, keys and the pauses after failures take need not be waited for. Rows are
# locked in the order in which the server locks them.
_CLAIMS: Final = """
WITH held AS MATERIALIZED (SELECT id FROM deliveries WHERE lease_until > now() ORDER BY id FOR NO KEY UPDATE)
UPDATE deliveries d SET lease_until = now() FROM held WHERE d.id = held.id AND d.lease_until > now()
"""
_LAPSE: Final = (
    _CLAIMS,
    "UPDATE send_ledger SET lease_until = now() WHERE lease_until > now() AND message IS NULL",
)
_NEXT: Final = (
    """
    WITH late AS MATERIALIZED (
      SELECT id FROM deliveries WHERE next_attempt_at > now() ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE deliveries d SET next_attempt_at = now() FROM late WHERE d.id = late.id AND d.next_attempt_at > now()
    """,
    "UPDATE breakers SET open_until = now() WHERE open_until > now()",
)
_LEFT: Final = "SELECT count(*) FROM deliveries WHERE status IN ('queued', 'deferred')"
_WIRES: Final = "SELECT wire_key FROM outbound_messages WHERE wire_key IS NOT NULL"
_STANDING: Final = """
SELECT m.subject, m.public_id, d.recipient, d.status
FROM outbound_messages o
JOIN messages m ON m.tenant_id = o.tenant_id AND m.id = o.message_id
JOIN deliveries d ON d.tenant_id = o.tenant_id AND d.message_id = o.message_id
WHERE o.operation IN ('send', 'submission')
"""


class Strike(StrEnum):
    """What is done while mail leaves."""

    SINK = "sink"
    """The relay is killed between the end of a message and its answer."""
    SERVER = "server"
    WORKER = "worker"
    """One of several server processes."""
    POSTGRES = "postgres"
    CLAIMS = "claims"
    """All claims lapse while they are worked on, as those of a process do that stood still."""


ORDER: Final = (
    (1, (Strike.SINK, Strike.SERVER)),
    (2, (Strike.SERVER, Strike.CLAIMS)),
    (2, (Strike.WORKER, Strike.SINK)),
    (1, (Strike.POSTGRES, Strike.SERVER)),
    (1, (Strike.CLAIMS, Strike.SINK)),
    (2, (Strike.SERVER, Strike.WORKER)),
)
"""Server processes, and what is done to them, one after the other, round after round."""


UNKNOWN: Final[Mapping[Strike, Callable[[int], int]]] = MappingProxyType(
    {
        Strike.SINK: lambda processes: processes,
        Strike.SERVER: lambda processes: processes,
        Strike.WORKER: lambda _: 1,
        # Whoever sends lives on, and knows.
        Strike.POSTGRES: lambda _: 0,
        Strike.CLAIMS: lambda _: 0,
    }
)
"""How many of so many server processes lose what they have in hand, which then may be uncertain."""


@dataclass(slots=True)
class Standing:
    """What the database says of a message: its ids (one, if all is well) and the status for each recipient."""

    ids: set[str] = field(default_factory=set)
    statuses: dict[str, str] = field(default_factory=dict)


class Outgoing:
    """Rounds on one data directory, made by the first. `end` it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._seed = seed
        self._outbox = Outbox(seed)
        self._sink = Sink(directory / "sink.jsonl", delay=DELAY, refused=REFUSED)
        self._server: Server | None = None
        self._round = 0
        self._may_be_uncertain = 0
        self._uncertain = 0
        self.helpers_left = 0

    @property
    def server(self) -> Server | None:
        return self._server

    async def round(self) -> tuple[list[str], str]:
        """The next one; its faults, and the line that tells of it. Raises Broken."""
        processes, strikes = ORDER[self._round % len(ORDER)]
        self._round += 1
        rng = random.Random(f"{self._seed}/out/{self._round}")
        server = self._server = self._server or await self._make()
        if server.processes != processes and server.is_running:
            await server.terminate()
        server.processes = processes
        if not server.is_running:
            await server.start()
        began = time.monotonic()
        load = Sending(server.deployment, self._outbox, rng, most=SENDS_PER_ROUND)
        load.start()
        try:
            for strike in strikes:
                if not await load.answered(rng.randint(5, 40), FIRST_ANSWERS):
                    raise Broken(f"mail was not accepted for {FIRST_ANSWERS:.0f} s\n{server.tail()}")
                await asyncio.sleep(rng.uniform(0, 0.3))
                await self._strike(server, strike, rng)
        finally:
            await load.finish(FIRST_ANSWERS)
        faults, told = await self._check()
        names = "+".join(strikes)
        line = (
            f"{processes}×{names:15} {time.strftime('%H:%M:%S')} took {time.monotonic() - began:4.1f} s; "
            f"accepted {load.answers}, connections lost {load.lost}, deduplicated {load.deduplicated}; {told}"
        )
        return faults, line

    async def end(self) -> None:
        if self._server is not None:
            await self._server.end()
        await self._sink.end()

    async def _make(self) -> Server:
        rng = random.Random(f"{self._seed}/out")
        (port,) = free_ports(1, rng)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._sink.listen(port)
        await self._sink.start()
        extra = {
            "POSTROOM_QUEUE_RELAY_HOST": "localhost",
            "POSTROOM_QUEUE_RELAY_PORT": str(port),
            "POSTROOM_QUEUE_RELAY_TLS": "none",
            "POSTROOM_QUEUE_RETRY_SCHEDULE_SECS": "1",
            "POSTROOM_QUEUE_MAX_ATTEMPTS": "1000",
            "POSTROOM_QUEUE_POLL_INTERVAL_SECS": "0.5",
            "POSTROOM_LIMITS_SUBMISSION_RATE_LIMIT": "1000000",
            "POSTROOM_LIMITS_DAILY_SEND_LIMIT": "1000000",
        }
        made = await deployment.create(self._directory / "data", rng, agents=6, extra=extra, submission=True)
        return Server(made, self._directory / "server.log")

    # -- strikes -------------------------------------------------------------------------------------------------------

    async def _strike(self, server: Server, strike: Strike, rng: random.Random) -> None:
        self._may_be_uncertain += IN_HAND * UNKNOWN[strike](server.processes)
        if strike is Strike.SINK:
            await self._at_the_dot(rng)
            await self._sink.kill()
            await asyncio.sleep(rng.uniform(0, 0.2))
            await self._sink.start()
        elif strike is Strike.SERVER:
            if rng.random() < 0.7:
                await self._at_the_dot(rng)
            self.helpers_left += await server.kill()
            await self._execute(server, *_LAPSE, *_NEXT)
            await server.start()
        elif strike is Strike.CLAIMS:
            await self._at_the_dot(rng)
            await self._execute(server, _CLAIMS)
        else:
            if strike is Strike.WORKER:
                server.kill_worker(rng)
            else:
                server.kill_postmaster()
            deadline = time.monotonic() + FIRST_ANSWERS
            while not await server.is_ready():
                if time.monotonic() > deadline:
                    raise Broken(f"the server was not ready {FIRST_ANSWERS:.0f} s after its {strike} was killed")
                await asyncio.sleep(0.05)
            await self._execute(server, *_LAPSE)

    async def _at_the_dot(self, rng: random.Random) -> None:
        """Until the relay has a message that it has not answered for; not for long."""
        deadline = time.monotonic() + 2
        while self._sink.look().open <= 0 and time.monotonic() < deadline:  # noqa: ASYNC110 - no file tells that it grew
            await asyncio.sleep(0.001)
        await asyncio.sleep(rng.choice((0, 0, rng.uniform(0, 0.01))))

    async def _execute(self, server: Server, *statements: str) -> None:
        conn = await server.deployment.postgres.connect()
        try:
            for statement in statements:
                await conn.execute(statement)
        finally:
            await conn.close(timeout=10)

    # -- the check -----------------------------------------------------------------------------------------------------

    async def _check(self) -> tuple[list[str], str]:
        server = self._server
        assert server is not None
        conn = await server.deployment.postgres.connect()
        try:
            faults = await self._settled(conn)
            rows = await conn.fetch(_STANDING)
            faults += [fault async for fault in broken(conn)]
            faults += await self._wires(conn, server.deployment.data_dir)
        finally:
            await conn.close(timeout=10)
        seen = self._sink.look()
        standing: dict[str, Standing] = {}
        for row in rows:
            one = standing.setdefault(row["subject"], Standing())
            one.ids.add(row["public_id"])
            one.statuses[row["recipient"]] = row["status"]
        faults += self._compare(standing, seen.copies)
        faults += [f"{subject} arrived torn" for subject in seen.torn]
        faults += self._outbox.faults
        self._outbox.faults = []
        statuses = Counter(status for one in standing.values() for status in one.statuses.values())
        unsure = sum("uncertain" in one.statuses.values() for one in standing.values())
        if unsure - self._uncertain > self._may_be_uncertain:
            more = unsure - self._uncertain
            faults.append(f"{more} messages are uncertain, and {self._may_be_uncertain} were on their way at a kill")
        self._uncertain, self._may_be_uncertain = unsure, 0
        told = ", ".join(f"{status} {count}" for status, count in sorted(statuses.items()))
        return faults, f"in all: {told}, copies at the relay {seen.copies.total()}"

    async def _settled(self, conn: Connection) -> list[str]:
        """Wait until nothing waits any more, without waiting for the pauses in between."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while left := await conn.fetchval(_LEFT):
            if time.monotonic() > deadline:
                rows = await conn.fetch(
                    "SELECT status, tries, attempts, lease_until, next_attempt_at, data_started_at, smtp_response "
                    "FROM deliveries WHERE status IN ('queued', 'deferred') LIMIT 3"
                )
                return [f"{left} deliveries still wait after {SETTLE_SECONDS:.0f} s, such as {[*map(dict, rows)]}"]
            for statement in _NEXT:
                await conn.execute(statement)
            await asyncio.sleep(0.3)
        return []

    def _compare(self, standing: dict[str, Standing], copies: Counter[tuple[str, str]]) -> list[str]:
        """Messages in the database against those at the relay, and against what clients were told."""
        faults = []
        for subject, send in self._outbox.sends.items():
            found = standing.get(subject)
            if found is None:
                if send.accepted or any(copies[(subject, to)] for to in send.to):
                    faults.append(f"{subject}, accepted: {send.accepted}, is not there")
                continue
            if len(found.ids) > 1 or (send.message_id is not None and found.ids != {send.message_id}):
                faults.append(f"{subject} was accepted as {send.message_id}, and is there as {sorted(found.ids)}")
            if set(found.statuses) != set(send.to):
                faults.append(f"{subject} has deliveries to {len(found.statuses)} of {len(send.to)} recipients")
            faults += [
                f"{subject}: {copies[(subject, to)]} copies are at the relay, and the delivery is {status}"
                for to, status in found.statuses.items()
                if not _fits(status, copies[(subject, to)])
            ]
        strange = {subject for subject, _ in copies} - self._outbox.sends.keys()
        return faults + [f"nobody sent {subject}, yet it is at the relay" for subject in strange]

    async def _wires(self, conn: Connection, data_dir: Path) -> list[str]:
        """The bytes that go out are there for as long as a row names them."""
        named = [row["wire_key"] for row in await conn.fetch(_WIRES)]
        gone = [key for key in named if not os.path.exists(layout.path_under(str(data_dir), key)[1])]  # noqa: ASYNC240 - a few
        # A notice that was written meanwhile may have been the last to need them.
        still = {row["wire_key"] for row in await conn.fetch(_WIRES)}
        lost = [key for key in gone if key in still]
        return [f"the bytes of {len(lost)} messages are gone that rows still name"] if lost else []


def _fits(status: str, copies: int) -> bool:
    if status == "uncertain":
        return copies <= 1
    if status in TAKEN:
        return copies == 1
    return status in WAITING and copies == 0
