"""One server process: the listeners of its roles and the work behind them (architecture §4)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from postroom import __version__
from postroom.accounts.rates import RateLimiter
from postroom.accounts.service.account import Account
from postroom.accounts.service.entrance import Entrance
from postroom.accounts.service.policies import CHANNEL as POLICY_CHANNEL
from postroom.accounts.service.sign_in import SignIn
from postroom.accounts.service.standing import CHANNEL as ACCOUNTS_CHANNEL
from postroom.accounts.service.standing import Standing
from postroom.accounts.service.throttle import Throttle
from postroom.accounts.service.upkeep import Upkeep
from postroom.app import DIRECTORY_CHANNEL, Core, open_client, throttle_policy, webhooks_of
from postroom.base import log as base_log
from postroom.base.secrets import Secrets
from postroom.base.settings_tree import LimitSettings, Role
from postroom.blobs.store import StorageError
from postroom.db import DatabaseUnavailable, Listener, Migrator, is_transient
from postroom.db.statistics import analyze_grown
from postroom.directory.links import changed_since
from postroom.directory.locals import LocalDomains
from postroom.directory.models import Recipient, Refusal
from postroom.directory.resolver import Directory
from postroom.directory.sending_controls import CHANNEL as SWITCH_CHANNEL
from postroom.directory.sending_controls import Switch
from postroom.directory.standing import KeySlots, Platform, slots_of
from postroom.events.feed import Feed
from postroom.events.live import CHANNEL as MAILBOX_CHANNEL
from postroom.events.prune import prune_events
from postroom.events.webhooks import backlog
from postroom.events.webhooks.service import CHANNEL as WEBHOOK_CHANNEL
from postroom.events.webhooks.service import Webhooks
from postroom.inbound.judging import Judge, JudgingRules, Published
from postroom.inbound.parsing import Parser
from postroom.inbound.receive import Receiver
from postroom.inbound.reception import Addressee, Door, Reception
from postroom.inbound.thread_tokens import ThreadTokens, TokenReader
from postroom.mailauth import organisational
from postroom.mailbox.ingest import Ingest
from postroom.mailbox.models import Appended, MailboxRef, changed_mailboxes
from postroom.mailbox.pins import lift_pins
from postroom.mailbox.prune import prune_changes
from postroom.mailbox.rerender import Rerender
from postroom.mailbox.sweep import BlobSweep
from postroom.mailbox.verifications import prune_verifications
from postroom.mailbox.words import WordIndexer
from postroom.net import tls
from postroom.net.guarded_http import GuardedClient
from postroom.outbound.dead_letters import DeadLetters
from postroom.outbound.queue import prune_attempts
from postroom.outbound.relaying import clear_relays
from postroom.outbound.wires import STORED
from postroom.sending import (
    OUTBOUND_CHANNEL,
    Inside,
    MailOut,
    address_bounces_of,
    forwarding_of,
    invitation_mail_of,
    return_paths_of,
    returns_of,
)
from postroom.servers.http.app import create_http
from postroom.servers.http.bodies import max_body
from postroom.servers.http.cursor_ring import CursorRing
from postroom.servers.http.listener import HttpLimits, HttpListener
from postroom.servers.http.security_text import SecurityText
from postroom.servers.http.services import About, HttpServices
from postroom.servers.http.streams import Streams
from postroom.servers.imap import ImapConfig, ImapListener, ImapServices, ImapShared
from postroom.servers.limits import MemoryBudget
from postroom.servers.metrics import Metrics, create_metrics
from postroom.servers.smtp import ListenerLimits
from postroom.smtp_doors import SmtpDoors
from postroom.worker import Periodic, Worker

log = base_log.get("node")

UPKEEP_SECONDS: Final = 1.0
RESTART_SECONDS: Final = 1.0
"""After which background work is begun anew that the database let down."""
CANCEL_SECONDS: Final = 0.5
"""After which a task that goes on is cancelled once more."""
CERTIFICATE_SECONDS: Final = 60.0
"""How often it is looked whether the certificate's files changed."""
MEMORY_BUDGET: Final = 256 * 1024 * 1024
"""Octets of messages that all SMTP and IMAP connections of a process hold together."""
SECRETS_SECONDS: Final = 5.0
"""How often a process says which master keys it holds, and looks for new ones."""
LEAST_CONNECTIONS_PER_IP: Final = 4
METRICS_CONNECTIONS: Final = 16
LINKS_WINDOW: Final = timedelta(hours=1)
KEPT: Final = timedelta(days=30)
"""How long the change log and events are kept."""
LONGEST_KEPT: Final = timedelta(days=365)
"""How long attempts of webhooks are kept at most: it is their tenant's to say."""
KEPT_IN_EMERGENCY: Final = timedelta(days=7)
"""How long events are, while `emergency_prune` is on (J30)."""


Work = Callable[[], Coroutine[None, None, None]]


class Serving(Protocol):
    """What a role's listener can do."""

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> None: ...
    async def drain(self, timeout: float) -> None: ...
    @property
    def port(self) -> int: ...


def judge_of(core: Core, published: Published) -> Judge:
    """What judges mail from outside, as the settings want it; and our own, by our own keys."""
    policy = core.settings.policy
    rules = JudgingRules(
        spf=policy.spf_enabled,
        spf_max_lookups=policy.spf_max_lookups,
        dkim=core.settings.dkim.verify_inbound,
        dmarc=policy.dmarc_enabled,
        tell=policy.add_auth_results,
        trusted_id=policy.trusted_authserv_id,
    )
    return Judge(core.resolver, core.clock, rules, hostname=core.settings.server.hostname, published=published)


def account_of(core: Core, throttle: Throttle) -> Account:
    """What people do with their own accounts, guesses counted with those of mail programs."""
    entrance = Entrance(
        *(core.database, core.clock, core.passwords, core.two_step, core.sessions),
        *(throttle, core.secrets.key_pepper, core.passkeys),
    )
    basis = (core.database, core.ids, core.clock, core.passwords)
    return Account(*basis, entrance, core.sessions, core.two_step, core.app_passwords, core.passkeys)


class Node:
    """`start` brings everything up or raises; `drain` stops it in order: accept no more, finish what is in hand, then
    the work behind. The core is the caller's and stays open. `reload` reads the secrets again. `client` asks URLs of
    others instead of the node's own. `number` says which of several processes it is, from 0.
    """

    def __init__(
        self,
        core: Core,
        *,
        reuse_port: bool = False,
        reload: Callable[[], Secrets] | None = None,
        client: GuardedClient | None = None,
        number: int = 0,
    ) -> None:
        self.core = core
        self._number = number
        self.metrics = Metrics(core.clock, lambda: backlog.look(core.database, core.clock.now()))
        self._client = client
        self._reload = reload or (lambda: core.secrets)
        self._reuse_port = reuse_port
        self._roles = core.settings.server.roles
        self._listeners: dict[str, Serving] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._hints: Listener | None = None
        limits = core.settings.limits
        self.shares = divided(limits, core.settings.server.processes)
        self.budget = MemoryBudget(MEMORY_BUDGET)
        self._context: ssl.SSLContext | None = None
        self._certificate: tls.CertificateFiles | None = None
        self._imap_shared: ImapShared | None = None
        self.parser = Parser()
        self.rerender = Rerender(core.database, core.blobs, self.parser.describe, core.clock)
        self.ingest = Ingest(
            core.database, core.blobs, core.clock, committed=self._committed, broken=lambda: self.failed.set()
        )
        self.indexer = WordIndexer(core.database, core.clock, core.blobs.get_many, quiet_for=self.ingest.quiet_for)
        self.directory = Directory(
            core.database,
            core.clock,
            core.settings.platform_domain,
            security_contact=core.settings.security_contact or None,
        )
        self.local_domains = LocalDomains(core.database, core.clock)
        self.rates = RateLimiter(core.clock)
        self.policy = throttle_policy(core.settings)
        self.standing = Standing(core.database, core.clock, sharing=core.sharing)
        self.sign_in = SignIn(
            *(core.database, core.clock, core.passwords, core.verifier, core.secrets.hash_key, self.policy),
            scram=core.scram,
        )
        self.receiver = Receiver(
            self.ingest,
            self.parser,
            core.clock,
            core.ids,
            hostname=core.settings.server.hostname,
            version=__version__,
            local_mailbox=self._local_mailbox,
            tokens=TokenReader(ThreadTokens(core.signing_keys, core.clock), core.clock, core.secrets.hash_key),
            judge=judge_of(core, lambda name: self.mail_out.keys.published(name)),
            bounces=address_bounces_of(core, self.parser, changed=self._changed),
        )
        self.forwarding = forwarding_of(core, self.parser, self.local_domains.has, lambda: self.mail_out.outlet)
        self.return_paths = return_paths_of(core)
        self.reception = Reception(
            self.directory.resolve, self.receiver, self._doors_of_passages(), onward=self.forwarding.onward
        )
        self.mail_out = MailOut(
            core,
            Inside(
                ingest=self.ingest,
                parser=self.parser,
                reception=self.reception,
                is_local=self.local_domains.has,
                committed=self._committed,
                return_paths=self.return_paths,
            ),
        )
        self.dead_letters = DeadLetters(core.database, core.clock, core.ids, self.mail_out.wake)
        self.feed = Feed(core.database)
        self.webhooks: Webhooks
        """From `start` on."""
        self.failed = asyncio.Event()
        """Set when background work ended by itself, which is a fault: the process is to be replaced."""

    @property
    def ports(self) -> dict[str, int]:
        """The port of each listener that is up."""
        return {name: listener.port for name, listener in self._listeners.items()}

    async def start(self) -> None:
        """Listen. Raises OSError when a port can't be had, TimeoutError when the database stays away."""
        await self.core.master_keys.follow(self._reload)
        if self._client is None:
            self._client = await open_client(self.core)
        self.webhooks = webhooks_of(self.core, self._client, observe=self.metrics.webhooks)
        self._hints = self._listen_for_hints()
        await self._hints.start()
        self.ingest.start()
        await asyncio.to_thread(organisational.prepare)  # 60 ms that nobody's first message has to wait
        self._work(lambda: self.core.live.poll(self.core.database), "live-poll")
        self._work(self._keep_up, "upkeep")
        self._work(self._follow_secrets, "secrets")
        self._work(self.standing.run, "standing")
        if Role.HTTP in self._roles:
            self._work(self.feed.run, "events")
        if Role.WORKER in self._roles:
            self._work(self.indexer.run, "words")
            self._work(self.mail_out.run, "dispatch")
            self._work(self.mail_out.run_notices, "notices")
            self._work(self.webhooks.dispatcher.run, "events")
            self._work(self.webhooks.deliverer.run, "webhooks")
            self._work(Worker(self.core.database, self.core.clock, self._periodic()).run, "periodic")
        for name, host, port, made in self._make_listeners():
            await made.start(host or None, port, reuse_port=self._reuse_port)
            self._listeners[name] = made
            log.info("listening", role=name, port=made.port)
        await self._serve_metrics()
        self._work(self._follow_certificate, "certificate")

    async def drain(self) -> None:
        """Stop within about `server.shutdown_timeout_secs`."""
        timeout = self.core.settings.server.shutdown_timeout_secs
        await asyncio.gather(*(listener.drain(timeout) for listener in self._listeners.values()))
        await self.mail_out.drain(timeout)
        await self.ingest.stop()
        await _cancel(self._tasks)
        if self._client is not None:
            await self._client.aclose()
        await self._let_go_of_keys()
        if self._hints is not None:
            await self._hints.stop()
        self.parser.close()

    async def _serve_metrics(self) -> None:
        """Each process has a port of its own, so that what it counts is read from it alone. Mail does not wait for
        monitoring, which sees that nobody answers.
        """
        where = self.core.settings.metrics.endpoint
        if where is None:
            return
        limits = HttpLimits(max_connections=METRICS_CONNECTIONS)
        made = HttpListener(create_metrics(self.metrics), ids=self.core.ids, limits=limits)
        port = where.port + self._number
        try:
            await made.start(where.host, port)
        except OSError as error:
            log.warning("metrics_not_served", port=port, error=type(error).__name__, errno=error.errno)
            return
        self._listeners["metrics"] = made
        log.info("listening", role="metrics", port=made.port)

    # -- listeners ---------------------------------------------------------------------------------------------------

    def _make_listeners(self) -> Iterator[tuple[str, str, int, Serving]]:
        settings = self.core.settings
        context = self._context = self._tls()
        yield from self._doors(context).listeners()
        if Role.IMAP in self._roles and settings.imap.enabled:
            yield "imap", settings.imap.host, settings.imap.port, self._imap(context, implicit=False)
            if settings.imap.imaps_port:
                yield "imaps", settings.imap.host, settings.imap.imaps_port, self._imap(context, implicit=True)
        if Role.HTTP in self._roles and settings.api.enabled:
            yield "http", settings.api.host, settings.api.port, self._http(None)
            if settings.api.tls_port:
                yield "https", settings.api.host, settings.api.tls_port, self._http(context)

    def _tls(self) -> ssl.SSLContext:
        settings = self.core.settings
        if settings.tls.cert_path is not None and settings.tls.key_path is not None:
            self._certificate = tls.CertificateFiles(settings.tls.cert_path, settings.tls.key_path)
        found = tls.certificate(
            settings.tls.cert_path,
            settings.tls.key_path,
            data_dir=settings.server.data_dir,
            hostnames=tuple(dict.fromkeys((settings.server.hostname, *settings.mx_hosts, settings.api_host))),
            now=self.core.clock.now(),
        )
        return tls.server_context(found, min_version=settings.tls.min_version.value)

    def _doors(self, context: ssl.SSLContext) -> SmtpDoors:
        settings = self.core.settings
        return SmtpDoors(
            self.core,
            self.reception,
            self.mail_out.submission,
            self.sign_in,
            limits=ListenerLimits(
                max_connections=self.shares.max_connections,
                max_connections_per_ip=self.shares.max_connections_per_ip,
                command_rate=self.shares.command_rate,
                command_timeout=min(settings.smtp.command_timeout_secs, settings.limits.idle_timeout_secs),
                data_timeout=settings.smtp.data_timeout_secs,
            ),
            budget=self.budget,
            context=context,
        )

    def _doors_of_passages(self) -> list[Door]:
        if self.return_paths is None:
            return [self.forwarding]

        async def role_mail(address: str, mail_from: str) -> Addressee | Refusal:
            return await self.reception.resolve(address, mail_from)

        returns = returns_of(
            self.core,
            self.return_paths,
            self.parser,
            self.receiver,
            role_mail=role_mail,
            directory=self.directory.resolve,
            changed=self._changed,
        )
        return [returns, self.forwarding]

    def _changed(self, ref: MailboxRef, modseq: int) -> None:
        self.core.live.changed(ref.mailbox_id, modseq)

    async def _local_mailbox(self, address: str) -> Recipient | None:
        """Whose a header address is; nothing is asked about domains that are not ours."""
        if not await self.local_domains.has(address.rpartition("@")[2]):
            return None
        return await self.directory.owner_of(address)

    def _imap(self, context: ssl.SSLContext, *, implicit: bool) -> ImapListener:
        core = self.core
        settings = core.settings
        services = ImapServices(
            database=core.database,
            blobs=core.blobs,
            clock=core.clock,
            ids=core.ids,
            mailboxes=core.mailboxes,
            live=core.live,
            ingest=self.ingest,
            parser=self.parser,
            sign_in=self.sign_in,
            standing=self.standing,
            scram=core.scram.offer() if settings.offer_scram else None,
            sharing=core.sharing,
        )
        config = ImapConfig(
            hostname=settings.server.hostname,
            banner=settings.imap.banner or "Postroom ready",
            plaintext_auth=settings.allow_plaintext_auth,
            idle_timeout=settings.imap.idle_timeout_secs,
            max_idle=settings.imap.max_idle_secs,
            max_append_size=settings.imap.max_append_size,
            message_limit=settings.imap.message_limit,
            max_connections=self.shares.max_connections,
            max_connections_per_ip=self.shares.max_connections_per_ip,
        )
        if self._imap_shared is None:
            self._imap_shared = ImapShared.make(services, config, self.budget)
        return ImapListener(services, config, context, implicit_tls=implicit, shared=self._imap_shared)

    def _http(self, context: ssl.SSLContext | None) -> HttpListener:
        core = self.core
        services = HttpServices(
            database=core.database,
            blobs=core.blobs,
            clock=core.clock,
            ids=core.ids,
            verifier=core.verifier,
            keys=core.keys,
            rates=self.rates,
            tenants=core.tenants,
            policies=core.policies,
            identities=core.identities,
            mailboxes=core.mailboxes,
            live=core.live,
            parser=self.parser,
            cursor_keys=CursorRing(core.signing_keys),
            about=About(__version__, "unknown", core.settings.env),
            store_ready=self._store_ready,
            migrated=self._migrated,
            sending=self.mail_out.sending,
            closing=self.mail_out.closing,
            queue=self.mail_out.queue,
            aliases=core.aliases,
            addresses=core.addresses,
            deletions=core.deletions,
            lists=core.lists,
            max_body=max_body(core.settings.outbound.max_message_bytes),
            signing_keys=core.signing_keys,
            account=account_of(core, self.sign_in.throttle),
            people=core.people,
            members=core.members,
            controls=core.controls,
            dead_letters=self.dead_letters,
            switches=core.switches,
            platform=Platform(
                *(core.database, core.clock, core.controls, core.settings.server.data_dir),
                keys=self._key_slots,
            ),
            partners=core.partners,
            webhooks=self.webhooks.endpoints,
            replays=self.webhooks.replays,
            security=SecurityText.of(core.settings.security_contact, core.settings.api_host),
            tally=self.metrics.live,
            # Each is a connection for as long as it lives: there are to be some for everything else.
            streams=Streams(
                *(core.database, self.feed, self.standing), max_streams=max(self.shares.max_connections // 2, 1)
            ),
        )
        return HttpListener(
            create_http(services),
            ids=core.ids,
            limits=HttpLimits(max_connections=self.shares.max_connections),
            ssl_context=context,
            on_drain=services.stopping.set,
        )

    async def _key_slots(self) -> KeySlots:
        return await slots_of(self.core.master_keys, await asyncio.to_thread(self._reload))

    async def _store_ready(self) -> None:
        async with self.core.database.acquire() as conn:
            store_id = await conn.fetchval("SELECT store_id FROM deployment")
        await self.core.blobs.check_marker(store_id)

    async def _migrated(self) -> None:
        if await Migrator(self.core.database).pending():
            raise DatabaseUnavailable("the schema is older than this program: run postroom migrate")

    # -- work behind -------------------------------------------------------------------------------------------------

    def _listen_for_hints(self) -> Listener:
        listener = Listener(self.core.database)
        listener.add(MAILBOX_CHANNEL, self.core.live.hinted)
        listener.add(DIRECTORY_CHANNEL, lambda key, _: self.directory.invalidate(key))
        listener.add(OUTBOUND_CHANNEL, lambda *_: self.mail_out.hinted())
        listener.add(ACCOUNTS_CHANNEL, lambda *_: self.standing.wake())
        listener.add(POLICY_CHANNEL, lambda key, _: self.core.policies.forget(key))
        listener.add(SWITCH_CHANNEL, lambda *_: self.core.switches.forget())
        for channel in (MAILBOX_CHANNEL, DIRECTORY_CHANNEL, ACCOUNTS_CHANNEL, POLICY_CHANNEL):
            listener.add(channel, lambda *_: self.feed.wake())
        listener.on_gap(self.feed.wake)
        listener.add(WEBHOOK_CHANNEL, self.webhooks.hinted)
        for told in (MAILBOX_CHANNEL, DIRECTORY_CHANNEL, ACCOUNTS_CHANNEL, POLICY_CHANNEL):
            listener.add(told, self.webhooks.happened)  # what is hinted at has its event
        listener.on_gap(self.webhooks.missed)
        listener.on_gap(self.core.switches.forget)
        listener.on_gap(self.core.policies.forget)
        listener.on_gap(self.standing.wake)
        listener.on_gap(self.core.live.wake_all)
        listener.on_gap(self.mail_out.hinted)
        listener.on_gap(lambda: self.directory.invalidate("*"))
        return listener

    def _committed(self, stored: Sequence[Appended]) -> None:
        for mailbox_id, modseq in changed_mailboxes(stored).items():
            self.core.live.changed(mailbox_id, modseq)
        self.indexer.wake()

    async def _keep_up(self) -> None:
        upkeep = Upkeep(self.core.database, self.core.clock, self.rates, self.core.verifier, self.policy)
        while True:
            await upkeep.tick()
            await asyncio.sleep(UPKEEP_SECONDS)

    async def _follow_secrets(self) -> None:
        while True:
            await asyncio.sleep(SECRETS_SECONDS)
            await self.core.master_keys.follow(self._reload)

    async def _let_go_of_keys(self) -> None:
        """A rotation need not wait until it is clear that this process is gone."""
        try:
            await self.core.master_keys.leave()
        except Exception as error:
            if not is_transient(error):
                raise
            log.warning("keys_not_let_go", error=type(error).__name__)

    async def _follow_certificate(self) -> None:
        while True:
            await asyncio.sleep(CERTIFICATE_SECONDS)
            await self.renew_certificate()

    async def renew_certificate(self) -> None:
        """Use the configured certificate's files for connections to come if they changed; a pair that cannot be used
        changes nothing (G1).
        """
        if self._certificate is None or self._context is None:
            return
        renewed = await asyncio.to_thread(self._certificate.renewed)
        if renewed is not None:
            tls.replace_certificate(self._context, renewed)

    def _periodic(self) -> list[Periodic]:
        core = self.core
        blobs = BlobSweep(core.database, core.blobs, core.clock, STORED)
        invitations = invitation_mail_of(core, self.mail_out.outlet, self.parser)

        async def statistics() -> None:
            async with core.database.acquire() as conn:
                await analyze_grown(conn)

        async def changes() -> None:
            await prune_changes(core.database, core.clock.now() - KEPT)

        async def events() -> None:
            is_scarce = await core.switches.is_on(Switch.EMERGENCY_PRUNE)
            await prune_events(core.database, core.clock.now() - (KEPT_IN_EMERGENCY if is_scarce else KEPT))

        async def deliveries() -> None:
            is_scarce = await core.switches.is_on(Switch.EMERGENCY_PRUNE)
            await self.webhooks.upkeep.prune(KEPT_IN_EMERGENCY if is_scarce else LONGEST_KEPT)

        async def verifications() -> None:
            await prune_verifications(core.database, core.clock.now())

        async def sends() -> None:
            await self.mail_out.sending.ledger.prune()

        async def pins() -> None:
            await lift_pins(core.database, core.clock.now())

        async def attempts() -> None:
            await prune_attempts(core.database, core.clock, timedelta(days=core.settings.queue.retention_days))

        async def sessions() -> None:
            await core.sessions.prune()
            await core.two_step.prune()
            await core.passkeys.prune()

        async def relays() -> None:
            await clear_relays(core.database, core.blobs, core.clock)

        async def staging() -> None:
            try:
                await core.blobs.sweep()
            except StorageError as error:
                log.warning("staging_not_swept", reason=error.reason)

        async def links() -> None:
            await refresh_links(core)

        async def activations() -> None:
            await core.addresses.activate_ready()

        async def retirements() -> None:
            await core.addresses.retire_due()

        return [
            Periodic("address_links", timedelta(seconds=30), links),
            Periodic("activate_addresses", timedelta(minutes=1), activations),
            Periodic("retire_addresses", timedelta(minutes=1), retirements),
            Periodic("invitation_mail", timedelta(seconds=5), invitations.run_due),
            Periodic("expire_invitations", timedelta(hours=1), core.members.expire),
            Periodic("dead_letters", timedelta(minutes=1), self.dead_letters.collect),
            Periodic("rerender", timedelta(seconds=10), self.rerender.run_once),
            Periodic("statistics", timedelta(seconds=5), statistics),
            Periodic("prune_changes", timedelta(minutes=10), changes),
            Periodic("prune_events", timedelta(minutes=10), events),
            Periodic("prune_webhook_deliveries", timedelta(minutes=10), deliveries),
            Periodic("resume_webhooks", timedelta(minutes=1), self.webhooks.upkeep.resume),
            Periodic("prune_verifications", timedelta(minutes=10), verifications),
            Periodic("prune_sends", timedelta(minutes=10), sends),
            Periodic("lift_pins", timedelta(minutes=10), pins),
            Periodic("prune_attempts", timedelta(minutes=10), attempts),
            Periodic("prune_sessions", timedelta(minutes=10), sessions),
            Periodic("clear_relays", timedelta(minutes=10), relays),
            Periodic("sweep_staging", timedelta(hours=1), staging),
            Periodic("reseal_secrets", timedelta(minutes=1), core.master_keys.run_once),
            Periodic("sweep_blobs", timedelta(minutes=1), blobs.run_once),
        ]

    def _work(self, work: Work, name: str) -> None:
        task = asyncio.create_task(_lasting(work, name), name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            log.error("background_work_ended", work=task.get_name(), error=type(task.exception()).__name__)
            self.failed.set()


@dataclass(frozen=True, slots=True)
class Shares:
    """What one process may take of the limits that hold for all processes of a machine together (B19)."""

    max_connections: int
    max_connections_per_ip: int
    command_rate: int


def divided(limits: LimitSettings, processes: int) -> Shares:
    """The limits of one process of several. Connections are not spread evenly: one address may always have a few, and
    never more than there may be at all.
    """
    per_ip = max(limits.max_connections_per_ip // processes, LEAST_CONNECTIONS_PER_IP)
    return Shares(
        max_connections=max(limits.max_connections // processes, 1),
        max_connections_per_ip=min(per_ip, limits.max_connections_per_ip),
        command_rate=max(limits.smtp_rate_limit // processes, 1),
    )


async def refresh_links(core: Core) -> None:
    """Let `mail/by-address` follow what the directory changed within the last hour (B5)."""
    async for link in changed_since(core.database, core.clock.now() - LINKS_WINDOW):
        try:
            if link.receives:
                await core.blobs.link_address(link.domain, link.local, link.tenant, link.identity)
            else:
                await core.blobs.unlink_address(link.domain, link.local)
        except StorageError as error:
            log.warning("address_link_failed", reason=error.reason)


async def _lasting(work: Work, name: str) -> None:
    """Work that survives its database: begun anew when a loss of the database ended it."""
    while True:
        try:
            return await work()
        except Exception as error:
            if not is_transient(error):
                raise
            log.warning("background_work_interrupted", work=name, error=type(error).__name__)
        await asyncio.sleep(RESTART_SECONDS)


async def _cancel(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks until they end: before Python 3.12 `wait_for` loses a cancellation that comes with its result."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_SECONDS)
