"""The IMAP listeners of a process, as the settings want them (mail-server D1)."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass

from postroom.accounts.service.sign_in import SignIn
from postroom.accounts.service.standing import Standing
from postroom.app import Core
from postroom.base.settings_tree import Role
from postroom.inbound.parsing import Parser
from postroom.mailbox.ingest import Ingest
from postroom.node.shares import Shares
from postroom.servers.imap import ImapConfig, ImapListener, ImapServices, ImapShared
from postroom.servers.limits import MemoryBudget


@dataclass(frozen=True, slots=True)
class ImapDoors:
    """Makes them. `shares` are this process's; `budget` is everybody's who holds messages in memory."""

    core: Core
    ingest: Ingest
    parser: Parser
    sign_in: SignIn
    standing: Standing
    shares: Shares
    budget: MemoryBudget
    context: ssl.SSLContext

    def listeners(self) -> Iterator[tuple[str, str, int, ImapListener]]:
        """Name, host, port and listener of each that is on."""
        imap = self.core.settings.imap
        if Role.IMAP not in self.core.settings.server.roles or not imap.enabled:
            return
        services, config = self._services(), self._config()
        shared = ImapShared.make(services, config, self.budget)
        yield "imap", imap.host, imap.port, ImapListener(services, config, self.context, shared=shared)
        if imap.imaps_port:
            implicit = ImapListener(services, config, self.context, implicit_tls=True, shared=shared)
            yield "imaps", imap.host, imap.imaps_port, implicit

    def _services(self) -> ImapServices:
        core = self.core
        return ImapServices(
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
            scram=core.scram.offer() if core.settings.offer_scram else None,
            sharing=core.sharing,
        )

    def _config(self) -> ImapConfig:
        settings = self.core.settings
        return ImapConfig(
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
