"""What the routes need of the rest of the program. The composition root fills it; the routes see nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from postroom.accounts.rates import RateLimiter
from postroom.accounts.service.account import Account
from postroom.accounts.service.keys import Keys, KeyVerifier
from postroom.accounts.service.members import Members
from postroom.accounts.service.partners import Partners
from postroom.accounts.service.people import People
from postroom.accounts.service.policies import Policies
from postroom.accounts.service.tenants import Tenants
from postroom.accounts.signing_keys import SigningKeys
from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.base.settings_tree import Environment
from postroom.blobs import BlobStore
from postroom.db import Database
from postroom.directory import Addresses, Aliases, Deletions, Identities, Lists
from postroom.directory.sending_controls import SendingControls, Switches
from postroom.directory.standing import Platform
from postroom.events.live import LiveHub
from postroom.events.webhooks.endpoints import Endpoints
from postroom.events.webhooks.replay import Replays
from postroom.inbound.parsing import Parser
from postroom.mailbox.service import Mailboxes
from postroom.outbound.closing import Closing
from postroom.outbound.dead_letters import DeadLetters
from postroom.outbound.queue import MailQueue
from postroom.outbound.submit import Sending
from postroom.servers.http.bodies import MAX_BODY
from postroom.servers.http.cursor_ring import CursorSource
from postroom.servers.http.security_text import SecurityText
from postroom.servers.http.tally import NoTally, Tally

if TYPE_CHECKING:
    from postroom.servers.http.streams import Streams  # which is made of these

Probe = Callable[[], Coroutine[Any, Any, None]]
"""Raises when what it looks at cannot be used."""


class ProxyRule(Protocol):
    """Who the client is, behind the proxies that are trusted."""

    def __call__(self, peer: str, forwarded: str | None, /) -> str: ...


def direct_peer(peer: str, forwarded: str | None, /) -> str:
    """No proxy is trusted: the client is whoever is connected."""
    return peer


@dataclass(frozen=True, slots=True)
class About:
    """What `/health` says of the program. `commit` is a short build hash, or `unknown`."""

    version: str
    commit: str
    env: Environment


@dataclass(frozen=True, slots=True)
class HttpServices:
    """One per process. `client_hash` makes a pseudonym of a network, for counting and never for logs."""

    database: Database
    blobs: BlobStore
    clock: Clock
    ids: IdGenerator
    verifier: KeyVerifier
    keys: Keys
    rates: RateLimiter
    tenants: Tenants
    policies: Policies
    identities: Identities
    mailboxes: Mailboxes
    live: LiveHub
    parser: Parser
    cursor_keys: CursorSource
    about: About
    store_ready: Probe
    """The blob store answers and is the one of this database."""
    migrated: Probe
    """The database has the schema of this program."""
    sending: Sending | None = None
    """Without it, as without `closing`, there are no routes that send."""
    closing: Closing | None = None
    queue: MailQueue | None = None
    """Without it there are no routes of the operator's queue."""
    aliases: Aliases | None = None
    """Without it there are no routes of aliases."""
    addresses: Addresses | None = None
    """Without it there are no routes of an identity's addresses."""
    deletions: Deletions | None = None
    """Without it there is no route that deletes identities."""
    lists: Lists | None = None
    """Without it there are no routes of allow and block lists."""
    max_body: int = MAX_BODY
    """Octets of a request's body."""
    signing_keys: SigningKeys | None = None
    """Without it there is no route that rotates them."""
    account: Account | None = None
    """Without it people have no sessions, and their accounts no routes."""
    people: People | None = None
    """Without it there are no routes of a tenant's people."""
    members: Members | None = None
    """Without it there are no routes of a tenant's members, and nobody accepts an invitation."""
    controls: SendingControls | None = None
    """Without it no switch is turned over HTTP."""
    switches: Switches | None = None
    """Without it no switch refuses a request."""
    platform: Platform | None = None
    """Without it nobody is told how the deployment stands."""
    dead_letters: DeadLetters | None = None
    """Without it there are no routes of work that was given up."""
    partners: Partners | None = None
    """Without it there are no routes of partners."""
    webhooks: Endpoints | None = None
    """Without it, as without `replays`, there are no routes of webhooks."""
    replays: Replays | None = None
    security: SecurityText | None = None
    """Without it nobody is told where faults of security are reported."""
    streams: Streams | None = None
    """Without it nobody lists or follows events."""
    tally: Tally = field(default_factory=NoTally)
    """Counts connections that wait for something to happen."""
    client: ProxyRule = direct_peer
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the listener drains: long polls end."""
