"""The SMTP listeners: what all of them do, and the MX's, for mail from other servers on port 25 (rules A1–A9).

They move bytes and call services: `resolve` decides on each recipient, `receive` takes each complete message, and
where people can sign in, `sign_in` and `check_sender` say who may and as whom.
"""

import asyncio
import ssl
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Generic, TypeVar

from postroom.base import log as base_log
from postroom.base.settings_tree import PlaintextAuth
from postroom.servers.limits import CommandRate, ConnectionCounter, MemoryBudget
from postroom.servers.listening import BACKLOG, Listening
from postroom.servers.smtp_connection import SmtpConnection
from postroom.servers.smtp_context import (
    CheckSender,
    ConnectionContext,
    ListenerLimits,
    Networks,
    Prove,
    Receive,
    Resolve,
    SignIn,
)
from postroom.smtp.machine import Profile
from postroom.smtp.server import ServerConfig

__all__ = [
    "CheckSender",
    "ListenerLimits",
    "MemoryBudget",
    "MxListener",
    "Networks",
    "Prove",
    "Receive",
    "Resolve",
    "SignIn",
    "SmtpListener",
]

R = TypeVar("R")


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _new_connection_id() -> str:
    return str(uuid.uuid4())


class SmtpListener(Listening, Generic[R]):
    """Listens, and keeps the connections.

    With an `ssl_context` STARTTLS is offered, or, with `implicit_tls`, every connection begins with the handshake
    (RFC 8314); ValueError for the second without the first. AUTH is offered exactly when there is a `sign_in`, without
    TLS as far as `plaintext_auth` goes (D1); by SCRAM when there is a `prove` too, and `config` has it. `allow` says
    who may connect: nothing everybody, an empty one this machine alone. `budget` and `counter` may be shared by
    listeners; without them the listener makes its own from `limits`.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        resolve: Resolve[R],
        receive: Receive[R],
        sign_in: SignIn | None = None,
        prove: Prove | None = None,
        check_sender: CheckSender | None = None,
        plaintext_auth: PlaintextAuth = PlaintextAuth.LOOPBACK,
        limits: ListenerLimits | None = None,
        ssl_context: ssl.SSLContext | None = None,
        implicit_tls: bool = False,
        allow: Networks | None = None,
        budget: MemoryBudget | None = None,
        counter: ConnectionCounter | None = None,
        now: Callable[[], datetime] = _utc_now,
        new_id: Callable[[], str] = _new_connection_id,
    ) -> None:
        if implicit_tls and ssl_context is None:
            raise ValueError("implicit TLS needs a TLS context")
        limits = limits or ListenerLimits()
        profile = config.profile
        self._context: ConnectionContext[R] = ConnectionContext(
            config=replace(
                config,
                tls_available=ssl_context is not None,
                auth=sign_in is not None,
                scram=None if prove is None else config.scram,
            ),
            limits=limits,
            resolve=resolve,
            receive=receive,
            ssl_context=ssl_context,
            counter=counter or ConnectionCounter(limits.max_connections, limits.max_connections_per_ip),
            rate=CommandRate(limits.command_rate, lambda: asyncio.get_running_loop().time()),
            budget=budget or MemoryBudget(limits.memory_budget),
            now=now,
            new_id=new_id,
            log=base_log.get("servers.smtp" if profile is Profile.MX else f"servers.{profile.value}"),
            sign_in=sign_in,
            prove=prove,
            check_sender=check_sender,
            plaintext_auth=plaintext_auth,
            implicit_tls=implicit_tls,
            lmtp=profile is Profile.LMTP,
            allow=allow,
        )
        super().__init__(self._context, linger=limits.linger)

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> None:
        """Listen on `host` (`None`: every address) and `port` (0: any free one). Raises `OSError`."""
        context, limits = self._context, self._context.limits
        tls = context.implicit_tls
        self._server = await asyncio.get_running_loop().create_server(
            lambda: SmtpConnection(context),
            host,
            port,
            backlog=BACKLOG,
            reuse_port=reuse_port or None,
            ssl=context.ssl_context if tls else None,
            ssl_handshake_timeout=limits.handshake_timeout if tls else None,
            ssl_shutdown_timeout=limits.linger if tls else None,
        )

    @property
    def connection_count(self) -> int:
        """Open connections, of all listeners that share the counter."""
        return self._context.counter.total


class MxListener(SmtpListener[R]):
    """The MX's listener. With `sign_in` and `check_sender` mail can be submitted here, too (see `submission.at_mx`)."""
