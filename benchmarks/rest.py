"""The REST API: latency of a list page, of one message and of a change of flags, and what a page costs the server.

`run(quick)` starts a database, delivers mail into one mailbox and asks a listener of the same process over a loopback
socket, one request at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from postroom.accounts import Keys, KeyVerifier, Level, NewKey, NewTenant, RateLimiter, Tenants, ensure_deployment
from postroom.accounts.policy_rules import Stance
from postroom.accounts.rates import Bucket, RateDecision
from postroom.accounts.service.policies import Policies
from postroom.accounts.signing_keys import SigningKeys
from postroom.base.clock import SystemClock
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring
from postroom.base.settings_tree import Environment
from postroom.blobs import MaildirStore
from postroom.db import Connection, ConnectionTarget, Database, LocalPostgres, Migrator
from postroom.directory import Identities, NewIdentity, NewMailbox
from postroom.directory.locals import LocalDomains
from postroom.events.identities import IdentityAnnouncer
from postroom.events.live import LiveHub
from postroom.inbound.describe import describe
from postroom.inbound.parsing import Parser
from postroom.inbound.thread_tokens import ThreadTokens
from postroom.mailbox.ingest import Delivery, Ingest
from postroom.mailbox.models import Direction, MailboxRef, NewMessage, Source
from postroom.mailbox.service import Mailboxes
from postroom.outbound.accept import Acceptance
from postroom.outbound.closing import Closing
from postroom.outbound.routes import Routes
from postroom.outbound.signing import DkimKeys
from postroom.outbound.submit import Sending
from postroom.servers.http import About, CursorKey, CursorKeys, HttpApp, HttpListener, HttpServices, create_http
from postroom.servers.http.rest import shapes

Row = dict[str, Any]
HOST: Final = "127.0.0.1"
PEPPER: Final = b"p" * 32
PAGE: Final = 25
LIST_CPU_TARGET_MS: Final = 5.0

_TRACE: Final = b"Return-Path: <anna@example.com>\r\nReceived: from mx.example.com by mx.agents.example\r\n"
_TEXT: Final = "A line of some sixty characters, as people write them in mail.\r\n" * 25


@dataclass(frozen=True, slots=True)
class Bench:
    """A deployment with one mailbox full of mail, served."""

    app: HttpApp
    port: int
    authorization: str
    box: str
    message: str


class Unlimited(RateLimiter):
    """Counts as ever, and refuses nobody."""

    def hit(self, bucket: Bucket, subject: str) -> RateDecision:
        decision = super().hit(bucket, subject)
        return RateDecision(True, decision.bucket, decision.limit, decision.reset_after)

    def peek(self, bucket: Bucket, subject: str) -> RateDecision:
        decision = super().peek(bucket, subject)
        return RateDecision(True, decision.bucket, decision.limit, decision.reset_after)


class _NoHints:
    def hint(self, channel: str, key: int | str, value: int = 0) -> None:
        pass


async def _nothing_to_check() -> None:
    pass


@contextlib.asynccontextmanager
async def started(messages: int) -> AsyncIterator[Bench]:
    """Everything from the database to the listener, with `messages` in the mailbox."""
    directory = Path(tempfile.mkdtemp(prefix="postroom-bench-"))
    server = LocalPostgres(directory / "pg", watch=False)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        await server.start()
        stack.push_async_callback(server.stop)
        await Migrator(ConnectionTarget(server.dsn)).run()
        db = await stack.enter_async_context(Database(server))
        blobs = MaildirStore(directory / "mail")
        stack.push_async_callback(blobs.close)
        yield await _serve(stack, db, blobs, messages)


async def _serve(stack: contextlib.AsyncExitStack, db: Database, blobs: MaildirStore, messages: int) -> Bench:
    clock = SystemClock()
    ids = IdGenerator(clock)
    hub = LiveHub(_NoHints())
    mailboxes = Mailboxes(db, blobs, clock, ids, lambda ref, modseq: hub.changed(ref.mailbox_id, modseq))

    async def mailbox_rows(conn: Connection, new: NewMailbox) -> None:
        ref = MailboxRef(new.tenant_id, new.mailbox_id)
        await mailboxes.create_mailbox_rows(
            conn, ref, identity_id=new.identity_public_id, tenant_id=new.tenant_public_id
        )

    await ensure_deployment(db, ids, clock, "bench", "agents.example")
    tenants = Tenants(db, ids, clock)
    announcer = IdentityAnnouncer(ids)
    identities = Identities(db, ids, clock, b"h" * 32, mailbox_rows, announcer, lambda identity: None)
    keys = Keys(db, ids, clock, PEPPER)
    tenant = await tenants.create(NewTenant(slug="bench", name="Bench"))
    writes_to_strangers = {"require_known_recipient": False}
    new = NewIdentity("box", "Box", owner_name="Anna", owner_email="anna@example.com", send_policy=writes_to_strangers)
    box, _ = await identities.create(tenant.id, new)
    permissions = ("identities:read", "messages:read", "messages:write", "messages:send", "search:read")
    _, text = await keys.create(None, NewKey("bench", Level.IDENTITY, permissions, tenant.id, box.id))
    ingest = Ingest(db, blobs, clock, committed=lambda stored: None)
    ingest.start()
    base = f"t/{box.tenant_public_id}/i/{box.public_id}/m"
    ref = MailboxRef(box.tenant_id, box.id)
    numbers = range(messages)
    last = ""
    for at in range(0, messages, 100):
        deliveries = [_delivery(ids, clock, ref, base, n) for n in numbers[at : at + 100]]
        await asyncio.gather(*(ingest.deliver(delivery) for delivery in deliveries))
        last = deliveries[-1].copies[0].id
    await ingest.stop()
    async with db.acquire() as conn:
        await conn.execute("ANALYZE")
    parser = Parser()
    keys_of_domains = DkimKeys(db, Keyring(b"m" * 32), clock)
    services = HttpServices(
        sending=Sending(
            db,
            blobs,
            clock,
            ids,
            queries=mailboxes.queries,
            parser=parser,
            acceptance=Acceptance(db, blobs, clock, ids, changed=lambda _: None, wake=lambda: None),
            sign=keys_of_domains.sign,
            mint=ThreadTokens(SigningKeys(db, Keyring(b"m" * 32), clock), clock).mint,
            route=Routes(LocalDomains(db, clock).has).route,
            resource=shapes.message,
            hash_key=b"h" * 32,
        ),
        closing=Closing(db, blobs, clock, ids, queries=mailboxes.queries, changed=lambda *_: None),
        database=db,
        blobs=blobs,
        clock=clock,
        ids=ids,
        policies=Policies(db, clock, Stance()),
        verifier=KeyVerifier(db, clock, PEPPER),
        keys=keys,
        rates=Unlimited(clock),
        tenants=tenants,
        identities=identities,
        mailboxes=mailboxes,
        live=hub,
        parser=parser,
        cursor_keys=CursorKeys(CursorKey("k1", b"c" * 32)),
        about=About("bench", "unknown", Environment.LOCAL),
        store_ready=_nothing_to_check,
        migrated=_nothing_to_check,
    )
    app = create_http(services)
    listener = HttpListener(app, ids=ids, on_drain=app.services.stopping.set)
    await listener.start(HOST, 0)
    stack.push_async_callback(listener.drain, 5)
    return Bench(app, listener.port, f"Bearer {text}", f"/v1/identities/{box.public_id}", last)


def _delivery(ids: IdGenerator, clock: SystemClock, ref: MailboxRef, base: str, number: int) -> Delivery:
    raw = (
        f"From: Anna {number} <anna{number % 50}@example.com>\r\nTo: box@agents.example, bo@example.com\r\n"
        f"Subject: Message {number}\r\nMessage-ID: <{number}@example.com>\r\n\r\n{_TEXT}{number}\r\n"
    ).encode()
    now = clock.now()
    message_id = ids.new("msg_")
    copy = NewMessage(
        id=message_id,
        mailbox=ref,
        source=Source.MX,
        direction=Direction.INBOUND,
        blob_key=f"{base}/{message_id}/raw.eml",
        content=describe(_TRACE, raw, now),
        thread_id=ids.new("thr_"),
        event_id=ids.new("evt_"),
        attachment_ids=(),
        received_at=now,
        internal_date=now.replace(microsecond=0),
        delivered_to="box.bench@agents.example",
    )
    return Delivery((_TRACE, raw), (copy,))


class Client:
    """One connection that is kept; a plain client costs less than what it measures."""

    def __init__(self, bench: Bench, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._head = f"Host: {HOST}\r\nAuthorization: {bench.authorization}\r\n"
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, bench: Bench) -> Client:
        return cls(bench, *await asyncio.open_connection(HOST, bench.port))

    async def ask(self, method: str, path: str, body: object = None, *, key: str | None = None) -> bytes:
        """The body of a successful answer; raises AssertionError for any other. `key` is an Idempotency-Key."""
        payload = b"" if body is None else json.dumps(body).encode()
        fields = f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n" if payload else ""
        if key is not None:
            fields += f"Idempotency-Key: {key}\r\n"
        self._writer.write(f"{method} {path} HTTP/1.1\r\n{self._head}{fields}\r\n".encode() + payload)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = await self._reader.readexactly(length)
        assert head.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 202 ")), head + answer
        return answer

    def close(self) -> None:
        self._writer.close()


async def _latencies(ask: Callable[[int], Coroutine[Any, Any, object]], count: int) -> list[float]:
    """Milliseconds of each of `count` requests, after a tenth of them to warm up."""
    for n in range(max(10, count // 10)):
        await ask(n)
    times = []
    for n in range(count):
        begun = time.perf_counter()
        await ask(n)
        times.append((time.perf_counter() - begun) * 1000)
    return times


async def _page_cpu(bench: Bench, path: str, count: int) -> float:
    """Milliseconds of the process's CPU for one page, without sockets and client."""
    headers = [(b"authorization", bench.authorization.encode()), (b"host", HOST.encode())]
    route, _, query = path.partition("?")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200

    async def once() -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": route,
            "raw_path": route.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": headers,
            "client": (HOST, 1),
            "server": (HOST, bench.port),
        }
        await bench.app(scope, receive, send)

    for _ in range(20):
        await once()
    begun = time.process_time()
    for _ in range(count):
        await once()
    return (time.process_time() - begun) * 1000 / count


def _rows(name: str, times: Sequence[float], target: float | None = None) -> list[Row]:
    cuts = statistics.quantiles(times, n=20)
    p50: Row = {"name": f"{name}, p50", "value": round(statistics.median(times), 2), "unit": "ms"}
    p95: Row = {"name": f"{name}, p95", "value": round(cuts[18], 2), "unit": "ms"}
    if target is not None:
        p95["target"] = target
    return [p50, p95]


async def _measure(quick: bool) -> list[Row]:
    count = 200 if quick else 2000
    rows: list[Row] = []
    async with started(200 if quick else 5000) as bench:
        client = await Client.connect(bench)
        page = f"{bench.box}/messages?limit={PAGE}"
        one = f"{bench.box}/messages/{bench.message}"
        rows += _rows(f"REST list {PAGE} messages", await _latencies(lambda _: client.ask("GET", page), count), 20)
        rows += _rows("REST get message", await _latencies(lambda _: client.ask("GET", one), count), 10)
        patch = await _latencies(lambda n: client.ask("PATCH", one, {"read": n % 2 == 0}), count // 2)
        rows += _rows("REST change read state", patch, 25)
        threads = f"{bench.box}/threads?limit={PAGE}"
        rows += _rows(
            f"REST list {PAGE} threads", await _latencies(lambda _: client.ask("GET", threads), count // 2), 20
        )
        rows += _rows("REST health", await _latencies(lambda _: client.ask("GET", "/health"), count))
        cpu = await _page_cpu(bench, page, count // 2)
        name = f"REST list {PAGE} messages, server CPU"
        rows.append({"name": name, "value": round(cpu, 2), "unit": "ms", "target": LIST_CPU_TARGET_MS})
        client.close()
    return rows


def run(quick: bool) -> list[Row]:
    """Rows of `name`, `value`, `unit` and, where there is one, `target` (an upper bound)."""
    return uvloop.run(_measure(quick))


if __name__ == "__main__":
    for row in run(quick=True):
        print(row)
