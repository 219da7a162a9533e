"""Mail out: messages per second from a durable queue to a server that takes everything, beside Postfix with the same
messages and the same server.

The queue is filled beforehand (ours by acceptance, Postfix's with delivery deferred); what is timed is from the moment
that delivery may begin until everything is delivered and recorded as such. The messages go to 1, 10 and 100
destinations, each a host of its own on the loopback net, with the limits of connections that either side ships with.
Both keep the record of each message durable. Run as a program, this module is the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import random
import smtplib
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final, cast

import psutil
import uvloop

from benchmarks import send_rest
from benchmarks.common import PROJECT, Row, cpu_seconds, free_ports, keep_niceness, median, row, tree, work_directory
from benchmarks.mailbox import CLOCK, Box, make_boxes
from benchmarks.messages import Load
from benchmarks.send_peer import PostfixOut, available
from postroom.base.ids import IdGenerator
from postroom.base.settings_tree import QueueSettings
from postroom.blobs import MaildirStore
from postroom.db import ConnectionTarget, Database, LocalPostgres, Migrator
from postroom.db.statistics import analyze_grown
from postroom.inbound.describe import describe
from postroom.net.dns_types import Answer, IpAddress, Kind, MxRecord, NoData
from postroom.net.mx import Family, RoutePolicy
from postroom.outbound.accept import Acceptance
from postroom.outbound.breakers import Breakers
from postroom.outbound.dispatch import Dispatcher
from postroom.outbound.lanes import DispatchLimits
from postroom.outbound.models import NewRecipient, Operation, Outgoing, RecipientField, RouteKind, SendKind
from postroom.outbound.outcomes import Outcomes
from postroom.outbound.transports.direct import Direct, DirectConfig
from postroom.outbound.unsent import DIRECTORY, Unsent, running_since
from postroom.supervisor import settle_memory

DESTINATIONS: Final = (1, 10, 100)
SENDERS: Final = 50
"""Mailboxes that the messages are from."""
PEER: Final = "Postfix"
SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How many messages a round has, and how many rounds."""

    messages: int
    rounds: int
    warm_up: int = 200


QUICK: Final = Plan(800, 1)
FULL: Final = Plan(3000, 3)


def host(number: int) -> str:
    """The address of a destination."""
    return f"127.1.{number // 250}.{1 + number % 250}"


# -- the server that takes everything ---------------------------------------------------------------------------------


class _Discard(asyncio.Protocol):
    """Speaks as much SMTP as is needed to be given a message."""

    def __init__(self, count: Callable[[], None]) -> None:
        self._count = count
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._in_data = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by class
        self._transport.write(b"220 sink.example ESMTP\r\n")

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._buffer += data
        answers = []
        while True:
            if self._in_data:
                end = self._buffer.find(b"\r\n.\r\n")
                if end < 0:
                    self._buffer = self._buffer[-4:]
                    break
                self._buffer = self._buffer[end + 5 :]
                self._in_data = False
                self._count()
                answers.append(b"250 2.0.0 Ok\r\n")
                continue
            line, found, rest = self._buffer.partition(b"\r\n")
            if not found:
                break
            self._buffer = rest
            verb = line[:4].upper()
            if verb == b"EHLO":
                answers.append(b"250-sink.example\r\n250-PIPELINING\r\n250-SIZE 50000000\r\n250 8BITMIME\r\n")
            elif verb == b"DATA":
                self._in_data = True
                answers.append(b"354 Go on\r\n")
            elif verb == b"QUIT":
                self._transport.write(b"".join(answers) + b"221 2.0.0 Bye\r\n")
                self._transport.close()
                return
            else:
                answers.append(b"250 2.0.0 Ok\r\n")
        if answers:
            self._transport.write(b"".join(answers))


async def _serve(port: int, hosts: int, counter: Path) -> None:
    with counter.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 8)
        total = 0

        def count() -> None:
            nonlocal total
            total += 1
            shared[:8] = struct.pack("<Q", total)

        loop = asyncio.get_running_loop()
        for number in range(hosts):
            await loop.create_server(lambda: _Discard(count), host(number), port, backlog=500)
        print("ready", flush=True)
        await asyncio.Event().wait()


class Sink:
    """The server in a process of its own; `total` is how many messages it was given so far."""

    def __init__(self, directory: Path) -> None:
        self.port = free_ports(1)[0]
        self._counter = directory / "sink"
        self._counter.write_bytes(bytes(8))

    @contextlib.contextmanager
    def running(self) -> Iterator[Sink]:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.send", str(self.port), str(max(DESTINATIONS)), str(self._counter)],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError("the sink did not start")
            keep_niceness(tree(process.pid))
            yield self
        finally:
            process.kill()
            process.wait()

    @property
    def total(self) -> int:
        return int(struct.unpack("<Q", self._counter.read_bytes())[0])


# -- ours -------------------------------------------------------------------------------------------------------------


class Names:
    """A `Resolver` that knows the hosts of the destinations."""

    async def mx(self, name: str, *, within: float | None = None) -> Answer[MxRecord]:
        return Answer(name, name, (MxRecord(10, f"mx.{name}"),), 3600.0)

    async def a(self, name: str, *, within: float | None = None) -> Answer[IPv4Address]:
        return Answer(name, name, (IPv4Address(host(int(name.split(".")[1][1:]))),), 3600.0)

    async def aaaa(self, name: str, *, within: float | None = None) -> Answer[Any]:
        raise NoData(name, Kind.AAAA, canonical=name)

    async def txt(self, name: str, *, within: float | None = None) -> Answer[bytes]:
        raise NoData(name, Kind.TXT, canonical=name)

    async def ptr(self, address: IpAddress, *, within: float | None = None) -> Answer[str]:
        raise NoData("", Kind.PTR, canonical="")

    async def tlsa(self, name: str, *, within: float | None = None) -> Answer[Any]:
        raise NoData(name, Kind.TLSA, canonical=name)


@dataclass(frozen=True, slots=True)
class Round:
    """Messages per second; CPU in ms per message, of our process and the database's."""

    rate: float
    cpu: float
    database_cpu: float


class Ours:
    """Acceptance and a dispatcher on a PostgreSQL with the settings of an installation."""

    def __init__(
        self,
        database: Database,
        blobs: MaildirStore,
        ids: IdGenerator,
        boxes: Sequence[Box],
        port: int,
        marks: Path,
    ) -> None:
        self._database = database
        self._boxes = boxes
        self._ids = ids
        self.acceptance = Acceptance(database, blobs, CLOCK, ids, changed=lambda _: None, wake=lambda: None)
        outcomes = Outcomes(
            database, blobs, CLOCK, ids, random=random.random, changed=lambda *_: None, noticed=lambda: None
        )
        policy = RoutePolicy(allow_private=True, family=Family.IPV4_ONLY)
        direct = Direct(
            DirectConfig("mx.agents.example", policy, port=port),
            Names(),
            Breakers(database, CLOCK),
            CLOCK,
            random=random.random,
            new_id=lambda group: f"direct:{ids.ulid()}",
        )

        async def unsigned(wire: bytes, domain: str) -> bytes:
            return wire

        async def here(size: int, function: Callable[..., bytes], *arguments: Any) -> bytes:
            return function(*arguments)

        def make() -> Dispatcher:
            transports = {RouteKind.DIRECT: direct}
            boot = running_since()
            return Dispatcher(
                *(database, blobs, CLOCK, outcomes, transports),
                sign=unsigned,
                offload=here,
                limits=DispatchLimits(begin_ahead=0 if boot is None else QueueSettings().begin_ahead),
                unsent=None if boot is None else Unsent.open(marks, ids.ulid(), boot),
            )

        self._make = make

    async def fill(self, load: Load, first: int, count: int, destinations: int) -> None:
        """Accept so many messages."""
        numbers = iter(range(first, first + count))

        async def some() -> None:
            for n in numbers:
                await self.acceptance.accept(self._outgoing(load, n, destinations))

        await asyncio.gather(*(some() for _ in range(16)))

    def _outgoing(self, load: Load, n: int, destinations: int) -> Outgoing:
        to, box = f"user{n}@d{n % destinations}.example", self._boxes[n % len(self._boxes)]
        raw = load.message(n, to)
        return Outgoing(
            id=self._ids.new("msg"),
            mailbox=box.ref,
            tenant_id=box.tenant_id,
            identity_id=box.identity_id,
            operation=Operation.SEND,
            kind=SendKind.TRANSACTIONAL,
            envelope_from="sender@agents.example",
            recipients=(NewRecipient(to, RecipientField.TO, RouteKind.DIRECT),),
            sent_copy=raw,
            wire=raw,
            content=describe(b"", raw, CLOCK.now()),
        )

    async def deliver(self, count: int, processes: Sequence[psutil.Process]) -> Round:
        """Deliver everything that is queued."""
        dispatcher = self._make()
        mine = psutil.Process()
        cpu, database_cpu = cpu_seconds([mine]), cpu_seconds(processes)
        began = time.monotonic()
        working = asyncio.create_task(dispatcher.run())
        while await self._left():
            if time.monotonic() - began > SECONDS:
                raise RuntimeError("mail is left undelivered")
            await asyncio.sleep(0.02)
        seconds = time.monotonic() - began
        await dispatcher.drain(10)
        await working
        spent, spent_there = cpu_seconds([mine]) - cpu, cpu_seconds(processes) - database_cpu
        return Round(count / seconds, 1e3 * spent / count, 1e3 * spent_there / count)

    async def _left(self) -> bool:
        async with self._database.acquire() as conn:
            return bool(await conn.fetchval("SELECT EXISTS (SELECT FROM deliveries WHERE next_attempt_at IS NOT NULL)"))


@contextlib.asynccontextmanager
async def _ours(directory: Path, port: int) -> AsyncIterator[tuple[Ours, list[psutil.Process]]]:
    server = LocalPostgres(directory)
    await server.start()
    blobs = MaildirStore(directory)
    try:
        await Migrator(ConnectionTarget(server.dsn)).run()
        async with Database(server.dsn) as database:
            ids = IdGenerator(CLOCK)
            boxes = await make_boxes(database, ids, SENDERS)
            assert server.pid is not None
            keep_niceness(tree(server.pid))
            ours = Ours(database, blobs, ids, boxes, port, directory / DIRECTORY)
            load = Load()
            settle_memory()  # as a server does
            await ours.fill(load, 10**6, QUICK.warm_up, 5)
            await ours.deliver(QUICK.warm_up, [])
            async with database.acquire() as conn:
                await analyze_grown(conn)
            yield ours, tree(server.pid)
    finally:
        await blobs.close()
        await server.stop()


async def _measure_ours(sink: Sink, plan: Plan) -> dict[int, list[Round]]:
    found: dict[int, list[Round]] = {}
    load = Load()
    with work_directory("send-") as directory:
        async with _ours(directory, sink.port) as (ours, processes):
            first = 0
            for destinations in DESTINATIONS:
                for _ in range(plan.rounds):
                    await ours.fill(load, first, plan.messages, destinations)
                    first += plan.messages
                    before = sink.total
                    found.setdefault(destinations, []).append(await ours.deliver(plan.messages, processes))
                    if sink.total - before != plan.messages:
                        raise RuntimeError(f"the sink was given {sink.total - before} of {plan.messages} messages")
    return found


def _measure_theirs(sink: Sink, plan: Plan) -> dict[int, float]:
    """Messages per second, medians."""
    if not available():
        return {}
    found = {}
    load = Load()
    with PostfixOut(sink.port, {f"d{n}.example": host(n) for n in range(max(DESTINATIONS))}) as peer:
        for destinations in DESTINATIONS:
            rates = []
            for turn in range(plan.rounds):
                with smtplib.SMTP("127.0.0.1", peer.port, timeout=60) as client:
                    for n in range(turn * plan.messages, (turn + 1) * plan.messages):
                        to = f"user{n}@d{n % destinations}.example"
                        client.sendmail("sender@agents.example", to, load.message(n, to))
                peer.wait_queued(plan.messages)
                before = sink.total
                rates.append(plan.messages / peer.deliver(SECONDS))
                if sink.total - before != plan.messages:
                    raise RuntimeError(f"Postfix gave the sink {sink.total - before} of {plan.messages} messages")
            found[destinations] = median(rates)
    return found


def run(quick: bool) -> list[Row]:
    """All rows. Raises RuntimeError when a message is not delivered."""
    plan = QUICK if quick else FULL
    with work_directory("sink-") as directory, Sink(directory).running() as sink:
        mine = uvloop.run(_measure_ours(sink, plan))
        theirs = _measure_theirs(sink, plan)
    rows = send_rest.rows(quick)
    for destinations, rounds in mine.items():
        label = f"{destinations} destination{'s' * (destinations > 1)}"
        rate = median(one.rate for one in rounds)
        rows.append(row(f"{label}, delivered", rate, "messages/s", peer=theirs.get(destinations), peer_name=PEER))
        rows.append(row(f"{label}, CPU, server", median(one.cpu for one in rounds), "ms/message"))
        rows.append(row(f"{label}, CPU, database", median(one.database_cpu for one in rounds), "ms/message"))
    return rows


if __name__ == "__main__":
    keep_niceness([psutil.Process()])
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
