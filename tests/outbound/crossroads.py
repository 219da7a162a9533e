"""A deployment where mail comes in, goes on and comes back: real listeners, a real database, servers elsewhere."""

from __future__ import annotations

import asyncio
import random
import smtplib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from postroom.accounts import Mode, Tenant
from postroom.accounts.signing_keys import SigningKeys
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring
from postroom.db import Connection, Database
from postroom.directory import Aliases, NewMailbox, Relays
from postroom.directory.locals import LocalDomains
from postroom.directory.models import Alias
from postroom.directory.models import Refusal as DirectoryRefusal
from postroom.inbound.judging import NOT_JUDGED, Judgement
from postroom.inbound.receive import Receiver
from postroom.inbound.reception import Addressee, Reception
from postroom.mailbox.ingest import Ingest
from postroom.mailbox.models import MailboxRef
from postroom.net.mx import Family, RoutePolicy
from postroom.outbound.accept import Acceptance, Also
from postroom.outbound.bounces import BounceWriter, Elsewhere
from postroom.outbound.breakers import Breakers
from postroom.outbound.claiming import Group
from postroom.outbound.dispatch import Dispatcher
from postroom.outbound.forwarding import Forwarding
from postroom.outbound.models import Accepted, Outgoing, RouteKind
from postroom.outbound.outcomes import Outcomes
from postroom.outbound.queue import MailQueue
from postroom.outbound.routes import Routes
from postroom.outbound.transports.direct import Direct, DirectConfig
from postroom.outbound.transports.local import Local
from postroom.outbound.transports.simulator import Simulator
from postroom.servers.lmtp import LmtpListener
from postroom.servers.smtp import MxListener
from postroom.smtp import ServerConfig
from postroom.smtp.envelope import Envelope, Refusal, SessionInfo
from postroom.smtp.replies import Reply
from tests.inbound.fakes import reader
from tests.outbound.fake_mx import Net
from tests.outbound.mail_room import SOON, in_process, unsigned
from tests.outbound.submitting import DOMAIN, HASH_KEY, PostOffice, post_office

HOSTNAME = "mx.agents.example"
OWN = "acme.example"
"""A domain of the office's tenant."""
BINARY = "BODY=BINARYMIME"


REJECT = Judgement("fail", {"dmarc": {"result": "fail", "policy": "reject"}})


@dataclass
class Crossroads:
    """`failures` are raised by the next acceptances, before (`True`) or after they are stored."""

    office: PostOffice
    net: Net
    aliases: Aliases
    relays: Relays
    keys: SigningKeys
    ingest: Ingest
    acceptance: Acceptance
    routes: Routes
    forwarding: Forwarding = field(init=False)
    reception: Reception = field(init=False)
    failures: list[tuple[bool, Exception]] = field(default_factory=list)
    accepted: list[Outgoing] = field(default_factory=list)
    refused_by_policy: bool = False
    smtp: int = 0
    lmtp: int = 0

    # -- what a node has

    @property
    def db(self) -> Database:
        return self.office.db

    async def accept(self, outgoing: Outgoing, *, also: Also) -> Accepted:
        before, failure = self.failures.pop(0) if self.failures else (False, None)
        if failure is not None and before:
            raise failure
        accepted = await self.acceptance.accept(outgoing, also=also)
        self.accepted.append(outgoing)
        if failure is not None:
            raise failure
        return accepted

    async def judge(self, envelope: Envelope[Any], raw: bytes) -> Judgement:
        return REJECT if self.refused_by_policy else NOT_JUDGED

    async def purge(self, raw: bytes) -> bytes:
        return raw

    async def resolve(self, address: str, session: SessionInfo) -> Addressee | Refusal:
        found = await self.reception.resolve(address, session.mail_from)
        if isinstance(found, DirectoryRefusal):
            return Refusal(Reply(found.code, found.enhanced, found.text))
        return found

    async def alias(self, address: str, target: str, tenant: Tenant | None = None) -> Alias:
        return await self.aliases.create((tenant or self.office.tenant).id, address, target)

    def dispatcher(self) -> Dispatcher:
        office = self.office
        outcomes = Outcomes(
            *(office.db, office.blobs, office.clock, office.ids),
            random=random.Random(7).random,
            changed=lambda ref, modseq: None,
            noticed=lambda: None,
        )

        def new_id(group: Group) -> str:
            return f"{group.route.value}:{office.ids.ulid()}"

        direct = Direct(
            DirectConfig(HOSTNAME, RoutePolicy(family=Family.IPV4_ONLY), SOON),
            self.net.dns,
            Breakers(office.db, office.clock),
            office.clock,
            random=random.Random(7).random,
            new_id=new_id,
            connect=self.net.connect,
        )
        local = Local(self.reception.resolve, self.reception.receive, office.clock, hostname=HOSTNAME, new_id=new_id)
        return Dispatcher(
            *(office.db, office.blobs, office.clock, outcomes),
            {
                RouteKind.DIRECT: direct,
                RouteKind.LOCAL: local,
                RouteKind.SIMULATOR: Simulator(office.clock, new_id=new_id),
            },
            sign=unsigned,
            offload=in_process,
        )

    def bounce_writer(self) -> BounceWriter:
        office = self.office

        async def route(address: str) -> RouteKind:
            return await self.routes.route(address, from_domain=DOMAIN, mode=Mode.LIVE)

        return BounceWriter(
            *(office.db, office.blobs, office.clock, office.ids),
            hostname=HOSTNAME,
            deliver=self.ingest.deliver,
            describe=office.parser.describe,
            offload=in_process,
            elsewhere=Elsewhere(self.acceptance.accept, route),
        )

    def queue(self) -> MailQueue:
        office = self.office
        return MailQueue(
            *(office.db, office.blobs, office.clock, office.ids),
            sign=unsigned,
            changed=lambda ref, modseq: None,
            wake=lambda: None,
        )

    async def work(self) -> None:
        """Hand over, and tell of it, until there is nothing due."""
        dispatcher, writer = self.dispatcher(), self.bounce_writer()
        while await dispatcher.run_due() + await writer.run_due():
            pass
        await dispatcher.drain(0)

    # -- who comes from outside

    async def send(
        self, raw: bytes, *to: str, sender: str = "ann@example.com", options: Sequence[str] = ()
    ) -> dict[str, tuple[int, str]]:
        """A message over SMTP: the reply to each RCPT, and under "" the last one, if it came to that."""
        return await asyncio.to_thread(_send, self.smtp, raw, to, sender, options)

    async def send_lmtp(
        self, raw: bytes, *to: str, sender: str = "ann@example.com", options: Sequence[str] = ()
    ) -> list[int]:
        """A message over LMTP: the code for each recipient after the dot."""
        return await asyncio.to_thread(_send_lmtp, self.lmtp, raw, to, sender, options)

    # -- what became of it

    async def inbox(self, mailbox_id: int) -> list[bytes]:
        rows = await self.office.rows(
            "SELECT blob_key FROM messages WHERE mailbox_id = $1 AND source = 'mx' ORDER BY id", mailbox_id
        )
        return [await self.office.blobs.get(row["blob_key"]) for row in rows]

    async def relayed(self) -> list[Any]:
        """The rows of everything in relays, with the message's."""
        return await self.office.rows(
            "SELECT d.*, o.envelope_from, o.operation, o.hop, o.wire_key, m.public_id, m.blob_key, m.raw_prefix_len"
            " FROM deliveries d JOIN outbound_messages o USING (tenant_id, message_id)"
            " JOIN messages m ON m.tenant_id = d.tenant_id AND m.id = d.message_id"
            " JOIN identities i ON i.tenant_id = d.tenant_id AND i.id = d.mailbox_id"
            " WHERE i.kind = 'relay' ORDER BY d.id"
        )


def _send(port: int, raw: bytes, to: Sequence[str], sender: str, options: Sequence[str]) -> dict[str, tuple[int, str]]:
    with smtplib.SMTP("127.0.0.1", port, "sender.example", timeout=60) as client:
        client.ehlo()
        code, text = client.mail(sender, options)
        assert code == 250, (code, text)
        answers = {}
        for address in to:
            code, text = client.rcpt(address)
            answers[address] = code, text.decode()
        if any(code == 250 for code, _ in answers.values()):
            code, text = _data(client, raw, options)
            answers[""] = code, text.decode()
        return answers


def _data(client: smtplib.SMTP, raw: bytes, options: Sequence[str]) -> tuple[int, bytes]:
    """The message, in one chunk where it is binary (RFC 3030)."""
    if BINARY not in options:
        return client.data(raw)
    client.send(b"BDAT %d LAST\r\n" % len(raw) + raw)
    return client.getreply()


def _send_lmtp(port: int, raw: bytes, to: Sequence[str], sender: str, options: Sequence[str]) -> list[int]:
    with smtplib.LMTP("127.0.0.1", port, "front.example", timeout=60) as client:
        client.ehlo()
        client.mail(sender, options)
        accepted = [address for address in to if client.rcpt(address)[0] == 250]
        if not accepted:
            return []
        codes = [_data(client, raw, options)[0]]
        return codes + [client.getreply()[0] for _ in accepted[1:]]


@asynccontextmanager
async def crossroads(db: Database, clock: ManualClock, ids: IdGenerator, path: Path) -> AsyncIterator[Crossroads]:
    async with post_office(db, clock, ids, path) as office:
        now = clock.now()
        await office.execute(
            "INSERT INTO domains (public_id, tenant_id, name, kind, status, created_at, updated_at)"
            " VALUES ($1, $2, $3, 'external', 'healthy', $4, $4)",
            *(ids.new("dom_"), office.tenant.id, OWN, now),
        )

        async def mailbox_rows(conn: Connection, new: NewMailbox) -> None:
            ref = MailboxRef(new.tenant_id, new.mailbox_id)
            await office.boxes.create_mailbox_rows(
                conn,
                ref,
                identity_id=new.identity_public_id,
                tenant_id=new.tenant_public_id,
                is_system=new.is_system,
            )

        ingest = Ingest(db, office.blobs, clock, committed=lambda _: None)
        ingest.start()
        domains = LocalDomains(db, clock)
        made = Crossroads(
            office,
            Net(),
            Aliases(db, ids, clock, HASH_KEY, DOMAIN, office.directory.invalidate),
            Relays(db, ids, clock, mailbox_rows),
            SigningKeys(db, Keyring(b"m" * 32), clock),
            ingest,
            Acceptance(db, office.blobs, clock, ids, changed=office.changed.extend, wake=lambda: None),
            Routes(domains.has),
        )
        made.forwarding = Forwarding(
            *(db, office.parser, clock, ids),
            hostname=HOSTNAME,
            version="1",
            keys=made.keys,
            relays=made.relays,
            is_local=domains.has,
            accept=made.accept,
            route=made.routes.route,
        )
        receiver = Receiver(
            *(ingest, office.parser, clock, ids),
            hostname=HOSTNAME,
            version="1",
            local_mailbox=office.directory.owner_of,
            tokens=reader(clock),
            judge=made,
        )
        made.reception = Reception(
            office.directory.resolve, receiver, (made.forwarding,), onward=made.forwarding.onward
        )
        config = ServerConfig(HOSTNAME, postmaster_domain=DOMAIN)
        mx = MxListener(config, resolve=made.resolve, receive=made.reception.receive, now=clock.now)
        lmtp = LmtpListener(config, resolve=made.resolve, receive=made.reception.receive_each, now=clock.now)
        for listener in (mx, lmtp):
            await listener.start("127.0.0.1", 0)
        made.smtp, made.lmtp = mx.port, lmtp.port
        yield made
        for listener in (mx, lmtp):
            await listener.drain(0)
        await ingest.stop()
