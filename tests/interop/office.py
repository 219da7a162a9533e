"""A whole Postroom in this process, as `serve` composes it, with a person who writes and names that lead to peers."""

from __future__ import annotations

import asyncio
import contextlib
import imaplib
import os
import smtplib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import dkim  # type: ignore[import-untyped] # it has no annotations
import dns.resolver

from postroom.accounts.models import NewPerson, NewTenant
from postroom.accounts.permissions import GrantRole
from postroom.app import Core, open_core
from postroom.base.clock import ManualClock
from postroom.base.secrets import ensure_secrets, load_secrets
from postroom.base.settings import load
from postroom.directory.models import IdentityKind, NewIdentity
from postroom.node import Node
from tests.interop.place import DELIVERY_SECONDS, SMTP_PORT, Peer, in_maildir, our_address
from tests.net.name_server import NameServer

T = TypeVar("T")

DOMAIN: Final = "agents.example"
HOST: Final = "mx.agents.example"
ADA: Final = f"ada@{DOMAIN}"
PASSWORD: Final = "correct horse battery staple 17"
SUBMISSION_PORT: Final = 587
SMTPS_PORT: Final = 465
IMAP_PORT: Final = 143
_ANSWER_SECONDS: Final = 30.0


_CLIENTS: Final = ThreadPoolExecutor(32, thread_name_prefix="client")


async def blocking(work: Callable[[], T]) -> T:
    """A client that blocks, in a thread that the server does not want for itself."""
    return await asyncio.get_running_loop().run_in_executor(_CLIENTS, work)


async def eventually(look: Callable[[], Awaitable[T | None]], what: object = "it") -> T:
    """What `look` finds, as soon as that is not None. Fails after a while, with `what` there is to say."""
    deadline = time.monotonic() + DELIVERY_SECONDS
    while True:
        found = await look()
        if found is not None:
            return found
        assert time.monotonic() < deadline, f"{what() if callable(what) else what} never came"
        await asyncio.sleep(0.02)


def letter(
    message_id: str, text: bytes, *, to: str = "anna@example.com", subject: str = "A subject", more: str = ""
) -> bytes:
    """A message of Ada's in wire form; `more` is further header lines."""
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S +0000")
    head = (
        f"From: Ada Example <{ADA}>\r\nTo: <{to}>\r\nSubject: {subject}\r\nDate: {date}\r\n"
        f"Message-ID: <{message_id}>\r\n"
    )
    return (head + more + "\r\n").encode() + text


@dataclass
class Office:
    """`clock` is the machine's time until a test moves it."""

    core: Core
    node: Node
    dns: NameServer
    clock: ManualClock

    # -- what Ada does

    async def submit(self, raw: bytes, *recipients: str, options: Sequence[str] = ()) -> None:
        """Hand it over as a mail program does: STARTTLS, AUTH, MAIL …"""

        def work() -> None:
            with smtplib.SMTP(our_address(), SUBMISSION_PORT, timeout=_ANSWER_SECONDS) as client:
                client.starttls(context=unverified())
                client.login(ADA, PASSWORD)
                client.sendmail(ADA, list(recipients), raw, mail_options=list(options))

        await blocking(work)

    async def inbox(self) -> list[bytes]:
        """What is in her inbox, by IMAP."""

        def work() -> list[bytes]:
            with imaplib.IMAP4(our_address(), IMAP_PORT, timeout=_ANSWER_SECONDS) as client:
                client.login(ADA, PASSWORD)
                client.select("INBOX", readonly=True)
                _, (numbers,) = client.search(None, "ALL")
                found = [client.fetch(number.decode(), "(BODY.PEEK[])")[1][0] for number in numbers.split()]
                return [part[1] for part in found if isinstance(part, tuple)]

        return await blocking(work)

    async def received(self, wanted: bytes) -> bytes:
        """The message of her inbox that contains it, when it is there."""

        before = 0

        async def look() -> bytes | None:
            nonlocal before
            there = await self.count()
            if there == before:
                return None  # signing in takes its time, on purpose
            before = there
            return next((raw for raw in await self.inbox() if wanted in raw), None)

        return await eventually(look, wanted)

    async def count(self) -> int:
        """How many messages were received."""
        async with self.core.database.acquire() as conn:
            return int(await conn.fetchval("SELECT count(*) FROM messages WHERE direction = 'inbound'"))

    # -- what becomes of it

    async def rows(self, message_id: str) -> dict[str, dict[str, Any]]:
        """The deliveries of a message, by recipient."""
        async with self.core.database.acquire() as conn:
            rows = await conn.fetch(
                "SELECT d.* FROM deliveries d JOIN messages m ON m.id = d.message_id "
                "WHERE m.rfc_message_id = ANY($1::text[])",
                [message_id, f"<{message_id}>"],
            )
        return {row["recipient"]: dict(row) for row in rows}

    async def row(self, message_id: str, recipient: str, **wanted: object) -> dict[str, Any]:
        """A delivery, as soon as it is as it is wanted."""
        last: dict[str, Any] = {}

        async def look() -> dict[str, Any] | None:
            nonlocal last
            last = (await self.rows(message_id)).get(recipient, {})
            return last if all(last.get(name) == value for name, value in wanted.items()) else None

        return await eventually(look, lambda: f"{wanted}: it is {last}; that")

    async def wait(self, seconds: float) -> None:
        """Move the clock, and have the worker look at it."""
        self.clock.advance(seconds)
        self.node.mail_out.hinted()

    # -- the world

    def leads_to(self, domain: str, *hosts: tuple[str, str]) -> None:
        """The domain's MX hosts in order of preference: names and addresses."""
        self.dns.add(domain, "MX", *(f"{10 * place} {name}." for place, (name, _) in enumerate(hosts, 1)))
        for name, address in hosts:
            self.dns.add(name, "A", address)

    async def publish(self) -> None:
        """What `postroom dkim show` says goes into the DNS. The key is there when something was sent."""
        for key in await self.node.mail_out.keys.show(DOMAIN):
            strings = [key.record[at : at + 255] for at in range(0, len(key.record), 255)]
            self.dns.add(key.name, "TXT", " ".join(f'"{one}"' for one in strings))

    async def is_signed(self, raw: bytes) -> bool:
        """Whether dkimpy finds the signature good, with the key from the name server."""
        await self.publish()
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port, resolver.lifetime = ["127.0.0.1"], self.dns.port, 5.0

        def ask(name: bytes, timeout: float = 5) -> bytes | None:
            try:
                (record,) = resolver.resolve(name.decode(), "TXT")
            except dns.resolver.NXDOMAIN:
                return None
            return b"".join(record.strings)

        return bool(await blocking(lambda: dkim.verify(raw, dnsfunc=ask)))


def unverified() -> ssl.SSLContext:
    """For the certificate that Postroom makes itself."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def arrived(peer: Peer, message_id: str) -> bytes:
    """The message in the peer's Maildir, in wire form, when it is there."""

    async def look() -> bytes | None:
        for raw in in_maildir(peer.mail):
            head = raw.partition(b"\n\n")[0].lower()
            if f"message-id: <{message_id}>".lower().encode() in head:
                return raw.replace(b"\n", b"\r\n")
        return None

    return await eventually(look, lambda: f"{message_id} (log of {peer.name}: {peer.log()[-3000:]})")


@contextlib.asynccontextmanager
async def open_office(
    database_url: str, data_dir: Path, *, relay: Mapping[str, object] | None = None, relay_password: str = ""
) -> AsyncIterator[Office]:
    """With mail for elsewhere going to MX hosts, or to the `relay`: settings of the section `queue`."""
    address = our_address()
    async with NameServer() as dns_server:
        settings = load(
            {
                "env": "local",
                "platform_domain": DOMAIN,
                "mx_hosts": HOST,
                "server.hostname": HOST,
                "server.data_dir": str(data_dir),
                "database.url": database_url,
                "storage.fsync_on_write": False,
                "smtp.host": address,
                "smtp.port": SMTP_PORT,
                "smtp.submission_port": SUBMISSION_PORT,
                "smtp.smtps_port": SMTPS_PORT,
                "imap.host": address,
                "imap.port": IMAP_PORT,
                "api.enabled": False,
                "metrics.listen": "",
                "dns.resolvers": f"127.0.0.1:{dns_server.port}",
                "queue.allow_private_targets": True,
                "queue.poll_interval_secs": 0.2,
                "server.shutdown_timeout_secs": 5.0,
                "limits.submission_rate_limit": 10_000,
                "limits.daily_send_limit": 10_000,
                **{f"queue.{name}": value for name, value in (relay or {}).items()},
            },
            {"POSTROOM_QUEUE_RELAY_PASSWORD": relay_password} if relay_password else {},
            data_dir=data_dir,
            host_name="interop",
        )
        ensure_secrets(data_dir, os.urandom, {})
        clock = ManualClock(datetime.now(UTC))
        async with open_core(settings, load_secrets(data_dir, {}), database_url, clock=clock, migrate=False) as core:
            await _fill(core)
            node = Node(core)
            await node.start()
            try:
                yield Office(core, node, dns_server, clock)
                assert not node.failed.is_set()
            finally:
                await node.drain()


async def _fill(core: Core) -> None:
    tenant = await core.tenants.create(NewTenant(slug="main", name="Main", is_default=True))
    person = await core.people.create(NewPerson("Ada Example", None, PASSWORD))
    made, _ = await core.identities.create(tenant.id, NewIdentity("ada", "Ada Example", IdentityKind.PERSON))
    await core.people.grant(tenant.id, made.public_id, person.public_id, GrantRole.OWNER, by_operator=True)
    assert made.primary.address == ADA
