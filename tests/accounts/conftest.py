"""A deployment with tenants, and cheap passwords."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from postroom.accounts import (
    GrantRole,
    Keys,
    KeyVerifier,
    NewPerson,
    NewTenant,
    Passwords,
    People,
    SignIn,
    Tenant,
    Tenants,
    ensure_deployment,
)
from postroom.accounts.scram import ScramKeys
from postroom.accounts.service.account import Account
from postroom.accounts.service.app_passwords import AppPasswords
from postroom.accounts.service.entrance import Entrance
from postroom.accounts.service.passkeys import Passkeys
from postroom.accounts.service.sessions import Sessions
from postroom.accounts.service.standing import Standing
from postroom.accounts.service.two_step import TwoStep
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring
from postroom.db import Connection, Database
from postroom.directory import Identities, Identity, IdentityKind, NewIdentity, NewMailbox
from tests.accounts.authenticator import PARTY
from tests.accounts.home import RIGHT, Home

PEPPER = b"p" * 32
HASH_KEY = b"h" * 32
MASTER = Keyring(b"m" * 32)
DOMAIN = "agents.example"


async def mailbox_rows(conn: Connection, new: NewMailbox) -> None:
    """What the mailbox department writes, as far as grants and quotas need it."""
    await conn.execute(
        "INSERT INTO mailboxes (tenant_id, id, identity_public_id, tenant_public_id, created_at)"
        " VALUES ($1, $2, $3, $4, $5)",
        *(new.tenant_id, new.mailbox_id, new.identity_public_id, new.tenant_public_id, new.now),
    )


async def no_events(conn: Connection, announcement: object) -> None:
    pass


@dataclass
class House:
    """The use cases on one database."""

    db: Database
    ids: IdGenerator
    clock: ManualClock
    passwords: Passwords
    changed: list[str] = field(default_factory=list)
    tenants: Tenants = field(init=False)
    people: People = field(init=False)
    keys: Keys = field(init=False)
    verifier: KeyVerifier = field(init=False)
    identities: Identities = field(init=False)
    sign_in: SignIn = field(init=False)
    hints: list[str] = field(default_factory=list)
    """People and keys whose connections are to be looked at again."""
    two_step: TwoStep = field(init=False)
    app_passwords: AppPasswords = field(init=False)
    sessions: Sessions = field(init=False)
    entrance: Entrance = field(init=False)
    scram: ScramKeys = field(init=False)
    passkeys: Passkeys = field(init=False)
    account: Account = field(init=False)
    standing: Standing = field(init=False)

    def __post_init__(self) -> None:
        self.tenants = Tenants(self.db, self.ids, self.clock)
        hint = self.hints.append
        basis = (self.db, self.ids, self.clock)
        self.people = People(*basis, self.passwords, hint)
        self.keys = Keys(*basis, PEPPER, changed=hint)
        self.verifier = KeyVerifier(self.db, self.clock, PEPPER)
        self.identities = Identities(
            self.db, self.ids, self.clock, HASH_KEY, mailbox_rows, no_events, self.changed.append
        )
        self.scram = ScramKeys(MASTER, PEPPER)
        self.sign_in = SignIn(self.db, self.clock, self.passwords, self.verifier, HASH_KEY, scram=self.scram)
        throttle = self.sign_in.throttle
        self.two_step = TwoStep(*basis, MASTER, PEPPER, throttle, issuer="Postroom", changed=hint)
        self.app_passwords = AppPasswords(*basis, PEPPER, changed=hint, scram=self.scram)
        self.sessions = Sessions(*basis, PEPPER, changed=hint)
        self.passkeys = Passkeys(*basis, PARTY, PEPPER)
        self.entrance = Entrance(
            *(self.db, self.clock, self.passwords, self.two_step, self.sessions, throttle, PEPPER, self.passkeys)
        )
        self.account = Account(
            *(*basis, self.passwords, self.entrance, self.sessions, self.two_step, self.app_passwords, self.passkeys)
        )
        self.standing = Standing(self.db, self.clock)

    async def tenant(self, slug: str, **changes: object) -> Tenant:
        # The fields of a test are checked by it.
        return await self.tenants.create(NewTenant(slug=slug, name=slug, **changes))  # type: ignore[arg-type]

    async def identity(self, tenant: Tenant, username: str, kind: IdentityKind = IdentityKind.AGENT) -> Identity:
        made, _ = await self.identities.create(
            tenant.id, NewIdentity(username=username, display_name=username, kind=kind)
        )
        return made

    async def run(self, work: Callable[[Connection], Awaitable[object]]) -> object:
        async with self.db.acquire() as conn:
            return await work(conn)


@pytest.fixture
async def house(db: Database, ids: IdGenerator, clock: ManualClock) -> AsyncIterator[House]:
    await ensure_deployment(db, ids, clock, "store-1", DOMAIN)
    # A thousandth of the real cost: what is under test is when a hash is made, not how slow it is.
    passwords = Passwords(threads=2, queue=8, memory_kib=64, time_cost=1)
    yield House(db, ids, clock, passwords)
    passwords.close()


@pytest.fixture
async def home(house: House) -> Home:
    tenant = await house.tenant("main", is_default=True)
    box = await house.identity(tenant, "alice", IdentityKind.PERSON)
    person = await house.people.create(NewPerson("Alice", "alice@example.com", password=RIGHT))
    await house.people.grant(tenant.id, box.public_id, person.public_id, GrantRole.OWNER)
    house.hints.clear()
    return Home(house, box, person)
