"""IMAP: the commands that clients wait for, on a folder of 10,000 messages, and the memory of idle connections.

The server, with the bundled PostgreSQL, is a process of its own on uvloop; the client is a blocking socket in this one.
Dovecot, where it is installed, holds the same messages and is asked the same in turn; else its figures are those
recorded on the reference machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import uvloop

from benchmarks import common, peers
from benchmarks.common import Row, row, work_directory
from benchmarks.imap_client import Client
from postroom.accounts import (
    KeyVerifier,
    NewPerson,
    NewTenant,
    Passwords,
    People,
    SignIn,
    Tenants,
    ensure_deployment,
)
from postroom.accounts.permissions import GrantRole
from postroom.base import log as base_log
from postroom.base.clock import SystemClock
from postroom.base.ids import IdGenerator
from postroom.blobs import MaildirStore
from postroom.db import Connection, Database, LocalPostgres, Migrator, Notifier
from postroom.directory import Identities, Identity, IdentityKind, NewIdentity, NewMailbox
from postroom.events.live import LiveHub
from postroom.inbound.describe import describe
from postroom.inbound.parsing import Parser
from postroom.inbound.receive import raw_key
from postroom.mailbox.ingest import Delivery, Ingest
from postroom.mailbox.models import Appended, Direction, MailboxRef, NewMessage, Source
from postroom.mailbox.service import Mailboxes
from postroom.mailbox.words import WordIndexer
from postroom.servers.imap import ImapConfig, ImapListener, ImapServices

MESSAGES: Final = 10_000
DOVECOT: Final = "Dovecot"
RECORDED: Final = "Dovecot (recorded)"
IDLE_CONNECTIONS: Final = 1000
IDLE_CONNECTIONS_DOVECOT: Final = 100
WARM_CONNECTIONS: Final = 20
PASSWORD = "correct horse battery"
_ADDRESS = "carol.acme@agents.example"
_WORDS = [
    *("the", "a", "of", "and", "to", "in", "we", "you", "they", "report", "meeting", "invoice", "delivery", "garden"),
    *("harbour", "window", "tomorrow", "yesterday", "please", "attached", "schedule", "budget", "review", "music"),
    *("station", "morning", "evening", "letter", "answer", "question", "because", "although"),
]
_ENVELOPES: Final = b"FETCH 1:* (UID ENVELOPE RFC822.SIZE)"


def message(seed: int, size: int = 3000) -> bytes:
    """About `size` octets of mail; every second one has an HTML alternative. One subject in the lot is special."""
    rng = random.Random(seed)

    def text(octets: int) -> str:
        lines, length = [], 0
        while length < octets:
            line = " ".join(rng.choices(_WORDS, k=11))
            lines.append(line)
            length += len(line) + 2
        return "\r\n".join(lines) + "\r\n"

    subject = "The needle in the haystack" if seed == 7777 else " ".join(rng.choices(_WORDS, k=6))
    head = (
        f"Return-Path: <sender{seed % 97}@example.com>\r\n"
        f"Received: from relay{seed}.example.com ([192.0.2.7]) by mx.example.com with ESMTPS id {seed};\r\n"
        f"\tMon, 01 Jan 2024 10:00:00 +0000\r\nMessage-ID: <{rng.getrandbits(64):x}@example.com>\r\n"
        f"Date: Mon, 01 Jan 2024 10:00:{seed % 60:02d} +0000\r\n"
        f"From: Sender {seed % 97} <sender{seed % 97}@example.com>\r\n"
        f"To: Reader <reader@agents.example>, Other <other@example.com>\r\nSubject: {subject}\r\nMIME-Version: 1.0\r\n"
    )
    if seed % 2:
        return (head + "Content-Type: text/plain; charset=utf-8\r\n\r\n" + text(size - len(head) - 50)).encode()
    half = (size - len(head) - 400) // 2
    return (
        f'{head}Content-Type: multipart/alternative; boundary="b{seed}"\r\n\r\n'
        f"--b{seed}\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{text(half)}\r\n"
        f"--b{seed}\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<html><p>{text(half)}</p></html>\r\n"
        f"--b{seed}--\r\n"
    ).encode()


# -- the server's process


async def _serve(directory: Path, count: int) -> None:
    clock = SystemClock()
    ids = IdGenerator(clock)
    server = LocalPostgres(directory / "database")
    await server.start()
    await Migrator(Database(server.dsn).target).run()
    async with Database(server.dsn) as db:
        await ensure_deployment(db, ids, clock, "store", "agents.example")
        blobs = MaildirStore(directory / "store")
        notifier = Notifier(db)
        await notifier.start()
        hub = LiveHub(notifier)
        boxes = Mailboxes(db, blobs, clock, ids, lambda ref, modseq: hub.changed(ref.mailbox_id, modseq))

        def committed(stored: Sequence[Appended]) -> None:
            for one in stored:
                hub.changed(one.mailbox.mailbox_id, one.modseq)

        ingest = Ingest(db, blobs, clock, committed=committed)
        ingest.start()
        passwords = Passwords(memory_kib=64, time_cost=1)
        address = _ADDRESS
        if count:
            box = await _mailbox(db, clock, ids, boxes, passwords)
            address = box.primary.address
            await _fill(ingest, clock, ids, box, count)
            indexer = WordIndexer(db, clock)
            while await indexer.run_once():
                pass
            async with db.acquire() as conn:
                await conn.execute("VACUUM ANALYZE", timeout=120)
        services = ImapServices(
            database=db,
            sign_in=SignIn(db, clock, passwords, KeyVerifier(db, clock, b"p" * 32), b"h" * 32),
            mailboxes=boxes,
            ingest=ingest,
            parser=Parser(),
            blobs=blobs,
            live=hub,
            clock=clock,
            ids=ids,
        )
        listener = ImapListener(services, ImapConfig(max_connections=5000))
        await listener.start("127.0.0.1", 0)
        print(json.dumps([listener.port, address]), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await listener.drain(1)
        await ingest.stop()
        await notifier.stop()
    await server.stop()


async def _mailbox(
    db: Database, clock: SystemClock, ids: IdGenerator, boxes: Mailboxes, passwords: Passwords
) -> Identity:
    async def rows(conn: Connection, new: NewMailbox) -> None:
        ref = MailboxRef(new.tenant_id, new.mailbox_id)
        await boxes.create_mailbox_rows(conn, ref, identity_id=new.identity_public_id, tenant_id=new.tenant_public_id)

    async def no_events(conn: Connection, announcement: object) -> None:
        pass

    tenant = await Tenants(db, ids, clock).create(NewTenant(slug="acme", name="Acme"))
    identities = Identities(db, ids, clock, b"h" * 32, rows, no_events, lambda identity: None)
    box, _ = await identities.create(
        tenant.id, NewIdentity(username="carol", display_name="Carol", kind=IdentityKind.PERSON)
    )
    people = People(db, ids, clock, passwords)
    person = await people.create(NewPerson("Carol", password=PASSWORD))
    await people.grant(tenant.id, box.public_id, person.public_id, GrantRole.OWNER, by_operator=True)
    return box


async def _fill(ingest: Ingest, clock: SystemClock, ids: IdGenerator, box: Identity, count: int) -> None:
    slots = asyncio.Semaphore(128)

    async def one(seed: int) -> None:
        async with slots:
            raw, now = message(seed), clock.now()
            content = describe(b"", raw, now)
            message_id = ids.new("msg")
            new = NewMessage(
                id=message_id,
                mailbox=MailboxRef(box.tenant_id, box.id),
                source=Source.MX,
                direction=Direction.INBOUND,
                blob_key=raw_key(box.tenant_public_id, box.public_id, message_id),
                content=content,
                thread_id=ids.new("thr"),
                event_id=ids.new("evt"),
                attachment_ids=tuple(ids.new("att") for _ in content.attachments),
                received_at=now,
                internal_date=now.replace(microsecond=0),
            )
            await ingest.deliver(Delivery((raw,), (new,)))

    await asyncio.gather(*map(one, range(count)))


# -- the figures


@dataclass(frozen=True, slots=True)
class _Command:
    """What is timed; `factor` times the peer's figure is the target, `recorded` that figure on the reference machine."""

    name: str
    text: bytes
    recorded: float | None = None
    factor: float | None = None


_TIMED: Final = (
    _Command("SELECT, 10,000, warm", b"SELECT INBOX"),
    _Command("FETCH 1:* (UID FLAGS), 10,000", b"FETCH 1:* (UID FLAGS)", 4.6, 2),
    _Command("FETCH 1:* (UID ENVELOPE RFC822.SIZE), 10,000", _ENVELOPES, 50, 1.5),
    _Command("FETCH 1:* (UID BODYSTRUCTURE), 10,000", b"FETCH 1:* (UID BODYSTRUCTURE)", 12, 3),
    _Command("FETCH 1:500 (BODY.PEEK[]), 1.5 MB", b"FETCH 1:500 (BODY.PEEK[])", 5.4, 3),
    _Command("SEARCH SUBJECT, one hit in 10,000", b"SEARCH SUBJECT needle", 15.7, 1),
    _Command("SEARCH UNSEEN, 10,000", b"SEARCH UNSEEN"),
    _Command("SEARCH BODY, no hit in 10,000", b"SEARCH BODY xylophone"),
    _Command("SEARCH TEXT, one hit in 10,000", b"SEARCH TEXT needle", 313, 1 / 20),
)
_STORE: Final = _Command("STORE 1:1000 +FLAGS.SILENT", rb"STORE 1:1000 %bFLAGS.SILENT (\Flagged)", 23, 3)


class _Figures:
    """Rows, with the peer's figure from this run, or else the recorded one."""

    def __init__(self, mine: Client, peer: Client | None, rounds: int) -> None:
        self.rows: list[Row] = []
        self._mine = mine
        self._peer = peer
        self._rounds = rounds

    def add(
        self, name: str, value: float, unit: str, peer: float | None, recorded: float | None, factor: float | None
    ) -> None:
        """*factor* times the peer's figure is the target."""
        known = recorded if peer is None else peer
        label = RECORDED if peer is None else DOVECOT
        target = known * factor if known is not None and factor is not None else None
        self.rows.append(row(name, value, unit, target=target, peer=known, peer_name=label if known else ""))

    def command(self, command: _Command) -> None:
        """The best of some rounds, for both sides in turn."""
        mine, peer = self._best([command.text])
        self.add(command.name, mine, "ms", peer, command.recorded, command.factor)

    def flags(self) -> None:
        mine, peer = self._best([_STORE.text % sign for sign in (b"+", b"-")])
        self.add(_STORE.name, mine, "ms", peer, _STORE.recorded, _STORE.factor)

    def once(self, name: str, text: bytes) -> None:
        """A command that is slower the first time."""
        peer = self._peer.timed(text) if self._peer else None
        self.add(name, self._mine.timed(text), "ms", peer, None, None)

    def _best(self, texts: Sequence[bytes]) -> tuple[float, float | None]:
        mine, peer = [], []
        for _ in range(self._rounds):
            for text in texts:
                mine.append(self._mine.timed(text))
                if self._peer is not None:
                    peer.append(self._peer.timed(text))
        return min(mine), min(peer, default=None)


def run(quick: bool) -> list[Row]:
    """Measure everything on one server, and on Dovecot where it is installed."""
    with contextlib.ExitStack() as stack:
        dovecot = stack.enter_context(peers.PostfixDovecot(users=1)) if peers.available() else None
        directory = stack.enter_context(work_directory("postroom-bench-"))
        if dovecot is not None:
            dovecot.fill(0, map(message, range(MESSAGES)))
        with _server(directory, MESSAGES) as (_, port, address):
            mine = Client(port, address, PASSWORD)
            theirs = _dovecot(dovecot, 0) if dovecot is not None else None
            rows = _work(mine, theirs, quick)
        # A process of its own, whose memory was not stretched by other work.
        with _server(directory, 0) as (process, port, address):
            mine_kib = _idle_memory(
                lambda: Client(port, address, PASSWORD), lambda: process.memory_info().rss, IDLE_CONNECTIONS
            )
        peer = _dovecot_idle_memory(dovecot) if dovecot is not None else None
        label = RECORDED if peer is None else DOVECOT
        rows.append(row("idle connection, selected", mine_kib, "KiB", target=40, peer=peer or 524, peer_name=label))
        return rows


def _work(mine: Client, theirs: Client | None, quick: bool) -> list[Row]:
    figures = _Figures(mine, theirs, 5 if quick else 20)
    figures.once("SELECT, 10,000, cold", b"SELECT INBOX")
    figures.once("FETCH 1:* (UID ENVELOPE RFC822.SIZE), cold", _ENVELOPES)
    for command in _TIMED:
        figures.command(command)
    figures.flags()
    raws = [message(100_000 + seed, 2500) for seed in range(200)]
    count = 1000 if quick else 4000
    rates: list[float | None] = []
    for client in (mine, theirs):
        if client is None:
            rates.append(None)
            continue
        client.ask(b"UNSELECT")
        client.append_rate("Archive", raws, 200)
        rates.append(client.append_rate("Archive", raws, count))
    mine_rate, peer_rate = rates
    assert mine_rate is not None
    figures.add("APPEND, pipelined, 2.5 KB", mine_rate, "messages/s", peer_rate, 392, 2)
    return figures.rows


def _dovecot(dovecot: peers.PostfixDovecot, number: int) -> Client:
    """A connection whose user has a folder to append to."""
    client = Client(dovecot.imap_port, dovecot.address(number), common.PASSWORD)
    client.ask(b"CREATE Archive")
    return client


def _idle_memory(connect: Callable[[], Client], memory: Callable[[], int], count: int) -> float:
    """KiB of the server's memory for each of `count` connections that are selected and idle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 200), hard))
    clients = [connect() for _ in range(WARM_CONNECTIONS)]
    for client in clients:
        client.ask(b"SELECT INBOX")
    before = memory()
    for _ in range(count):
        client = connect()
        client.ask(b"SELECT INBOX")
        client.idle()
        clients.append(client)
    grown = memory() - before
    for client in clients:
        client.close()
    return grown / count / 1024


def _dovecot_idle_memory(dovecot: peers.PostfixDovecot) -> float:
    """As it has a process for each connection: its proportional share of what processes have in common is counted.

    Ten connections to each mailbox, which is how many it allows from one place.
    """
    numbers = itertools.count(10)
    return _idle_memory(
        lambda: Client(dovecot.imap_port, dovecot.address(next(numbers) // 10), common.PASSWORD),
        lambda: dovecot.memory().pss,
        IDLE_CONNECTIONS_DOVECOT,
    )


@contextlib.contextmanager
def _server(directory: Path, count: int) -> Iterator[tuple[psutil.Process, int, str]]:
    """A server on `directory`; it delivers `count` messages first."""
    command = [sys.executable, "-m", "benchmarks.imap", "serve", str(directory), str(count)]
    process = subprocess.Popen(command, cwd=common.PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port, address = json.loads(process.stdout.readline())
        yield psutil.Process(process.pid), port, address
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="?", choices=["serve"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.role == "serve":
        with Path("/dev/null").open("w", encoding="utf-8") as sink:
            base_log.configure("warning", "json", sink)
            uvloop.run(_serve(Path(options.rest[0]), int(options.rest[1])))
    else:
        for made in run(options.quick):
            print(json.dumps(made))


if __name__ == "__main__":
    _main()
