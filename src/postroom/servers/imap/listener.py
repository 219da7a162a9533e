"""The IMAP listener: sockets, and the connections that they bring (mail-server D1)."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

from postroom.mailbox.search import FolderSearch
from postroom.servers.imap.binary import BinaryReader
from postroom.servers.imap.config import ImapConfig, ImapServices
from postroom.servers.imap.connection import ConnectionContext, ImapConnection
from postroom.servers.imap.facts import FactCache
from postroom.servers.imap.handlers import HANDLERS
from postroom.servers.imap.shared import SharedState
from postroom.servers.imap.values import ValueCache
from postroom.servers.imap.views import ViewCache
from postroom.servers.limits import ConnectionCounter, MemoryBudget
from postroom.servers.listening import BACKLOG, Listening


@dataclass(frozen=True, slots=True)
class ImapShared:
    """What the IMAP listeners of a process have in common: the limits, and what is known of folders and messages.

    `budget` may be shared with listeners of other protocols.
    """

    views: ViewCache
    facts: FactCache
    values: ValueCache
    search: FolderSearch
    counter: ConnectionCounter
    budget: MemoryBudget

    @classmethod
    def make(cls, services: ImapServices, config: ImapConfig, budget: MemoryBudget | None = None) -> ImapShared:
        facts = FactCache(services.mailboxes.reads, config.facts_bytes)
        return cls(
            views=ViewCache(services.mailboxes, services.live, config.spare_views),
            facts=facts,
            values=ValueCache(facts),
            search=FolderSearch(services.database),
            counter=ConnectionCounter(config.max_connections, config.max_connections_per_ip),
            budget=budget or MemoryBudget(config.memory_budget),
        )


class ImapListener(Listening):
    """Listens, and keeps the connections. Without `shared` it shares nothing with another one.

    With an `ssl_context` STARTTLS is offered, or, with `implicit_tls`, every connection begins with the handshake
    (RFC 8314); ValueError for the second without the first.
    """

    def __init__(
        self,
        services: ImapServices,
        config: ImapConfig | None = None,
        ssl_context: ssl.SSLContext | None = None,
        *,
        implicit_tls: bool = False,
        shared: ImapShared | None = None,
    ) -> None:
        if implicit_tls and ssl_context is None:
            raise ValueError("implicit TLS needs a TLS context")
        config = config or ImapConfig()
        shared = shared or ImapShared.make(services, config)
        self._implicit_tls = implicit_tls
        self._context = ConnectionContext(
            shared=SharedState(
                config=config,
                services=services,
                views=shared.views,
                facts=shared.facts,
                values=shared.values,
                search=shared.search,
                binary=BinaryReader(services.blobs, services.parser),
                tls_available=ssl_context is not None,
            ),
            ssl_context=ssl_context,
            counter=shared.counter,
            budget=shared.budget,
            handlers=HANDLERS,
        )
        super().__init__(self._context, linger=config.linger)

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> None:
        """Listen on `host` (None: every address) and `port` (0: any free one). Raises `OSError`."""
        context, config = self._context, self._context.shared.config
        tls = self._implicit_tls
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ImapConnection(context, secure=tls),
            host,
            port,
            backlog=BACKLOG,
            reuse_port=reuse_port or None,
            ssl=context.ssl_context if tls else None,
            ssl_handshake_timeout=config.handshake_timeout if tls else None,
            ssl_shutdown_timeout=config.linger if tls else None,
        )

    @property
    def connection_count(self) -> int:
        """Open connections of all listeners that share."""
        return self._context.counter.total
