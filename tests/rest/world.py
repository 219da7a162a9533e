"""A whole deployment behind the ASGI application: two tenants, mailboxes with delivered mail, keys of every level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx

from postroom.accounts import Keys, KeyVerifier, Level, Mode, NewKey, Passwords, People, RateLimiter, Tenant, Tenants
from postroom.accounts.permissions import MAY_HOLD, OWNER_ONLY
from postroom.accounts.policy_rules import Stance
from postroom.accounts.service.master_keys import MasterKeys
from postroom.accounts.service.members import Members
from postroom.accounts.service.partners import Partners
from postroom.accounts.service.policies import Policies
from postroom.accounts.service.standing import Standing
from postroom.accounts.signing_keys import SigningKeys
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring
from postroom.base.secrets import Secrets
from postroom.base.settings_tree import Environment
from postroom.blobs import MaildirStore
from postroom.db import Connection, Database
from postroom.directory import Addresses, Deletions, Identities, Identity, Lists, NewIdentity, NewMailbox
from postroom.directory.sending_controls import SendingControls, Switches
from postroom.directory.standing import Platform, slots_of
from postroom.events.feed import Feed
from postroom.events.identities import IdentityAnnouncer
from postroom.events.live import LiveHub
from postroom.events.members import MemberAnnouncer
from postroom.events.tenants import TenantAnnouncer
from postroom.events.webhooks.endpoints import Endpoints
from postroom.events.webhooks.replay import Replays
from postroom.inbound.describe import describe
from postroom.inbound.parsing import Parser
from postroom.inbound.thread_tokens import ThreadTokens
from postroom.mailbox.ingest import Delivery, Ingest
from postroom.mailbox.models import Announce, Appended, Direction, MailboxRef, NewMessage, Source
from postroom.mailbox.service import Mailboxes
from postroom.mailbox.writing import close_mailbox
from postroom.net.guarded_http import GuardedClient
from postroom.outbound.accept import Acceptance
from postroom.outbound.closing import Closing
from postroom.outbound.dead_letters import DeadLetters
from postroom.outbound.models import RouteKind
from postroom.outbound.submit import Sending
from postroom.servers.http import About, CursorKey, CursorKeys, HttpApp, HttpServices
from postroom.servers.http.rest import shapes
from postroom.servers.http.streams import Streams
from tests.events.hooks import Receivers

PEPPER = b"p" * 32
HASH_KEY = b"h" * 32
MASTER_KEY = b"m" * 32
MASTER = Keyring(MASTER_KEY)
DOMAIN = "agents.example"
TRACE = (
    b"Return-Path: <anna@example.com>\r\n"
    b"Received: from mx.example.com by mx.agents.example; Tue, 01 Jan 2030 00:00:00 +0000\r\n"
)


class NoHints:
    """There is one node."""

    def hint(self, channel: str, key: int | str, value: int = 0) -> None:
        pass


def simple_mail(subject: str = "Hello", text: str = "Hello there.", **headers: str) -> bytes:
    """A plain message in wire form."""
    fields = {"From": "Anna Example <anna@example.com>", "To": "box@agents.example", "Subject": subject, **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"{head}\r\n{text}\r\n".encode()


@dataclass
class World:
    """The deployment. `client` calls the application without a socket."""

    db: Database
    clock: ManualClock
    ids: IdGenerator
    blobs: MaildirStore
    hub: LiveHub
    mailboxes: Mailboxes
    ingest: Ingest
    tenants: Tenants
    identities: Identities
    keys: Keys
    app: HttpApp
    client: httpx.AsyncClient
    tenant: Tenant = field(init=False)
    box: Identity = field(init=False)
    other_tenant: Tenant = field(init=False)
    other_box: Identity = field(init=False)
    platform: dict[str, str] = field(init=False)
    key: dict[str, str] = field(init=False)
    other_key: dict[str, str] = field(init=False)

    @property
    def ref(self) -> MailboxRef:
        return MailboxRef(self.box.tenant_id, self.box.id)

    async def new_identity(self, tenant: Tenant, username: str, **more: Any) -> Identity:
        new = NewIdentity(username=username, display_name=username.title(), **more)
        made, _ = await self.identities.create(tenant.id, new)
        return made

    async def new_key(
        self,
        level: Level,
        permissions: Sequence[str] | None = None,
        *,
        tenant: Tenant | None = None,
        identity: Identity | None = None,
    ) -> dict[str, str]:
        """Headers that carry a new key; with every permission that the level can hold unless told otherwise."""
        if permissions is None:
            permissions = sorted(MAY_HOLD[level] - OWNER_ONLY)
        tenant_id = tenant.id if tenant else identity.tenant_id if identity else None
        new = NewKey("a key", level, tuple(permissions), tenant_id, identity.id if identity else None)
        _, text = await self.keys.create(None, new)
        return {"authorization": f"Bearer {text}"}

    async def revoke_keys(self) -> None:
        """All that there are: a tenant has so many and no more."""
        async with self.db.acquire() as conn:
            await conn.execute("UPDATE api_keys SET revoked_at = $1 WHERE revoked_at IS NULL", self.clock.now())

    async def deliver(
        self,
        original: bytes,
        *,
        to: Identity | None = None,
        direction: Direction = Direction.INBOUND,
        announce: Announce | None = None,
    ) -> Appended:
        """A message as the MX would store it; `announce` makes the event of it."""
        box = to or self.box
        content = describe(TRACE, original, self.clock.now())
        message_id = self.ids.new("msg_")
        message = NewMessage(
            id=message_id,
            mailbox=MailboxRef(box.tenant_id, box.id),
            source=Source.MX if direction is Direction.INBOUND else Source.APPEND,
            direction=direction,
            blob_key=f"t/{box.tenant_public_id}/i/{box.public_id}/m/{message_id}/raw.eml",
            content=content,
            thread_id=self.ids.new("thr_"),
            event_id=self.ids.new("evt_"),
            attachment_ids=tuple(self.ids.new("att_") for _ in content.attachments),
            received_at=self.clock.now(),
            internal_date=self.clock.now().replace(microsecond=0),
            delivered_to=box.primary.address,
            announce=announce,
        )
        outcome = await self.ingest.deliver(Delivery((TRACE, original), (message,)))
        assert isinstance(outcome, tuple), outcome
        self.clock.advance(1)
        return outcome[0]

    def at(self, path: str = "") -> str:
        """A path below the first tenant's mailbox."""
        return f"/v1/identities/{self.box.public_id}{path}"

    async def get(self, path: str, headers: dict[str, str] | None = None, /, **params: Any) -> httpx.Response:
        return await self.client.get(path, headers=self.key if headers is None else headers, params=params or None)

    async def post(
        self,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        key: str | None = None,
        **params: Any,
    ) -> httpx.Response:
        sent = dict(self.key if headers is None else headers)
        if key is not None:
            sent["idempotency-key"] = key
        return await self.client.post(path, headers=sent, json=body, params=params or None)

    async def patch(self, path: str, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
        return await self.client.patch(path, headers=self.key if headers is None else headers, json=body)


async def ready() -> None:
    pass


async def unsigned(wire: bytes, domain: str) -> bytes:
    """Signs nothing."""
    return wire


async def routed(address: str, /, *, from_domain: str, mode: Mode) -> RouteKind:
    """To the simulator, to mailboxes here, and out."""
    domain = address.rpartition("@")[2]
    if domain == "simulator.invalid":
        return RouteKind.SIMULATOR
    return RouteKind.LOCAL if domain == DOMAIN else RouteKind.DIRECT


def sending_of(
    db: Database,
    clock: ManualClock,
    ids: IdGenerator,
    blobs: MaildirStore,
    mailboxes: Mailboxes,
    parser: Parser,
    **changes: Any,
) -> Sending:
    """The service that sends, with `changes` to what it is made of."""
    made: dict[str, Any] = {
        "queries": mailboxes.queries,
        "parser": parser,
        "acceptance": Acceptance(db, blobs, clock, ids, changed=lambda stored: None, wake=lambda: None),
        "sign": unsigned,
        "mint": ThreadTokens(SigningKeys(db, MASTER, clock), clock).mint,
        "route": routed,
        "resource": shapes.message,
        "hash_key": HASH_KEY,
        **changes,
    }
    return Sending(db, blobs, clock, ids, **made)


def services_of(
    db: Database, clock: ManualClock, ids: IdGenerator, blobs: MaildirStore, hub: LiveHub, mailboxes: Mailboxes
) -> HttpServices:
    async def mailbox_rows(conn: Connection, new: NewMailbox) -> None:
        await mailboxes.create_mailbox_rows(
            conn,
            MailboxRef(new.tenant_id, new.mailbox_id),
            identity_id=new.identity_public_id,
            tenant_id=new.tenant_public_id,
        )

    parser = Parser()
    policies = Policies(db, clock, Stance())
    signing_keys = SigningKeys(db, MASTER, clock)
    told = MemberAnnouncer(ids)
    people = People(db, ids, clock, Passwords(threads=1, queue=1, memory_kib=64, time_cost=1), announce=told)
    controls, switches = SendingControls(db, clock, ids), Switches(db, clock)
    secrets = Secrets(MASTER_KEY, PEPPER, HASH_KEY)
    master_keys = MasterKeys(db, ids, clock, MASTER, node="here")
    return HttpServices(
        database=db,
        blobs=blobs,
        clock=clock,
        ids=ids,
        verifier=KeyVerifier(db, clock, PEPPER),
        keys=Keys(db, ids, clock, PEPPER),
        rates=RateLimiter(clock),
        tenants=Tenants(db, ids, clock, announce=TenantAnnouncer(ids), policy_changed=policies.forget),
        policies=policies,
        partners=Partners(db, ids, clock),
        identities=Identities(db, ids, clock, HASH_KEY, mailbox_rows, IdentityAnnouncer(ids), lambda identity: None),
        addresses=Addresses(db, ids, clock, HASH_KEY, IdentityAnnouncer(ids), lambda identity: None),
        deletions=Deletions(db, ids, clock, HASH_KEY, close_mailbox, lambda identity: None),
        lists=Lists(db, ids, clock),
        mailboxes=mailboxes,
        live=hub,
        parser=parser,
        cursor_keys=CursorKeys(CursorKey("k1", b"c" * 32)),
        about=About("0.1.0", "abcdef0", Environment.LOCAL),
        store_ready=ready,
        migrated=ready,
        sending=sending_of(db, clock, ids, blobs, mailboxes, parser),
        closing=Closing(db, blobs, clock, ids, queries=mailboxes.queries, changed=lambda ref, modseq: None),
        signing_keys=signing_keys,
        controls=controls,
        dead_letters=DeadLetters(db, clock, ids, lambda: None),
        switches=switches,
        platform=Platform(db, clock, controls, Path("/"), keys=lambda: slots_of(master_keys, secrets)),
        webhooks=Endpoints(db, ids, clock, MASTER, cast(GuardedClient, Receivers())),
        replays=Replays(db, ids, clock, stance=policies.stance),
        members=Members(db, ids, clock, people, signing_keys, HASH_KEY, announce=told),
        streams=Streams(db, Feed(db, poll=0.05), Standing(db, clock)),
    )
