"""A deployment whose people and agents submit mail: accounts, directory, acceptance, listeners, a real database."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from postroom.accounts import (
    Keys,
    KeyVerifier,
    Level,
    Mode,
    NewKey,
    NewPerson,
    NewTenant,
    Passwords,
    People,
    Person,
    Principal,
    SignIn,
    Tenant,
    Tenants,
    ensure_deployment,
)
from postroom.accounts.audit import HOST
from postroom.accounts.permissions import GrantRole, Permission
from postroom.accounts.scram import ScramKeys
from postroom.accounts.service.app_passwords import AppPasswords
from postroom.accounts.service.sign_in import ThrottlePolicy
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring
from postroom.blobs import MaildirStore
from postroom.db import Connection, Database
from postroom.directory import Identities, Identity, IdentityKind, NewIdentity, NewMailbox
from postroom.directory.models import Forward, Recipient, Refusal
from postroom.directory.resolver import Directory
from postroom.inbound.parsing import Parser
from postroom.mailbox.models import Appended, MailboxRef
from postroom.mailbox.service import Mailboxes
from postroom.outbound.accept import Acceptance
from postroom.outbound.allowance import SubmissionLimits
from postroom.outbound.models import RouteKind
from postroom.outbound.submission import Destination, Submission
from postroom.servers.submission import Door, SubmissionListener
from postroom.smtp import ServerConfig
from postroom.smtp.envelope import Envelope, SessionInfo
from postroom.smtp.params import NO_MAIL_PARAMETERS, MailParameters, RcptParameters

PEPPER = b"p" * 32
HASH_KEY = b"h" * 32
DOMAIN = "agents.example"
PASSWORD = "correct horse battery"
SIGNATURE = b"DKIM-Signature: v=1; d="


def mail(
    sender: str = f"Carol <carol@{DOMAIN}>", to: str = "ann@example.com", text: str = "Hello.", **more: str
) -> bytes:
    """A message as a mail program submits it, without Date and Message-ID unless they are given."""
    fields = {"From": sender, "To": to, "Subject": "Hello", **more}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items() if value)
    return f"{head}\r\n{text}\r\n".encode()


@dataclass
class PostOffice:
    """`signed` and `routed` are what was asked of the two that stand in for dispatch."""

    db: Database
    clock: ManualClock
    ids: IdGenerator
    blobs: MaildirStore
    boxes: Mailboxes
    identities: Identities
    people: People
    keys: Keys
    sign_in: SignIn
    directory: Directory
    parser: Parser
    tenant: Tenant
    carol: Identity
    robot: Identity
    dave: Identity
    person: Person
    scram: ScramKeys
    changed: list[Appended] = field(default_factory=list)
    woken: list[None] = field(default_factory=list)
    signed: list[tuple[bytes, str]] = field(default_factory=list)
    routed: list[tuple[str, str]] = field(default_factory=list)
    listeners: list[SubmissionListener] = field(default_factory=list)
    limits: SubmissionLimits = field(default_factory=SubmissionLimits)
    failure: Exception | None = None

    def submission(self, **changes: Any) -> Submission:
        acceptance = Acceptance(
            self.db,
            self.blobs,
            self.clock,
            self.ids,
            changed=self.changed.extend,
            wake=lambda: self.woken.append(None),
        )
        options: dict[str, Any] = {"limits": self.limits, "route": self.route, "sign": self.sign, **changes}
        return Submission(
            self.db,
            acceptance,
            self.parser,
            self.clock,
            self.ids,
            hostname="mail.agents.example",
            version="1",
            blobs=self.blobs,
            hash_key=HASH_KEY,
            **options,
        )

    async def find(self, address: str, mail_from: str) -> Recipient | Refusal:
        found = await self.directory.resolve(address)
        assert not isinstance(found, Forward), "there are no aliases here"
        return found

    async def sign(self, wire: bytes, domain: str) -> bytes:
        if self.failure is not None:
            raise self.failure
        self.signed.append((wire, domain))
        return SIGNATURE + domain.encode() + b"\r\n" + wire

    async def route(self, address: str, sender_domain: str) -> RouteKind:
        self.routed.append((address, sender_domain))
        return RouteKind.DIRECT

    async def listen(self, *, tls: ssl.SSLContext | None = None, implicit: bool = False, **options: Any) -> Any:
        """A submission listener on a free port."""
        config = options.pop("config", ServerConfig("mail.agents.example", scram=self.scram.offer()))
        submission = options.pop("submission", None) or self.submission()
        door = Door(self.sign_in, self.find, submission)
        listener = SubmissionListener(
            config, door, ssl_context=tls, implicit_tls=implicit, now=self.clock.now, **options
        )
        await listener.start("127.0.0.1", 0)
        self.listeners.append(listener)
        return listener

    async def account(self, address: str = f"carol@{DOMAIN}", password: str = PASSWORD) -> Principal:
        found = await self.sign_in.sign_in(address, password, "127.0.0.1", Permission.MESSAGES_SEND)
        assert isinstance(found, Principal), found
        return found

    async def app_password(self) -> str:
        """One of Carol's."""
        passwords = AppPasswords(self.db, self.ids, self.clock, PEPPER, scram=self.scram)
        return (await passwords.create(self.person, "phone", HOST))[1]

    async def key(self, *permissions: str, identity: Identity | None = None) -> str:
        """A key of the agent."""
        agent = identity or self.robot
        new = NewKey("a key", Level.IDENTITY, permissions or ("messages:send",), agent.tenant_id, agent.id)
        return (await self.keys.create(None, new))[1]

    async def new_identity(self, username: str, kind: IdentityKind = IdentityKind.PERSON, **more: Any) -> Identity:
        tenant = more.pop("tenant", self.tenant)
        new = NewIdentity(username=username, display_name=username.title(), kind=kind, **more)
        return (await self.identities.create(tenant.id, new))[0]

    async def envelope(
        self,
        *recipients: str,
        mail_from: str = f"carol@{DOMAIN}",
        parameters: MailParameters = NO_MAIL_PARAMETERS,
        recipient_parameters: tuple[RcptParameters, ...] = (),
    ) -> Envelope[Destination]:
        door = Door(self.sign_in, self.find, self.submission())
        session = SessionInfo("c0ffee", "192.0.2.7", "laptop.example", True, mail_from)
        resolved = []
        for address in recipients or ("ann@example.com",):
            found = await door.resolve(address.lower(), session)
            assert isinstance(found, Destination), found
            resolved.append((address, found))
        return Envelope(
            connection_id="c0ffee",
            peer_ip="192.0.2.7",
            peer_name=None,
            helo="laptop.example",
            esmtp=True,
            tls=True,
            mail_from=mail_from,
            recipients=tuple(resolved),
            smtputf8=parameters.smtputf8,
            body_8bit=parameters.body_8bit,
            declared_size=None,
            received_at=self.clock.now(),
            parameters=parameters,
            recipient_parameters=recipient_parameters,
        )

    async def rows(self, statement: str, *values: Any) -> list[Any]:
        async with self.db.acquire() as conn:
            return list(await conn.fetch(statement, *values))

    async def execute(self, statement: str, *values: Any) -> None:
        async with self.db.acquire() as conn:
            await conn.execute(statement, *values)

    async def stored(self) -> tuple[Any, bytes, bytes]:
        """The one message: its rows, the Sent copy and what goes out."""
        (row,) = await self.rows(
            "SELECT m.*, o.operation, o.hop, o.person_id, o.envelope_from, o.eight_bit, o.smtputf8,"
            " o.dsn_ret, o.dsn_envid, o.wire_key, o.wire_size FROM messages m"
            " JOIN outbound_messages o ON o.tenant_id = m.tenant_id AND o.message_id = m.id"
        )
        wire = await self.blobs.get(row["wire_key"])
        assert len(wire) == row["wire_size"]
        return row, await self.blobs.get(row["blob_key"]), wire

    async def deliveries(self) -> list[Any]:
        return await self.rows("SELECT * FROM deliveries ORDER BY message_id, position")


@asynccontextmanager
async def post_office(db: Database, clock: ManualClock, ids: IdGenerator, path: Path) -> AsyncIterator[PostOffice]:
    await ensure_deployment(db, ids, clock, "store-1", DOMAIN)
    blobs = MaildirStore(path / "store", fsync=False)
    boxes = Mailboxes(db, blobs, clock, ids, lambda ref, modseq: None)
    passwords = Passwords(threads=2, queue=8, memory_kib=64, time_cost=1)
    people, keys = People(db, ids, clock, passwords), Keys(db, ids, clock, PEPPER)
    policy = ThrottlePolicy(failures=3, seconds=60)
    scram = ScramKeys(Keyring(HASH_KEY), PEPPER)
    sign_in = SignIn(db, clock, passwords, KeyVerifier(db, clock, PEPPER), HASH_KEY, policy, scram=scram)

    async def mailbox_rows(conn: Connection, new: NewMailbox) -> None:
        ref = MailboxRef(new.tenant_id, new.mailbox_id)
        await boxes.create_mailbox_rows(conn, ref, identity_id=new.identity_public_id, tenant_id=new.tenant_public_id)

    async def no_events(conn: Connection, announcement: object) -> None:
        pass

    identities = Identities(db, ids, clock, HASH_KEY, mailbox_rows, no_events, lambda identity: None)
    tenants = Tenants(db, ids, clock)
    tenant = await tenants.create(NewTenant(slug="acme", name="Acme", is_default=True))

    async def identity(username: str, kind: IdentityKind, **more: Any) -> Identity:
        new = NewIdentity(username=username, display_name=username.title(), kind=kind, **more)
        return (await identities.create(tenant.id, new))[0]

    owner = {"owner_name": "Olga Owner", "owner_email": "olga@example.com"}
    carol = await identity("carol", IdentityKind.PERSON)
    dave = await identity("dave", IdentityKind.PERSON)
    robot = await identity("robot", IdentityKind.AGENT, **owner)
    person = await people.create(NewPerson("Carol", password=PASSWORD))
    await people.grant(tenant.id, carol.public_id, person.public_id, GrantRole.OWNER, by_operator=True)
    parser = Parser()
    directory = Directory(db, clock, DOMAIN, query_seconds=60)
    made = PostOffice(
        *(db, clock, ids, blobs, boxes, identities, people, keys, sign_in, directory, parser),
        *(tenant, carol, robot, dave, person, scram),
    )
    yield made
    for listener in made.listeners:
        await listener.drain(0)
    parser.close()
    passwords.close()
    await blobs.close()


async def lab(office: PostOffice) -> Tenant:
    """A tenant of which nothing leaves."""
    tenants = Tenants(office.db, office.ids, office.clock)
    return await tenants.create(NewTenant(slug="lab", name="Lab", mode=Mode.TEST))


def recipients_of(rows: Sequence[Any]) -> list[tuple[str, str, str, str]]:
    """Address, field, route and status of deliveries."""
    return [(row["recipient"], row["field"], row["route"], row["status"]) for row in rows]
