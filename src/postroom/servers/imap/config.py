"""What the composition root gives the IMAP listener: its limits, and the services it calls (mail-server D1, H2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from postroom.accounts.models import Principal
from postroom.accounts.service.sharing import Sharing
from postroom.accounts.service.sign_in import SignInError
from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.base.settings_tree import PlaintextAuth
from postroom.blobs import BlobStore
from postroom.db import Database
from postroom.events.live import LiveHub
from postroom.inbound.parsing import Parser
from postroom.mailbox.ingest import Ingest
from postroom.mailbox.service import Mailboxes
from postroom.sasl import Offer, Proof, Proven

MIB = 1024 * 1024


class SignIn(Protocol):
    """Signs people and agents in (`accounts.SignIn`)."""

    async def sign_in(self, address: str, password: str, remote: str, /) -> Principal | SignInError:
        """Open the mailbox of an address for whoever has the password; `remote` is the client's IP address."""
        ...

    async def prove(self, proof: Proof, remote: str, /) -> Proven[Principal] | SignInError:
        """Open the mailbox of a name for whoever has proved to have an application password (SCRAM)."""
        ...

    async def stands(self, principal: Principal, /) -> bool:
        """Whether who signed in would still be let in with what they gave."""
        ...


class Standing(Protocol):
    """Knows when who signed in would not be let in any more (`accounts.Standing`)."""

    def watch(self, principal: Principal, ended: Callable[[], None], /) -> Callable[[], None]:
        """Have `ended` called then, once. Returns what ends the watch."""
        ...


@dataclass(frozen=True, slots=True)
class ImapServices:
    """The departments that IMAP speaks for."""

    database: Database
    sign_in: SignIn
    mailboxes: Mailboxes
    ingest: Ingest
    parser: Parser
    blobs: BlobStore
    live: LiveHub
    clock: Clock
    ids: IdGenerator
    sharing: Sharing
    standing: Standing | None = None
    """Without it sessions outlive what they were opened with."""
    scram: Offer | None = None
    """What AUTHENTICATE by SCRAM begins with; without it there is none."""


@dataclass(frozen=True, slots=True)
class ImapConfig:
    """Limits and words of the listener. Times in seconds, sizes in octets.

    `login_timeout` is how long a client may stay without signing in, however busy it is; `write_timeout` how long it
    may leave our answers unread; `linger` how long a closed connection's last line has to arrive; `lead_timeout` how
    long the others wait for one connection's message when the memory budget is used up; `message_limit` how many
    messages one command works on (RFC 9738).
    """

    hostname: str = "localhost"
    banner: str = "Postroom ready"
    plaintext_auth: PlaintextAuth = PlaintextAuth.LOOPBACK
    max_connections: int = 1000
    max_connections_per_ip: int = 50
    login_timeout: float = 120.0
    idle_timeout: float = 1800.0
    max_idle: float = 1800.0
    write_timeout: float = 300.0
    handshake_timeout: float = 30.0
    linger: float = 3.0
    lead_timeout: float = 60.0
    max_append_size: int = 25 * MIB
    message_limit: int = 1_000_000
    max_bad_commands: int = 50
    max_login_failures: int = 5
    facts_bytes: int = 32 * MIB
    spare_views: int = 64
    memory_budget: int = 256 * MIB
