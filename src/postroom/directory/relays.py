"""Who owns what a tenant passes on: an identity of its own without an address, made when it is first needed.

Nobody sees it, and nobody can: it is in no list, no key or grant is given for it, and its mailbox is empty again soon.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database
from postroom.directory.models import IdentityKind, MailboxFactory, NewMailbox

USERNAME: Final = "*relay*"
"""No other username begins so."""
MAX_KNOWN: Final = 10_000

_GET: Final = "SELECT id, public_id FROM identities WHERE tenant_id = $1 AND kind = 'relay'"
# Whoever comes second waits for the first one's transaction. No index is named: the user name is taken at the same
# moment, and its index may be the one that says so.
_INSERT: Final = """
INSERT INTO identities (tenant_id, public_id, kind, username, username_fold, display_name, is_system, created_at,
  updated_at)
VALUES ($1, $2, 'relay', $3, $3, 'Relay', true, $4, $4)
ON CONFLICT DO NOTHING RETURNING id
"""


@dataclass(frozen=True, slots=True)
class Relay:
    """A tenant's relay: the key of identity and mailbox, and the identity's public id."""

    mailbox_id: int
    identity_public_id: str


class Relays:
    """Finds them, for one process. `mailbox_factory` makes the rows of the mailbox."""

    def __init__(self, db: Database, ids: IdGenerator, clock: Clock, mailbox_factory: MailboxFactory) -> None:
        self._db, self._ids, self._clock = db, ids, clock
        self._mailbox_factory = mailbox_factory
        self._known: OrderedDict[int, Relay] = OrderedDict()

    async def of(self, tenant_id: int, tenant_public_id: str) -> Relay:
        """The tenant's relay, made in a transaction of its own if there is none. The tenant exists. Raises what the
        database raises."""
        known = self._known.get(tenant_id)
        if known is None:
            async with self._db.transaction() as conn:
                known = await self._ensure(conn, tenant_id, tenant_public_id)
            self._known[tenant_id] = known
        self._known.move_to_end(tenant_id)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return known

    async def _ensure(self, conn: Connection, tenant_id: int, tenant_public_id: str) -> Relay:
        row = await conn.fetchrow(_GET, tenant_id)
        if row is None:
            public_id, now = self._ids.new("idn_"), self._clock.now()
            made: int | None = await conn.fetchval(_INSERT, tenant_id, public_id, USERNAME, now)
            if made is not None:
                new = NewMailbox(tenant_id, made, tenant_public_id, public_id, IdentityKind.AGENT, True, now)
                await self._mailbox_factory(conn, new)
                return Relay(made, public_id)
            row = await conn.fetchrow(_GET, tenant_id)
        assert row is not None, "the transaction that was waited for made it"
        return Relay(row["id"], row["public_id"])
