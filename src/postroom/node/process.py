"""One server process: the listeners of its roles and the work behind them (architecture §4)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from postroom import __version__
from postroom.accounts.alerts import Alerts
from postroom.accounts.rates import RateLimiter
from postroom.accounts.service.policies import CHANNEL as POLICY_CHANNEL
from postroom.accounts.service.sign_in import SignIn
from postroom.accounts.service.standing import CHANNEL as ACCOUNTS_CHANNEL
from postroom.accounts.service.standing import Standing
from postroom.accounts.service.upkeep import Upkeep
from postroom.app import DIRECTORY_CHANNEL, Core, open_client, throttle_policy, webhooks_of
from postroom.base import log as base_log
from postroom.base.secrets import Secrets
from postroom.base.settings_tree import Role
from postroom.db import Listener, is_transient
from postroom.directory.locals import LocalDomains
from postroom.directory.models import Recipient, Refusal
from postroom.directory.resolver import Directory
from postroom.directory.sending_controls import CHANNEL as SWITCH_CHANNEL
from postroom.events.feed import Feed
from postroom.events.live import CHANNEL as MAILBOX_CHANNEL
from postroom.events.webhooks import alerts as webhook_alerts
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
from postroom.mailbox.rerender import Rerender
from postroom.mailbox.words import WordIndexer
from postroom.net import tls
from postroom.net.guarded_http import GuardedClient
from postroom.node.background import Background
from postroom.node.http_doors import HttpDoors
from postroom.node.imap_doors import ImapDoors
from postroom.node.periodic import Chores
from postroom.node.shares import divided
from postroom.outbound import dead_letters
from postroom.outbound.dead_letters import DeadLetters
from postroom.sending import (
    OUTBOUND_CHANNEL,
    Inside,
    MailOut,
    address_bounces_of,
    forwarding_of,
    return_paths_of,
    returns_of,
)
from postroom.servers.http.listener import HttpLimits, HttpListener
from postroom.servers.limits import MemoryBudget
from postroom.servers.metrics import Metrics, create_metrics
from postroom.servers.smtp import ListenerLimits
from postroom.smtp_doors import SmtpDoors
from postroom.worker import Worker

log = base_log.get("node")

UPKEEP_SECONDS: Final = 1.0
CERTIFICATE_SECONDS: Final = 60.0
"""How often it is looked whether the certificate's files changed."""
MEMORY_BUDGET: Final = 256 * 1024 * 1024
"""Octets of messages that all SMTP and IMAP connections of a process hold together."""
SECRETS_SECONDS: Final = 5.0
"""How often a process says which master keys it holds, and looks for new ones."""
METRICS_CONNECTIONS: Final = 16


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
        conditions = (*webhook_alerts.CONDITIONS, *dead_letters.CONDITIONS)
        self.alerts = Alerts(core.database, core.clock, core.ids, conditions)
        self.metrics = Metrics(
            core.clock, lambda: backlog.look(core.database, core.clock.now()), firing=self.alerts.counts
        )
        self._client = client
        self._reload = reload or (lambda: core.secrets)
        self._reuse_port = reuse_port
        self._roles = core.settings.server.roles
        self._listeners: dict[str, Serving] = {}
        self._background = Background()
        self._hints: Listener | None = None
        limits = core.settings.limits
        self.shares = divided(limits, core.settings.server.processes)
        self.budget = MemoryBudget(MEMORY_BUDGET)
        self._context: ssl.SSLContext | None = None
        self._certificate: tls.CertificateFiles | None = None
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
            text_bytes=core.text_bytes,
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
        self.failed = self._background.failed

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
        self._background.begin(lambda: self.core.live.poll(self.core.database), "live-poll")
        self._background.begin(self._keep_up, "upkeep")
        self._background.begin(self._follow_secrets, "secrets")
        self._background.begin(self.standing.run, "standing")
        if Role.HTTP in self._roles:
            self._background.begin(self.feed.run, "events")
        if Role.WORKER in self._roles:
            self._background.begin(self.indexer.run, "words")
            self._background.begin(self.mail_out.run, "dispatch")
            self._background.begin(self.mail_out.run_notices, "notices")
            self._background.begin(self.webhooks.dispatcher.run, "events")
            self._background.begin(self.webhooks.deliverer.run, "webhooks")
            self._background.begin(
                Worker(self.core.database, self.core.clock, self._chores().periodic()).run, "periodic"
            )
        for name, host, port, made in self._make_listeners():
            await made.start(host or None, port, reuse_port=self._reuse_port)
            self._listeners[name] = made
            log.info("listening", role=name, port=made.port)
        await self._serve_metrics()
        self._background.begin(self._follow_certificate, "certificate")

    async def drain(self) -> None:
        """Stop within about `server.shutdown_timeout_secs`."""
        timeout = self.core.settings.server.shutdown_timeout_secs
        await asyncio.gather(*(listener.drain(timeout) for listener in self._listeners.values()))
        await self.mail_out.drain(timeout)
        await self.ingest.stop()
        await self._background.cancel()
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
        context = self._context = self._tls()
        yield from self._smtp_doors(context).listeners()
        yield from self._imap_doors(context).listeners()
        yield from self._http_doors(context).listeners()

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

    def _smtp_doors(self, context: ssl.SSLContext) -> SmtpDoors:
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

    def _imap_doors(self, context: ssl.SSLContext) -> ImapDoors:
        return ImapDoors(
            core=self.core,
            ingest=self.ingest,
            parser=self.parser,
            sign_in=self.sign_in,
            standing=self.standing,
            shares=self.shares,
            budget=self.budget,
            context=context,
        )

    def _http_doors(self, context: ssl.SSLContext) -> HttpDoors:
        return HttpDoors(
            core=self.core,
            parser=self.parser,
            rates=self.rates,
            throttle=self.sign_in.throttle,
            standing=self.standing,
            mail_out=self.mail_out,
            dead_letters=self.dead_letters,
            webhooks=self.webhooks,
            tally=self.metrics.live,
            feed=self.feed,
            shares=self.shares,
            context=context,
            reload=self._reload,
        )

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

    def _chores(self) -> Chores:
        return Chores(
            core=self.core,
            parser=self.parser,
            mail_out=self.mail_out,
            dead_letters=self.dead_letters,
            rerender=self.rerender,
            webhooks=self.webhooks,
            alerts=self.alerts,
        )
