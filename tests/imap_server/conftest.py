"""A whole mailbox behind a live IMAP listener, down to database and store, and a client that shows every byte."""

import asyncio
import datetime
import ipaddress
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from postroom.accounts import (
    Keys,
    KeyVerifier,
    Level,
    NewKey,
    NewPerson,
    NewTenant,
    Passwords,
    People,
    Person,
    SignIn,
    Tenant,
    Tenants,
    ensure_deployment,
)
from postroom.accounts.audit import HOST
from postroom.accounts.permissions import GrantRole
from postroom.accounts.scram import ScramKeys
from postroom.accounts.service.app_passwords import AppPasswords
from postroom.accounts.service.sharing import Sharing
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring
from postroom.blobs import MaildirStore
from postroom.db import Connection, Database
from postroom.directory import Identities, Identity, IdentityKind, NewIdentity, NewMailbox
from postroom.events.live import LiveHub
from postroom.inbound.parsing import Parser
from postroom.inbound.receive import raw_key
from postroom.mailbox.ingest import Delivery, Ingest
from postroom.mailbox.models import Appended, Direction, MailboxRef, NewMessage, Source, changed_mailboxes
from postroom.mailbox.service import Mailboxes
from postroom.net.tls import Certificate, server_context
from postroom.servers.imap import ImapConfig, ImapListener, ImapServices
from tests.imap_server import grammar

PEPPER = b"p" * 32
HASH_KEY = b"h" * 32
DOMAIN = "agents.example"
PASSWORD = "correct horse battery"
TRACE = b"Return-Path: <anna@example.com>\r\nReceived: from mx.example.com; Tue, 01 Jan 2030 00:00:00 +0000\r\n"
DEADLINE = 20


class NoHints:
    """There is one node."""

    def hint(self, channel: str, key: int | str, value: int = 0) -> None:
        pass


def mail(subject: str = "Hello", text: str = "Hello there.", **headers: str) -> bytes:
    """A plain message in wire form."""
    fields = {
        "From": "Anna Example <anna@example.com>",
        "To": "box@agents.example",
        "Subject": subject,
        "Date": "Mon, 31 Dec 2029 10:00:00 +0100",
        "Message-ID": f"<{abs(hash((subject, text)))}@example.com>",
        **headers,
    }
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items() if value)
    return f"{head}\r\n{text}\r\n".encode()


class Client:
    """One connection. `ask` sends a command and gives every line of its answer, literals in place, without CRLF. Every
    line is read by a strict grammar."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._number = 0
        self.utf8 = False
        """Whether quoted strings may hold UTF-8: the client said with ENABLE that it can read them."""

    @classmethod
    async def connect(cls, port: int, **options: Any) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 26, **options))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def line(self) -> bytes:
        """One response, with its literals."""
        line = b""
        while True:
            piece = await asyncio.wait_for(self.reader.readline(), DEADLINE)
            line += piece
            literal = re.search(rb"\{(\d+)\}\r\n$", piece)
            if not literal:
                line = line.removesuffix(b"\r\n")
                if line:
                    grammar.check(line, utf8=self.utf8)
                    said = line.upper()
                    self.utf8 |= said.startswith(b"* ENABLED") and (b"UTF8=ACCEPT" in said or b"IMAP4REV2" in said)
                return line
            line += await asyncio.wait_for(self.reader.readexactly(int(literal[1])), DEADLINE)

    async def until(self, tag: bytes) -> list[bytes]:
        """Lines up to the one that begins with `tag`."""
        lines: list[bytes] = []
        while True:
            line = await self.line()
            assert line, (b"the connection ended", lines)
            lines.append(line)
            if line.startswith(tag + b" "):
                return lines

    async def ask(self, command: bytes) -> list[bytes]:
        """Send a command under a tag of its own; its answer, the tag left out of the last line."""
        self._number += 1
        tag = b"a%d" % self._number
        self.send(tag + b" " + command + b"\r\n")
        lines = await self.until(tag)
        lines[-1] = lines[-1][len(tag) + 1 :]
        return lines

    async def ok(self, command: bytes) -> list[bytes]:
        """`ask`, the last line being an OK; only what came before it."""
        lines = await self.ask(command)
        assert lines[-1].startswith(b"OK"), lines
        return lines[:-1]

    async def append(self, raw: bytes, folder: bytes = b"INBOX", extra: bytes = b"") -> bytes:
        """APPEND with a literal that does not wait; the tagged line."""
        return (await self.ask(b"APPEND %b %b{%d+}\r\n%b" % (folder, extra, len(raw), raw)))[-1]

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), DEADLINE)

    async def close(self) -> None:
        self.writer.close()


@dataclass
class Office:
    """The deployment."""

    db: Database
    clock: ManualClock
    ids: IdGenerator
    blobs: MaildirStore
    hub: LiveHub
    boxes: Mailboxes
    ingest: Ingest
    services: ImapServices
    people: People
    identities: Identities
    keys: Keys
    tenant: Tenant
    box: Identity
    agent: Identity
    config: ImapConfig
    tls: ssl.SSLContext
    person: Person
    app_passwords: AppPasswords
    listeners: list[ImapListener] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    @property
    def ref(self) -> MailboxRef:
        return MailboxRef(self.box.tenant_id, self.box.id)

    @property
    def address(self) -> str:
        return self.box.primary.address

    async def listen(self, *, tls: bool = False, implicit: bool = False, **changes: Any) -> ImapListener:
        listener = ImapListener(
            self.services,
            replace(self.config, **changes),
            self.tls if tls or implicit else None,
            implicit_tls=implicit,
        )
        await listener.start("127.0.0.1", 0)
        self.listeners.append(listener)
        return listener

    async def connect(self, listener: ImapListener | None = None) -> Client:
        """A client that has read the greeting."""
        listener = listener or (self.listeners[0] if self.listeners else await self.listen())
        client = await Client.connect(listener.port)
        self.clients.append(client)
        assert (await client.line()).startswith(b"* OK [CAPABILITY IMAP4rev1 ")
        return client

    async def client(self, select: bytes | None = b"INBOX", listener: ImapListener | None = None) -> Client:
        """A client that is signed in and has selected a folder."""
        client = await self.connect(listener)
        await client.ok(b'LOGIN %b "%b"' % (self.address.encode(), PASSWORD.encode()))
        if select:
            await client.ok(b"SELECT " + select)
        return client

    async def deliver(
        self, raw: bytes, folder: str | None = None, *, flags: Sequence[str] = (), box: Identity | None = None
    ) -> Appended:
        """A message as from outside, with our trace lines before it."""
        box = box or self.box
        ref = MailboxRef(box.tenant_id, box.id)
        content = await self.services.parser.describe(TRACE, raw, self.clock.now())
        message_id = self.ids.new("msg")
        message = NewMessage(
            id=message_id,
            mailbox=ref,
            source=Source.MX,
            direction=Direction.INBOUND,
            blob_key=raw_key(box.tenant_public_id, box.public_id, message_id),
            content=content,
            thread_id=self.ids.new("thr"),
            event_id=self.ids.new("evt"),
            attachment_ids=tuple(self.ids.new("att") for _ in content.attachments),
            received_at=self.clock.now(),
            internal_date=self.clock.now().replace(microsecond=0),
            folder=None if folder is None else (await self.boxes.folder(ref, folder)).id,
            flags=tuple(flags),
        )
        outcome = await self.ingest.deliver(Delivery((TRACE, raw), (message,)))
        assert isinstance(outcome, tuple), outcome
        self.clock.advance(1)
        return outcome[0]

    async def fill(self, count: int, folder: str | None = None) -> None:
        """`count` short messages."""
        await asyncio.gather(*(self.deliver(mail(f"Message {n}", f"Text {n}"), folder) for n in range(1, count + 1)))

    async def app_password(self) -> str:
        """One of the mailbox's person."""
        return (await self.app_passwords.create(self.person, "phone", HOST))[1]

    async def new_key(self, *permissions: str) -> str:
        """A key of the agent identity."""
        new = NewKey("a key", Level.IDENTITY, permissions, self.agent.tenant_id, self.agent.id)
        _, text = await self.keys.create(None, new)
        return text


@pytest.fixture
async def office(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path, server_tls: ssl.SSLContext
) -> AsyncIterator[Office]:
    await ensure_deployment(db, ids, clock, "store-1", DOMAIN)
    blobs = MaildirStore(tmp_path / "store", fsync=False)
    hub = LiveHub(NoHints())
    boxes = Mailboxes(db, blobs, clock, ids, lambda ref, modseq: hub.changed(ref.mailbox_id, modseq))

    def committed(stored: Sequence[Appended]) -> None:
        for mailbox_id, modseq in changed_mailboxes(stored).items():
            hub.changed(mailbox_id, modseq)

    ingest = Ingest(db, blobs, clock, committed=committed)
    ingest.start()
    parser = Parser()
    passwords = Passwords(threads=2, queue=8, memory_kib=64, time_cost=1)
    people, keys = People(db, ids, clock, passwords), Keys(db, ids, clock, PEPPER)
    scram = ScramKeys(Keyring(HASH_KEY), PEPPER)
    sign_in = SignIn(db, clock, passwords, KeyVerifier(db, clock, PEPPER), HASH_KEY, scram=scram)

    async def mailbox_rows(conn: Connection, new: NewMailbox) -> None:
        ref = MailboxRef(new.tenant_id, new.mailbox_id)
        await boxes.create_mailbox_rows(conn, ref, identity_id=new.identity_public_id, tenant_id=new.tenant_public_id)

    async def no_events(conn: Connection, announcement: object) -> None:
        pass

    identities = Identities(db, ids, clock, HASH_KEY, mailbox_rows, no_events, lambda identity: None)
    tenant = await Tenants(db, ids, clock).create(NewTenant(slug="acme", name="Acme"))

    async def identity(username: str, kind: IdentityKind) -> Identity:
        new = NewIdentity(username=username, display_name=username.title(), kind=kind)
        return (await identities.create(tenant.id, new))[0]

    box, agent = await identity("carol", IdentityKind.PERSON), await identity("robot", IdentityKind.AGENT)
    person = await people.create(NewPerson("Carol", password=PASSWORD))
    await people.grant(tenant.id, box.public_id, person.public_id, GrantRole.OWNER, by_operator=True)
    services = ImapServices(
        database=db,
        sign_in=sign_in,
        mailboxes=boxes,
        ingest=ingest,
        parser=parser,
        blobs=blobs,
        live=hub,
        clock=clock,
        ids=ids,
        scram=scram.offer(),
        sharing=Sharing(db, ids, clock),
    )
    made = Office(
        *(db, clock, ids, blobs, hub, boxes, ingest, services, people, identities, keys, tenant, box, agent),
        *(ImapConfig(), server_tls, person, AppPasswords(db, ids, clock, PEPPER, scram=scram)),
    )
    yield made
    for client in made.clients:
        await client.close()
    for listener in made.listeners:
        await listener.drain(1)
    await ingest.stop()
    parser.close()
    passwords.close()
    await blobs.close()


Until = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture
def until() -> Until:
    """Wait for a condition."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1 with its key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "imap.example.com")])
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(
        built.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


@pytest.fixture(scope="session")
def server_tls(certificate: Path) -> ssl.SSLContext:
    return server_context(Certificate(certificate, certificate, self_signed=False))


@pytest.fixture
def client_tls(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))
