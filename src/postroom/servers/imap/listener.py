"""The IMAP listener: sockets, and the connections that they bring (mail-server D1)."""

from __future__ import annotations

import asyncio
import ssl

from postroom.mailbox.search import FolderSearch
from postroom.servers.imap.config import ImapConfig, ImapServices
from postroom.servers.imap.connection import ConnectionContext, ImapConnection
from postroom.servers.imap.facts import FactCache
from postroom.servers.imap.handlers import HANDLERS
from postroom.servers.imap.session import SharedState
from postroom.servers.imap.views import ViewCache
from postroom.servers.listening import BACKLOG, Listening
from postroom.servers.smtp_limits import ConnectionCounter


class ImapListener(Listening):
    """Listens, and keeps the connections.

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
    ) -> None:
        if implicit_tls and ssl_context is None:
            raise ValueError("implicit TLS needs a TLS context")
        config = config or ImapConfig()
        self._implicit_tls = implicit_tls
        self._context = ConnectionContext(
            shared=SharedState(
                config=config,
                services=services,
                views=ViewCache(services.mailboxes, services.live, config.spare_views),
                facts=FactCache(services.mailboxes.reads, config.facts_bytes),
                search=FolderSearch(services.database),
                tls_available=ssl_context is not None,
            ),
            ssl_context=ssl_context,
            counter=ConnectionCounter(config.max_connections, config.max_connections_per_ip),
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
        """Open connections."""
        return self._context.counter.total
