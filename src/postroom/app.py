"""The composition root: settings become services, services become roles (architecture §2, §4).

`open_core` makes what every process needs, the command line included; `Node` adds the listeners and the background
work of one server process. Nothing is global: whatever a service needs, it is given here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from postroom.accounts.audit import AuditLog
from postroom.accounts.passkeys import RelyingParty
from postroom.accounts.passwords import Passwords
from postroom.accounts.policy_rules import Stance, stance_of
from postroom.accounts.scram import ScramKeys
from postroom.accounts.service.app_passwords import AppPasswords
from postroom.accounts.service.deployment import ensure_deployment
from postroom.accounts.service.keys import Keys, KeyVerifier
from postroom.accounts.service.master_keys import MasterKeys
from postroom.accounts.service.members import Members
from postroom.accounts.service.partners import Partners
from postroom.accounts.service.passkeys import Passkeys
from postroom.accounts.service.people import People
from postroom.accounts.service.policies import CHANNEL as POLICY_CHANNEL
from postroom.accounts.service.policies import Policies
from postroom.accounts.service.sessions import Sessions
from postroom.accounts.service.sharing import Sharing
from postroom.accounts.service.standing import CHANNEL as ACCOUNTS_CHANNEL
from postroom.accounts.service.tenants import Tenants
from postroom.accounts.service.throttle import Throttle, ThrottlePolicy
from postroom.accounts.service.two_step import TwoStep
from postroom.accounts.signing_keys import SigningKeys
from postroom.base import log as base_log
from postroom.base.clock import Clock, SystemClock
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring
from postroom.base.secrets import Secrets
from postroom.base.settings import SettingsError
from postroom.base.settings_tree import Settings
from postroom.blobs.maildir import MaildirStore
from postroom.db import Database, LocalPostgres, Migrator, Notifier
from postroom.directory.models import Announce, IdentityKind, NewMailbox
from postroom.directory.relays import Relays
from postroom.directory.sending_controls import CHANNEL as SWITCH_CHANNEL
from postroom.directory.sending_controls import SendingControls, Switches
from postroom.directory.service.addresses import Addresses
from postroom.directory.service.aliases import Aliases
from postroom.directory.service.deletion import Deletions
from postroom.directory.service.identities import Identities
from postroom.directory.service.lists import Lists
from postroom.events.identities import IdentityAnnouncer
from postroom.events.live import LiveHub
from postroom.events.members import MemberAnnouncer
from postroom.events.tenants import TenantAnnouncer
from postroom.events.webhooks.delivering import Observe, unobserved
from postroom.events.webhooks.endpoints import end_of_partner
from postroom.events.webhooks.service import CHANNEL as WEBHOOK_CHANNEL
from postroom.events.webhooks.service import Webhooks
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.service import Mailboxes
from postroom.mailbox.writing import close_mailbox
from postroom.net.dns_types import Resolver
from postroom.net.dns_wire import Options, parse_server, system_servers
from postroom.net.guarded_http import GuardedClient
from postroom.net.own_addresses import OwnAddresses
from postroom.net.resolver import CachingResolver, ResolverLimits

log = base_log.get("app")

DIRECTORY_CHANNEL: Final = "postroom_directory"
SERVER_CONNECTIONS: Final = 100
"""`max_connections` of the bundled PostgreSQL."""
SPARE_CONNECTIONS: Final = 10
"""Kept from the pools for migrations, psql and the superuser."""
DEDICATED_CONNECTIONS: Final = 4
"""Of each process beside its pool: notifier and listener (B13), and a session for each of ingest's committers."""


@dataclass(frozen=True, slots=True)
class Core:
    """What every process has."""

    settings: Settings
    secrets: Secrets
    keyring: Keyring
    """The master keys; a server's follows `secrets.toml`."""
    master_keys: MasterKeys
    clock: Clock
    ids: IdGenerator
    database: Database
    blobs: MaildirStore
    notifier: Notifier
    live: LiveHub
    passwords: Passwords
    tenants: Tenants
    policies: Policies
    partners: Partners
    people: People
    members: Members
    sharing: Sharing
    two_step: TwoStep
    app_passwords: AppPasswords
    scram: ScramKeys
    passkeys: Passkeys
    sessions: Sessions
    keys: Keys
    signing_keys: SigningKeys
    verifier: KeyVerifier
    identities: Identities
    deletions: Deletions
    addresses: Addresses
    aliases: Aliases
    lists: Lists
    controls: SendingControls
    switches: Switches
    audit: AuditLog
    relays: Relays
    mailboxes: Mailboxes
    announce: Announce
    resolver: Resolver
    """Asks the DNS, and remembers what it said."""
    directory_changed: Callable[[str], None]
    """Tells every process what its directory is to forget."""

    async def text_bytes(self, tenant_id: int) -> int:
        """How much text of a message the tenant wants in events (FR-WH-4). Raises `tenant_not_found`."""
        return (await self.policies.of(tenant_id)).webhook_text_bytes


def pool_size(settings: Settings, *, bundled: bool) -> int:
    """Connections of one process's pool, so that all processes together stay under the server's limit (B19)."""
    wanted = settings.database.max_connections
    if not bundled:
        return wanted
    room = (SERVER_CONNECTIONS - SPARE_CONNECTIONS) // settings.server.processes - DEDICATED_CONNECTIONS
    return max(2, min(wanted, room))


@asynccontextmanager
async def open_postgres(settings: Settings) -> AsyncIterator[str]:
    """The database's URL: the configured one, or that of the bundled server, which runs until the context ends."""
    if settings.database.url:
        yield settings.database.url
        return
    server = LocalPostgres(settings.server.data_dir, max_connections=SERVER_CONNECTIONS)
    await server.start()
    try:
        yield server.dsn
    finally:
        await server.stop()


@asynccontextmanager
async def open_core(
    settings: Settings,
    secrets: Secrets,
    url: str,
    *,
    clock: Clock | None = None,
    random: Callable[[int], bytes] = os.urandom,
    migrate: bool = True,
    writing_process: bool = False,
    resolver: Resolver | None = None,
) -> AsyncIterator[Core]:
    """Everything below the listeners, ready to use; closed when the context ends. `writing_process` is for servers,
    which write much (see `blobs.writing_process`). `resolver` answers instead of the DNS, and stays the caller's.

    Raises MigrationError, DeploymentMismatch, MarkerMismatch, DatabaseUnavailable, or SettingsError for a master key
    that is not of this database; their words are for the operator.
    """
    clock = clock or SystemClock()
    ids = IdGenerator(clock, random)
    async with AsyncExitStack() as stack:
        database = _database(settings, url)
        if migrate:
            await Migrator(database).run()
        await stack.enter_async_context(database)
        blobs = _store(settings, clock, writing_process=writing_process)
        stack.push_async_callback(blobs.close)
        await _claim_deployment(database, blobs, settings, ids, clock)
        keyring = Keyring(secrets.master_key, secrets.other_master_key, random=random)
        master_keys = MasterKeys(database, ids, clock, keyring, node=settings.server.node_id)
        await master_keys.check()
        notifier = Notifier(database)
        await notifier.start()
        stack.push_async_callback(notifier.stop)
        live = LiveHub(notifier)
        mailboxes = Mailboxes(
            database, blobs, clock, ids, changed=lambda ref, modseq: live.changed(ref.mailbox_id, modseq)
        )
        passwords = Passwords()
        stack.callback(passwords.close)
        if resolver is None:
            own = await asyncio.to_thread(make_resolver, settings, clock)  # the system's name servers are in a file
            stack.push_async_callback(own.aclose)
            resolver = own
        verifier = KeyVerifier(database, clock, secrets.key_pepper)
        announce = IdentityAnnouncer(ids)
        directory_changed = partial(notifier.hint, DIRECTORY_CHANNEL)
        signed_out = partial(notifier.hint, ACCOUNTS_CHANNEL)

        def deleted(identity: str) -> None:
            directory_changed(identity)
            signed_out(identity)

        pepper = secrets.key_pepper
        scram = ScramKeys(keyring, pepper, random=random)
        mailbox_rows = _mailbox_factory(mailboxes, settings.limits.mailbox_quota)
        identities = Identities(database, ids, clock, secrets.hash_key, mailbox_rows, announce, directory_changed)
        stance = _stance(settings)
        told_of_members = MemberAnnouncer(ids)
        people = People(database, ids, clock, passwords, signed_out, told_of_members)
        signing_keys = SigningKeys(database, keyring, clock, random=random)
        tenants = Tenants(
            database,
            ids,
            clock,
            stance,
            announce=TenantAnnouncer(ids),
            changed=directory_changed,
            policy_changed=partial(notifier.hint, POLICY_CHANNEL),
        )
        yield Core(
            settings=settings,
            secrets=secrets,
            keyring=keyring,
            master_keys=master_keys,
            clock=clock,
            ids=ids,
            database=database,
            blobs=blobs,
            notifier=notifier,
            live=live,
            passwords=passwords,
            tenants=tenants,
            policies=Policies(database, clock, stance),
            partners=Partners(database, ids, clock, signed_out, ended=(end_of_partner,)),
            people=people,
            members=Members(*(database, ids, clock, people, signing_keys, secrets.hash_key), announce=told_of_members),
            sharing=Sharing(database, ids, clock, signed_out),
            two_step=TwoStep(
                *(database, ids, clock, keyring, pepper),
                Throttle(database, clock, secrets.hash_key, throttle_policy(settings)),
                issuer=f"Postroom ({settings.platform_domain})",
                random=random,
                changed=signed_out,
            ),
            app_passwords=AppPasswords(database, ids, clock, pepper, random, signed_out, scram=scram),
            scram=scram,
            passkeys=Passkeys(database, ids, clock, relying_party(settings), pepper, random=random),
            sessions=Sessions(database, ids, clock, pepper, random, signed_out),
            keys=Keys(database, ids, clock, pepper, random, signed_out),
            signing_keys=signing_keys,
            verifier=verifier,
            identities=identities,
            deletions=Deletions(database, ids, clock, secrets.hash_key, close_mailbox, deleted),
            addresses=Addresses(database, ids, clock, secrets.hash_key, announce, directory_changed),
            lists=Lists(database, ids, clock),
            controls=SendingControls(database, clock, ids, partial(notifier.hint, SWITCH_CHANNEL)),
            switches=Switches(database, clock),
            audit=AuditLog(database),
            aliases=Aliases(database, ids, clock, secrets.hash_key, settings.platform_domain, directory_changed),
            relays=Relays(database, ids, clock, mailbox_rows),
            mailboxes=mailboxes,
            announce=announce,
            resolver=resolver,
            directory_changed=directory_changed,
        )


async def open_client(core: Core) -> GuardedClient:
    """What sends to URLs of others; the caller closes it. It reads the system's authorities, so commands that ask
    nobody go without."""
    settings = core.settings

    def made() -> GuardedClient:
        return GuardedClient(
            core.clock,
            core.resolver,
            own_hosts=(settings.api_host, settings.server.hostname, *settings.mx_hosts),
            platform_domain=settings.platform_domain,
            own_addresses=own_addresses_of(core),
        )

    return await asyncio.to_thread(made)


def own_addresses_of(core: Core) -> OwnAddresses:
    """Addresses of this deployment: this machine's, its listeners', and those that the settings name."""
    settings = core.settings
    listeners = (settings.smtp.host, settings.imap.host, settings.api.host)
    return OwnAddresses(core.clock, (*listeners, *map(str, settings.server.own_addresses)))


def webhooks_of(core: Core, client: GuardedClient, *, observe: Observe = unobserved) -> Webhooks:
    """Webhooks of this process; `observe` counts what became of attempts."""
    return Webhooks(
        *(core.database, core.ids, core.clock, core.keyring, client),
        hash_key=core.secrets.hash_key,
        stance=core.policies.stance,
        hint=partial(core.notifier.hint, WEBHOOK_CHANNEL),
        observe=observe,
    )


def _stance(settings: Settings) -> Stance:
    tenants = settings.tenants
    try:
        return stance_of(tenants.default_policy, keys_decide=tenants.quarantine_key_release)
    except ValueError as error:
        raise SettingsError([str(error)]) from None


def throttle_policy(settings: Settings) -> ThrottlePolicy:
    """How often somebody may try to sign in (mail-server F3)."""
    limits = settings.limits
    return ThrottlePolicy(failures=limits.max_failed_logins, seconds=int(limits.login_lockout_secs))


def relying_party(settings: Settings) -> RelyingParty:
    """For whom passkeys are made: by default the API's host, and pages that are served from it."""
    passkeys, host = settings.passkeys, settings.api_host
    origins = set(passkeys.origins)
    if not origins:
        origins = {f"https://{host}"}
        if settings.api.tls_port:
            origins.add(f"https://{host}:{settings.api.tls_port}".removesuffix(":443"))
        if host == "localhost" and settings.api.port:
            origins.add(f"http://{host}:{settings.api.port}".removesuffix(":80"))
    return RelyingParty(passkeys.rp_id or host, f"Postroom ({settings.platform_domain})", frozenset(origins))


def make_resolver(settings: Settings, clock: Clock) -> CachingResolver:
    """What asks the DNS, as the settings want it; reads the system's name servers from a file."""
    dns = settings.dns
    servers = [parse_server(text) for text in dns.resolvers] or list(system_servers()) or [parse_server("127.0.0.1")]
    return CachingResolver(
        clock,
        servers,
        limits=ResolverLimits(
            timeout_secs=dns.timeout_secs,
            attempts=dns.attempts,
            cache_ttl_secs=dns.cache_ttl_secs,
            negative_ttl_secs=dns.negative_ttl_secs,
        ),
        options=Options(tcp_fallback=dns.tcp_fallback),
    )


def _database(settings: Settings, url: str) -> Database:
    return Database(
        url,
        min_size=min(settings.database.min_connections, settings.database.max_connections),
        max_size=pool_size(settings, bundled=not settings.database.url),
        acquire_timeout=settings.database.acquire_timeout_secs,
        application_name=f"postroom {settings.server.node_id}",
    )


def _store(settings: Settings, clock: Clock, *, writing_process: bool) -> MaildirStore:
    return MaildirStore(
        settings.server.data_dir,
        write_threads=settings.storage.write_threads,
        read_threads=settings.storage.read_threads,
        sync_threads=settings.storage.sync_threads,
        writing_process=writing_process,
        fsync=settings.storage.fsync_on_write,
        clock=clock,
    )


async def _claim_deployment(
    database: Database, blobs: MaildirStore, settings: Settings, ids: IdGenerator, clock: Clock
) -> None:
    """Database, blob store and platform domain belong together, or the start is refused (B5)."""
    async with database.acquire() as conn:
        store_id = await conn.fetchval("SELECT store_id FROM deployment")
        empty = not await conn.fetchval("SELECT EXISTS (SELECT FROM messages)")
    if store_id is None:
        store_id = ids.ulid()
    await ensure_deployment(database, ids, clock, store_id, settings.platform_domain)
    # The row first: a crash between the two leaves a database that may still mark an unmarked store.
    await blobs.check_marker(store_id, create=empty)


def _mailbox_factory(mailboxes: Mailboxes, person_quota: int) -> Callable[..., Awaitable[None]]:
    """How the directory gets a mailbox for a new identity. People have a quota from the start, agents none (D9)."""

    async def make(conn: object, new: NewMailbox) -> None:
        await mailboxes.create_mailbox_rows(
            conn,  # type: ignore[arg-type] # the directory's own connection type
            MailboxRef(new.tenant_id, new.mailbox_id),
            identity_id=new.identity_public_id,
            tenant_id=new.tenant_public_id,
            quota_bytes=person_quota if new.kind is IdentityKind.PERSON else None,
            is_system=new.is_system,
        )

    return make
