"""What the connections of an SMTP listener are given: decisions to ask for, limits, and what they share."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from structlog.typing import FilteringBoundLogger

from postroom.base.settings_tree import PlaintextAuth
from postroom.sasl import Proof, Proven
from postroom.servers.limits import CommandRate, ConnectionCounter, MemoryBudget, is_loopback
from postroom.smtp.envelope import Envelope, Refusal, SessionInfo
from postroom.smtp.replies import Reply
from postroom.smtp.sasl import Credentials
from postroom.smtp.server import ServerConfig

if TYPE_CHECKING:
    from postroom.servers.smtp_connection import SmtpConnection

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Networks = Sequence[IPv4Network | IPv6Network]


class SignIn(Protocol):
    """Decides on credentials: the account, which is not `None`, or the reply that refuses it (A4)."""

    async def __call__(self, credentials: Credentials, session: SessionInfo, /) -> object | Refusal: ...


class Prove(Protocol):
    """Decides on a proof (SCRAM): whose it is, or the reply that refuses it."""

    async def __call__(self, proof: Proof, session: SessionInfo, /) -> Proven[object] | Refusal: ...


class CheckSender(Protocol):
    """Decides on the sender that MAIL named, empty for `<>`, else in lower case with the domain in A-labels (A3)."""

    async def __call__(self, address: str, session: SessionInfo, /) -> Refusal | None: ...


class Resolve(Protocol[R_co]):
    """Decides on a recipient. `address` is all lower case, domain in A-labels, detail (`+tag`) still in it."""

    async def __call__(self, address: str, session: SessionInfo, /) -> R_co | Refusal: ...


class Receive(Protocol[R]):
    """Takes a complete message. A reply may be a 250 only once the message is committed (A8).

    Over LMTP it may give one reply for each recipient, in their order; one reply is everybody's.
    """

    async def __call__(self, envelope: Envelope[R], raw: bytes, /) -> Reply | Sequence[Reply]: ...


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Limits of rule A7. Times in seconds, sizes in octets.

    `command_rate` is unproductive commands per address and minute (D21). `resolve_timeout` and `receive_timeout` bound
    our own decisions; the second stays under the ten minutes a client waits after the final dot (RFC 5321 §4.5.3.2.6).
    `lead_timeout` is how long the others wait for one connection when the memory budget is used up; `linger` is how
    long a closed connection's last reply has to arrive. `auth_failures` of one connection end it.
    """

    max_connections: int = 100
    max_connections_per_ip: int = 50
    command_rate: int = 100
    command_timeout: float = 300
    data_timeout: float = 600
    handshake_timeout: float = 30
    resolve_timeout: float = 30
    receive_timeout: float = 540
    lead_timeout: float = 60
    linger: float = 3
    memory_budget: int = 256 * 1024 * 1024
    auth_failures: int = 5


@dataclass(slots=True)
class ConnectionContext(Generic[R]):
    """What the connections of one listener share. Without `sign_in` nobody can sign in; without `check_sender` every
    sender will do; without `allow` every peer may connect.
    """

    config: ServerConfig
    limits: ListenerLimits
    resolve: Resolve[R]
    receive: Receive[R]
    ssl_context: ssl.SSLContext | None
    counter: ConnectionCounter
    rate: CommandRate
    budget: MemoryBudget
    now: Callable[[], datetime]
    new_id: Callable[[], str]
    log: FilteringBoundLogger
    sign_in: SignIn | None = None
    prove: Prove | None = None
    check_sender: CheckSender | None = None
    plaintext_auth: PlaintextAuth = PlaintextAuth.NEVER
    implicit_tls: bool = False
    lmtp: bool = False
    allow: Networks | None = None
    connections: set[SmtpConnection[R]] = field(default_factory=set)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is no connection, once there has been one."""
    draining: bool = False

    def auth_in_clear(self, peer_ip: str) -> bool:
        """Whether this peer may sign in without TLS (D1)."""
        if self.plaintext_auth is PlaintextAuth.LOOPBACK:
            return is_loopback(peer_ip)
        return self.plaintext_auth is PlaintextAuth.ALWAYS

    def admits(self, peer_ip: str) -> bool:
        """Whether this peer may connect at all. A socket in the file system has its own guard."""
        if self.allow is None or not peer_ip:
            return True
        if not self.allow:
            return is_loopback(peer_ip)
        address = ip_address(peer_ip)
        return any(address in network for network in self.allow)
