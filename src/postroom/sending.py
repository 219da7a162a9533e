"""Composition of all that leaves: acceptance, the services behind the doors, the dispatcher, its transports, notices.

One per process. What a role does not need is built all the same: it holds nothing but memory until it is used.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from postroom import __version__
from postroom.accounts.models import Mode
from postroom.app import Core, own_addresses_of
from postroom.base import log as base_log
from postroom.base.settings_tree import RelayTls, Settings, UnknownOutcome
from postroom.directory.locals import LocalDomains
from postroom.directory.models import Identity
from postroom.inbound.parsing import Parser
from postroom.inbound.receive import Receiver
from postroom.inbound.reception import Find, Reception
from postroom.inbound.thread_tokens import ThreadTokens
from postroom.mailauth.dkim_key import Algorithm
from postroom.mailbox.ingest import Ingest
from postroom.mailbox.models import Appended, MailboxRef
from postroom.net.mx import RoutePolicy
from postroom.net.public_address import is_public
from postroom.outbound.accept import Acceptance, Also
from postroom.outbound.address_bounces import AddressBounces
from postroom.outbound.allowance import SubmissionLimits
from postroom.outbound.bounces import BounceWriter, Elsewhere
from postroom.outbound.breakers import Breakers
from postroom.outbound.closing import Closing
from postroom.outbound.dispatch import Dispatcher
from postroom.outbound.fallback import Fallback
from postroom.outbound.file_links import FileLinks
from postroom.outbound.forwarding import Forwarding
from postroom.outbound.invitation_mail import DISPLAY_NAME, LOCAL_PART, InvitationMail
from postroom.outbound.lanes import DispatchLimits
from postroom.outbound.models import Accepted, Outgoing, RouteKind
from postroom.outbound.outcomes import Changed, Outcomes
from postroom.outbound.queue import MailQueue
from postroom.outbound.return_paths import ReturnPaths, own_sender
from postroom.outbound.returns import Resolve, Returns
from postroom.outbound.routes import RelayUse, Routes
from postroom.outbound.rules import RetryPolicy
from postroom.outbound.send_rules import SendRules
from postroom.outbound.settling import Telling
from postroom.outbound.signing import DkimKeys
from postroom.outbound.submission import Submission
from postroom.outbound.submit import Sending
from postroom.outbound.transports.base import Offload, Transport
from postroom.outbound.transports.direct import Direct, DirectConfig
from postroom.outbound.transports.link import Timeouts, TlsUse
from postroom.outbound.transports.local import Local
from postroom.outbound.transports.pool import Links
from postroom.outbound.transports.simulator import Simulator
from postroom.outbound.transports.smarthost import Smarthost, SmarthostConfig
from postroom.outbound.unsent import DIRECTORY, Unsent, running_since
from postroom.servers.http.rest import shapes
from postroom.smtp.schedule import Route

log = base_log.get("outbound")

OUTBOUND_CHANNEL: Final = "postroom_outbound"
LOCAL_RESOLVER: Final = "127.0.0.1"
"""Asked when neither settings nor system name one, as the C library does."""

RELAY_TLS: Final = {RelayTls.STARTTLS: TlsUse.STARTTLS, RelayTls.IMPLICIT: TlsUse.IMPLICIT, RelayTls.NONE: TlsUse.NONE}

IsLocal = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Inside:
    """What the node has of receiving, for mail that stays here, and for what comes back of mail that left."""

    ingest: Ingest
    parser: Parser
    reception: Reception
    is_local: IsLocal
    committed: Callable[[Sequence[Appended]], None]
    return_paths: ReturnPaths | None = None


@dataclass(frozen=True, slots=True)
class Outlet:
    """What accepts mail that is to leave: all that a command needs, which hands nothing over itself. `committed` is
    told of what was stored, `wake` that something is due. `rules` hold for everything that is sent, by whatever door.
    """

    keys: DkimKeys
    routes: Routes
    acceptance: Acceptance
    sending: Sending
    rules: SendRules

    @classmethod
    def of(
        cls,
        core: Core,
        parser: Parser,
        is_local: IsLocal,
        *,
        committed: Callable[[Sequence[Appended]], None],
        wake: Callable[[], None],
    ) -> Outlet:
        settings = core.settings
        keys = dkim_keys_of(core, offload=parser.run)
        relay = RelayUse(bool(settings.queue.relay_host), frozenset(settings.queue.relay_from_domains))
        routes = Routes(_with_host(is_local, settings.queue.return_path_host), relay)
        acceptance = Acceptance(core.database, core.blobs, core.clock, core.ids, changed=committed, wake=wake)
        rules = SendRules(
            max_message_bytes=settings.outbound.max_message_bytes,
            marketing_direct=settings.outbound.marketing_direct,
        ).by_default(core.policies.stance.defaults)
        sending = Sending(
            core.database,
            core.blobs,
            core.clock,
            core.ids,
            queries=core.mailboxes.queries,
            parser=parser,
            acceptance=acceptance,
            sign=keys.sign,
            mint=ThreadTokens(core.signing_keys, core.clock).mint,
            route=routes.route,
            resource=shapes.message,
            rules=rules,
            hash_key=core.secrets.hash_key,
            limits=_limits(settings),
            links=FileLinks(core.signing_keys, core.ids, core.clock, api_host=settings.api_host),
        )
        return cls(keys, routes, acceptance, sending, rules)


def dkim_keys_of(core: Core, *, offload: Offload | None = None) -> DkimKeys:
    """The keys that sign, as the settings want them."""
    dkim = core.settings.dkim
    return DkimKeys(
        core.database,
        core.keyring,
        core.clock,
        offload=offload,
        algorithm=Algorithm(dkim.algorithm.value),
        second=dkim.second_signature,
    )


def _limits(settings: Settings) -> SubmissionLimits:
    return SubmissionLimits(settings.limits.submission_rate_limit, settings.limits.daily_send_limit)


def _with_host(is_local: IsLocal, return_path_host: str) -> IsLocal:
    """A bounce of ours that goes to one of our own return paths need not leave."""

    async def is_ours(domain: str) -> bool:
        return domain == return_path_host or await is_local(domain)

    return is_ours if return_path_host else is_local


def return_paths_of(core: Core) -> ReturnPaths | None:
    """The signed envelope senders; None unless they are set."""
    host = core.settings.queue.return_path_host
    if not host:
        return None
    return ReturnPaths(core.signing_keys, host)


def returns_of(
    core: Core,
    paths: ReturnPaths,
    parser: Parser,
    receiver: Receiver,
    *,
    role_mail: Resolve,
    directory: Find,
    changed: Changed,
) -> Returns:
    """The door of what comes back to them."""
    return Returns(
        core.database,
        core.blobs,
        parser,
        receiver,
        core.clock,
        core.ids,
        paths=paths,
        role_mail=role_mail,
        directory=directory,
        platform_domain=core.settings.platform_domain,
        changed=changed,
    )


def address_bounces_of(core: Core, parser: Parser, *, changed: Changed) -> AddressBounces:
    """What sorts the bounces that come to addresses."""
    return AddressBounces(
        core.database,
        core.blobs,
        parser,
        core.clock,
        core.ids,
        relay=core.settings.queue.relay_host,
        changed=changed,
    )


@contextmanager
def open_outlet(core: Core) -> Iterator[Outlet]:
    """For a process that is no server: the servers are told of what it stores, and hand it over."""

    def committed(stored: Sequence[Appended]) -> None:
        for one in stored:
            core.live.changed(one.mailbox.mailbox_id, one.modseq)

    parser = Parser()
    try:
        is_local = LocalDomains(core.database, core.clock).has
        yield Outlet.of(core, parser, is_local, committed=committed, wake=lambda: tell_workers(core))
    finally:
        parser.close()


def forwarding_of(core: Core, parser: Parser, is_local: IsLocal, outlet: Callable[[], Outlet]) -> Forwarding:
    """The door of mail that goes on. `outlet` is asked when there is some: it is made after the doors."""

    async def accept(outgoing: Outgoing, *, also: Also) -> Accepted:
        return await outlet().acceptance.accept(outgoing, also=also)

    async def route(address: str, *, from_domain: str, mode: Mode) -> RouteKind:
        return await outlet().routes.route(address, from_domain=from_domain, mode=mode)

    return Forwarding(
        core.database,
        parser,
        core.clock,
        core.ids,
        hostname=core.settings.server.hostname,
        version=__version__,
        keys=core.signing_keys,
        relays=core.relays,
        is_local=is_local,
        accept=accept,
        route=route,
    )


def _open_unsent(core: Core) -> Unsent | None:
    """None where marks cannot be kept: nothing is begun ahead of its turn then."""
    boot = running_since()
    try:
        if boot is not None:
            return Unsent.open(core.settings.server.data_dir / DIRECTORY, core.ids.ulid(), boot)
    except OSError as error:
        log.warning("unsent_not_kept", error=type(error).__name__)
    return None


def invitation_mail_of(core: Core, outlet: Outlet, parser: Parser) -> InvitationMail:
    """What writes the mail about invitations."""
    platform = core.settings.platform_domain

    async def sender() -> Identity:
        tenant = await core.tenants.default()
        return await core.identities.create_system(tenant.id, LOCAL_PART, DISPLAY_NAME, f"postmaster@{platform}")

    async def route(address: str) -> RouteKind:
        return await outlet.routes.route(address, from_domain=platform, mode=Mode.LIVE)

    return InvitationMail(
        core.database,
        core.clock,
        core.members,
        sender=sender,
        accept=outlet.acceptance.accept,
        describe=parser.describe,
        sign=outlet.keys.sign,
        route=route,
        api_host=core.settings.api_host,
    )


def tell_workers(core: Core) -> None:
    """Something is due: the workers of all processes need not wait until they look next."""
    core.notifier.hint(OUTBOUND_CHANNEL, "due")


class MailOut:
    """`start` the work in a worker; `drain` before the ingest stops. `hinted` is for the channel of other processes."""

    def __init__(self, core: Core, inside: Inside) -> None:
        self._core = core
        self._inside = inside
        settings = core.settings
        outlet = Outlet.of(core, inside.parser, inside.is_local, committed=inside.committed, wake=self.wake)
        self.outlet = outlet
        self.keys, self.routes, self.acceptance = outlet.keys, outlet.routes, outlet.acceptance
        self.sending = outlet.sending
        self.submission = Submission(
            core.database,
            self.acceptance,
            inside.parser,
            core.clock,
            core.ids,
            hostname=settings.server.hostname,
            version=__version__,
            sign=self.keys.sign,
            route=self._route_submitted,
            blobs=core.blobs,
            hash_key=core.secrets.hash_key,
            limits=_limits(settings),
            rules=outlet.rules,
            hide_client_ip=settings.smtp.hide_client_ip,
        )
        self.closing = Closing(
            core.database, core.blobs, core.clock, core.ids, queries=core.mailboxes.queries, changed=self._changed
        )
        self.queue = MailQueue(
            core.database,
            core.blobs,
            core.clock,
            core.ids,
            sign=self.keys.sign,
            changed=self._changed,
            wake=self.wake,
            keep=timedelta(days=settings.queue.retention_days),
        )
        self._retries = RetryPolicy(settings.queue.retry_schedule_secs, settings.queue.max_attempts)
        self._dispatcher: Dispatcher | None = None
        self._notices: BounceWriter | None = None

    def wake(self) -> None:
        """Something was accepted: tell the workers of all processes."""
        self.hinted()
        tell_workers(self._core)

    def hinted(self) -> None:
        """Another process accepted something."""
        if self._dispatcher is not None:
            self._dispatcher.wake()

    async def run(self) -> None:
        """The worker's part: hand over what is due, until cancelled; drained before, it only waits for that."""
        if self._dispatcher is None:
            self._dispatcher = self._make_dispatcher()
        await self._dispatcher.run()
        await asyncio.Event().wait()

    async def run_notices(self) -> None:
        """The worker's part: write the notices that are due, until cancelled."""
        await self._bounce_writer().run()

    async def drain(self, timeout: float) -> None:
        """Finish what is under way, within `timeout` seconds."""
        if self._dispatcher is not None:
            await self._dispatcher.drain(timeout)

    # -- parts ---------------------------------------------------------------------------------------------------------

    async def _route_submitted(self, address: str, sender_domain: str) -> RouteKind:
        return await self.routes.route(address, from_domain=sender_domain, mode=Mode.LIVE)

    def _changed(self, ref: MailboxRef, modseq: int) -> None:
        self._core.live.changed(ref.mailbox_id, modseq)

    def _bounce_writer(self) -> BounceWriter:
        if self._notices is None:
            core, inside = self._core, self._inside

            async def elsewhere(address: str) -> RouteKind:
                return await self.routes.route(address, from_domain=core.settings.platform_domain, mode=Mode.LIVE)

            self._notices = BounceWriter(
                core.database,
                core.blobs,
                core.clock,
                core.ids,
                hostname=core.settings.server.hostname,
                deliver=inside.ingest.deliver,
                describe=inside.parser.describe,
                offload=inside.parser.run,
                elsewhere=Elsewhere(self.acceptance.accept, elsewhere),
                policy=self._retries,
                text_bytes=core.text_bytes,
            )
        return self._notices

    def _noticed(self) -> None:
        if self._notices is not None:
            self._notices.wake()

    def _make_dispatcher(self) -> Dispatcher:
        core, settings = self._core, self._core.settings
        delay = settings.queue.delay_notice_secs
        outcomes = Outcomes(
            core.database,
            core.blobs,
            core.clock,
            core.ids,
            random=random.random,
            changed=self._changed,
            noticed=self._noticed,
            policy=self._retries,
            retry_unknown=settings.queue.unknown_outcome is UnknownOutcome.RETRY,
            telling=Telling(settings.queue.bounce_on_failure, timedelta(seconds=delay) if delay else None),
        )
        fallback = Fallback(
            core.database,
            core.blobs,
            core.clock,
            core.ids,
            sign=self.keys.sign,
            mint=ThreadTokens(core.signing_keys, core.clock).mint,
            route=self.routes.route,
            offload=self._inside.parser.run,
        )
        unsent = _open_unsent(core) if settings.queue.begin_ahead else None
        return Dispatcher(
            core.database,
            core.blobs,
            core.clock,
            outcomes,
            self._transports(),
            sign=self.keys.sign,
            offload=self._inside.parser.run,
            marketing_direct=settings.outbound.marketing_direct,
            falls_back=core.policies.stance.defaults.domain_fallback,
            fall_back=fallback.switch,
            return_path=own_sender if self._inside.return_paths is None else self._inside.return_paths.of,
            limits=DispatchLimits(
                per_destination=settings.queue.max_connections_per_host,
                poll=settings.queue.poll_interval_secs,
                begin_ahead=0 if unsent is None else settings.queue.begin_ahead,
            ),
            unsent=unsent,
        )

    def _transports(self) -> dict[RouteKind, Transport]:
        core, settings, inside = self._core, self._core.settings, self._inside
        queue, hostname = settings.queue, settings.server.hostname
        breakers = Breakers(core.database, core.clock)
        timeouts = Timeouts.of(Route.DIRECT)
        transports: dict[RouteKind, Transport] = {
            RouteKind.DIRECT: Direct(
                DirectConfig(
                    hostname,
                    policy=RoutePolicy(
                        own_names=frozenset({hostname, *settings.mx_hosts}),
                        # Private ones are refused anyway; that they are ours, too, is no reason to end the list.
                        own_addresses=frozenset(filter(is_public, own_addresses_of(core)())),
                        allow_private=queue.allow_private_targets,
                    ),
                    timeouts=Timeouts(
                        connect=queue.connect_timeout_secs,
                        command=timeouts.command,
                        final=timeouts.final,
                        attempt=queue.delivery_timeout_secs,
                    ),
                ),
                core.resolver,
                breakers,
                core.clock,
                random=random.random,
                new_id=lambda _: f"direct:{core.ids.ulid()}",
                links=Links(queue.max_connections_per_host),
            ),
            RouteKind.LOCAL: Local(
                inside.reception.resolve,
                inside.reception.receive,
                core.clock,
                hostname=hostname,
                new_id=lambda _: f"local:{core.ids.ulid()}",
            ),
            RouteKind.SIMULATOR: Simulator(core.clock, new_id=lambda _: f"test-{core.ids.ulid()}"),
        }
        if queue.relay_host:
            config = SmarthostConfig(
                hostname,
                queue.relay_host,
                queue.relay_port,
                tls=RELAY_TLS[queue.relay_tls],
                username=queue.relay_username,
                password=queue.relay_password,
            )
            transports[RouteKind.SMARTHOST] = Smarthost(config, breakers, core.clock)
        return transports


__all__ = [
    "OUTBOUND_CHANNEL",
    "Inside",
    "MailOut",
    "Outlet",
    "address_bounces_of",
    "dkim_keys_of",
    "forwarding_of",
    "open_outlet",
    "return_paths_of",
    "returns_of",
]
