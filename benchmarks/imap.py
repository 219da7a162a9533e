"""IMAP: the commands that clients wait for, on a folder of 10,000 messages, and the memory of idle connections.

The server, with the bundled PostgreSQL, is a process of its own on uvloop; the client is a blocking socket in this one.
The peer's figures are those of Dovecot in `docs/quality.md`, measured on the reference machine.
"""

import argparse
import asyncio
import contextlib
import json
import random
import re
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import uvloop

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
from postroom.servers.imap import ImapConfig, ImapListener, ImapServices

MESSAGES = 10_000
PASSWORD = "correct horse battery"
_ADDRESS = "carol.acme@agents.example"
_WORDS = [
    *("the", "a", "of", "and", "to", "in", "we", "you", "they", "report", "meeting", "invoice", "delivery", "garden"),
    *("harbour", "window", "tomorrow", "yesterday", "please", "attached", "schedule", "budget", "review", "music"),
    *("station", "morning", "evening", "letter", "answer", "question", "because", "although"),
]


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


# -- the client


class Client:
    """A blocking connection that throws answers away as fast as they come."""

    def __init__(self, port: int, address: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = 0
        self._until(b"* OK")
        self.ask(f'LOGIN {address} "{PASSWORD}"'.encode())

    def ask(self, command: bytes) -> bytes:
        """Send a command; all that came up to its tagged OK."""
        self._number += 1
        tag = b"t%d" % self._number
        self.sock.sendall(b"%b %b\r\n" % (tag, command))
        return self._until(tag + b" OK")

    def _until(self, mark: bytes) -> bytes:
        pieces, tail = [], b""
        while True:
            data = self.sock.recv(1 << 20)
            if not data:
                raise RuntimeError((tail + b"closed").decode("latin-1"))
            pieces.append(data)
            tail = (tail + data)[-300:]
            if tail.endswith(b"\r\n") and mark in tail:
                return b"".join(pieces)
            if re.search(rb"(?:\A|\n)t\d+ (?:NO|BAD)[^\r]*\r\n\Z", tail):
                raise RuntimeError(tail.decode("latin-1"))

    def timed(self, command: bytes, rounds: int) -> float:
        """The best of some rounds, in milliseconds."""
        best = float("inf")
        for _ in range(rounds):
            started = time.perf_counter()
            self.ask(command)
            best = min(best, time.perf_counter() - started)
        return best * 1000


def _append_rate(client: Client, count: int) -> float:
    raws = [message(100_000 + seed, 2500) for seed in range(200)]
    sent = b"".join(
        b"p%d APPEND Archive {%d+}\r\n%b\r\n" % (n, len(raw), raw)
        for n in range(count)
        for raw in (raws[n % len(raws)],)
    )
    started = time.perf_counter()
    answered, tail, offset = 0, b"", 0
    client.sock.setblocking(False)

    while answered < count:
        readable, writable, _ = select.select([client.sock], [client.sock] if offset < len(sent) else [], [], 30)
        if writable:
            with contextlib.suppress(BlockingIOError):
                offset += client.sock.send(sent[offset : offset + 65_536])
        if readable:
            lines = (tail + client.sock.recv(1 << 20)).split(b"\r\n")
            tail = lines.pop()
            for line in lines:
                if line.startswith(b"p"):
                    if b" OK [APPENDUID" not in line:
                        raise RuntimeError(line.decode("latin-1"))
                    answered += 1
    client.sock.setblocking(True)
    return count / (time.perf_counter() - started)


def _idle_memory(process: psutil.Process, port: int, address: str, count: int) -> float:
    """KiB of the server's resident memory for each of `count` connections that are selected and idle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 200), hard))
    warm = [Client(port, address) for _ in range(20)]
    for client in warm:
        client.ask(b"SELECT INBOX")
    before = process.memory_info().rss
    clients = []
    for _ in range(count):
        client = Client(port, address)
        client.ask(b"SELECT INBOX")
        client.sock.sendall(b"i IDLE\r\n")
        client._until(b"+ idling")
        clients.append(client)
    grown = process.memory_info().rss - before
    for client in [*clients, *warm]:
        client.sock.close()
    return grown / count / 1024


@contextlib.contextmanager
def _server(directory: str, count: int) -> Iterator[tuple[psutil.Process, int, str]]:
    """A server on `directory`; it delivers `count` messages first."""
    command = [sys.executable, __file__, "serve", directory, str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port, address = json.loads(process.stdout.readline())
        yield psutil.Process(process.pid), port, address
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


_TIMED = (
    ("FETCH 1:* (UID FLAGS), 10,000", b"FETCH 1:* (UID FLAGS)", 10, 4.6),
    ("FETCH 1:* (UID ENVELOPE RFC822.SIZE), 10,000", b"FETCH 1:* (UID ENVELOPE RFC822.SIZE)", 75, 50),
    ("FETCH 1:* (UID BODYSTRUCTURE), 10,000", b"FETCH 1:* (UID BODYSTRUCTURE)", 36, 12),
    ("FETCH 1:500 (BODY.PEEK[]), 1.5 MB", b"FETCH 1:500 (BODY.PEEK[])", 16, 5.4),
    ("SEARCH SUBJECT, one hit in 10,000", b"SEARCH SUBJECT needle", 15, 15.7),
    ("SEARCH UNSEEN, 10,000", b"SEARCH UNSEEN", None, None),
    ("SEARCH BODY, no hit in 10,000", b"SEARCH BODY xylophone", None, None),
    ("SEARCH TEXT, one hit in 10,000", b"SEARCH TEXT needle", None, 313),
)


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure everything on one server. `quick` takes about half a minute."""
    rounds = 5 if quick else 20
    rows: list[dict[str, Any]] = []

    def row(name: str, value: float, unit: str, target: float | None = None, peer: float | None = None) -> None:
        found: dict[str, Any] = {"name": f"imap {name}", "value": round(value, 2), "unit": unit}
        if target is not None:
            found["target"] = target
        if peer is not None:
            found["peer"] = {"name": "Dovecot (recorded)", "value": peer}
        rows.append(found)

    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as directory:
        with _server(directory, MESSAGES) as (_, port, address):
            client = Client(port, address)
            row("SELECT, 10,000, cold", client.timed(b"SELECT INBOX", 1), "ms")
            row("SELECT, 10,000, warm", client.timed(b"SELECT INBOX", rounds), "ms")
            row("FETCH 1:* (UID ENVELOPE RFC822.SIZE), cold", client.timed(_TIMED[1][1], 1), "ms")
            for name, command, target, peer in _TIMED:
                row(name, client.timed(command, rounds), "ms", target, peer)
            flags = [
                client.timed(rb"STORE 1:1000 %bFLAGS.SILENT (\Flagged)" % sign, 1) for sign in (b"+", b"-") * rounds
            ]
            row("STORE 1:1000 +FLAGS.SILENT", min(flags), "ms", 69, 23)
            client.ask(b"UNSELECT")
            _append_rate(client, 200)
            row("APPEND, pipelined, 2.5 KB", _append_rate(client, 1000 if quick else 4000), "messages/s", 784, 392)
        # A process of its own, whose memory was not stretched by other work.
        with _server(directory, 0) as (process, port, address):
            row("idle connection, selected", _idle_memory(process, port, address, 1000), "KiB", 40, 524)
    return rows


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
        for row in run(options.quick):
            print(json.dumps(row))


if __name__ == "__main__":
    _main()
