"""The HTTP listeners of a process, as the settings want them, and what they ask the departments for."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from postroom import __version__
from postroom.accounts.rates import RateLimiter
from postroom.accounts.service.account import Account
from postroom.accounts.service.entrance import Entrance
from postroom.accounts.service.standing import Standing
from postroom.accounts.service.throttle import Throttle
from postroom.app import Core
from postroom.base.secrets import Secrets
from postroom.base.settings_tree import Role
from postroom.db import DatabaseUnavailable, Migrator
from postroom.directory.standing import KeySlots, Platform, slots_of
from postroom.events.feed import Feed
from postroom.events.webhooks.service import Webhooks
from postroom.inbound.parsing import Parser
from postroom.node.shares import Shares
from postroom.outbound.dead_letters import DeadLetters
from postroom.sending import MailOut
from postroom.servers.http.app import create_http
from postroom.servers.http.bodies import max_body
from postroom.servers.http.cursor_ring import CursorRing
from postroom.servers.http.listener import HttpLimits, HttpListener
from postroom.servers.http.security_text import SecurityText
from postroom.servers.http.services import About, HttpServices
from postroom.servers.http.streams import Streams
from postroom.servers.http.tally import Tally


def account_of(core: Core, throttle: Throttle) -> Account:
    """What people do with their own accounts, guesses counted with those of mail programs."""
    entrance = Entrance(
        *(core.database, core.clock, core.passwords, core.two_step, core.sessions),
        *(throttle, core.secrets.key_pepper, core.passkeys),
    )
    basis = (core.database, core.ids, core.clock, core.passwords)
    return Account(*basis, entrance, core.sessions, core.two_step, core.app_passwords, core.passkeys)


@dataclass(frozen=True, slots=True)
class HttpDoors:
    """Makes them. `shares` are this process's; `throttle` counts guesses at passwords; `reload` reads the secrets
    again.
    """

    core: Core
    parser: Parser
    rates: RateLimiter
    throttle: Throttle
    standing: Standing
    mail_out: MailOut
    dead_letters: DeadLetters
    webhooks: Webhooks
    feed: Feed
    tally: Tally
    shares: Shares
    context: ssl.SSLContext
    reload: Callable[[], Secrets]

    def listeners(self) -> Iterator[tuple[str, str, int, HttpListener]]:
        """Name, host, port and listener of each that is on."""
        api = self.core.settings.api
        if Role.HTTP not in self.core.settings.server.roles or not api.enabled:
            return
        yield "http", api.host, api.port, self._listener(None)
        if api.tls_port:
            yield "https", api.host, api.tls_port, self._listener(self.context)

    def _listener(self, context: ssl.SSLContext | None) -> HttpListener:
        services = self._services()
        return HttpListener(
            create_http(services),
            ids=self.core.ids,
            limits=HttpLimits(max_connections=self.shares.max_connections),
            ssl_context=context,
            on_drain=services.stopping.set,
        )

    def _services(self) -> HttpServices:
        core = self.core
        return HttpServices(
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
            account=account_of(core, self.throttle),
            people=core.people,
            members=core.members,
            controls=core.controls,
            dead_letters=self.dead_letters,
            switches=core.switches,
            platform=self._platform(),
            partners=core.partners,
            webhooks=self.webhooks.endpoints,
            replays=self.webhooks.replays,
            security=SecurityText.of(core.settings.security_contact, core.settings.api_host),
            tally=self.tally,
            streams=self._streams(),
        )

    def _platform(self) -> Platform:
        core = self.core
        return Platform(
            *(core.database, core.clock, core.controls, core.settings.server.data_dir),
            keys=self._key_slots,
        )

    def _streams(self) -> Streams:
        """Each is a connection for as long as it lives: there are to be some for everything else."""
        at_most = max(self.shares.max_connections // 2, 1)
        return Streams(*(self.core.database, self.feed, self.standing), max_streams=at_most)

    async def _key_slots(self) -> KeySlots:
        return await slots_of(self.core.master_keys, await asyncio.to_thread(self.reload))

    async def _store_ready(self) -> None:
        async with self.core.database.acquire() as conn:
            store_id = await conn.fetchval("SELECT store_id FROM deployment")
        await self.core.blobs.check_marker(store_id)

    async def _migrated(self) -> None:
        if await Migrator(self.core.database).pending():
            raise DatabaseUnavailable("the schema is older than this program: run postroom migrate")
