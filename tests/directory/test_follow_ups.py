"""What must follow a change is written in the transaction of the change: there is never one without the other (J21)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from postroom.accounts import Scope, tenant_scope
from postroom.db import Connection
from postroom.directory import Addresses, Announcement, Identities, Identity, IdentityChanges, NewIdentity
from postroom.directory.models import IdentityStatus
from postroom.events.identities import IdentityAnnouncer
from tests.accounts.conftest import HASH_KEY, mailbox_rows

if TYPE_CHECKING:
    from tests.accounts.conftest import House

_ROWS = """
SELECT (SELECT jsonb_agg(to_jsonb(i) ORDER BY id) FROM identities i)::text AS identities,
  (SELECT jsonb_agg(to_jsonb(a) ORDER BY id) FROM addresses a)::text AS addresses,
  (SELECT jsonb_agg(to_jsonb(m) ORDER BY id) FROM mailboxes m)::text AS mailboxes,
  (SELECT jsonb_agg(action ORDER BY id) FROM audit_log)::text AS audit,
  (SELECT jsonb_agg(type ORDER BY id) FROM events)::text AS events
"""


class GoneError(Exception):
    """The process is gone at that moment: what it had not committed never was."""


@dataclass
class Office:
    """Identities and addresses of a process that may go at the moment when all of a change is written."""

    house: House
    identity: Identity
    domain: str
    identities: Identities = field(init=False)
    addresses: Addresses = field(init=False)
    goes: bool = False

    def __post_init__(self) -> None:
        house, announcer = self.house, IdentityAnnouncer(self.house.ids)

        async def announce(conn: Connection, told: Announcement) -> None:
            await announcer(conn, told)
            if self.goes:
                raise GoneError

        basis = (house.db, house.ids, house.clock, HASH_KEY)
        self.identities = Identities(*basis, mailbox_rows, announce, house.changed.append)
        self.addresses = Addresses(*basis, announce, house.changed.append)

    @property
    def scope(self) -> Scope:
        return tenant_scope(self.identity.tenant_id)

    async def alias(self) -> str:
        now = await self.identities.get(self.scope, self.identity.public_id)
        return next(one.public_id for one in now.addresses if one.domain_public_id == self.domain)

    async def rows(self) -> dict[str, Any]:
        async with self.house.db.acquire() as conn:
            row = await conn.fetchrow(_ROWS)
        assert row is not None
        return {name: json.loads(value or "[]") for name, value in row.items()}


async def create(office: Office) -> None:
    new = NewIdentity(username="second", display_name="Second", client_id="crm-2")
    await office.identities.create(office.identity.tenant_id, new)


async def change(office: Office, **changes: Any) -> None:
    await office.identities.update(office.scope, office.identity.public_id, IdentityChanges(**changes))


async def add(office: Office) -> None:
    await office.addresses.add(office.scope, office.identity.public_id, "support", office.domain)


async def promote(office: Office) -> None:
    await office.addresses.promote(office.scope, office.identity.public_id, await office.alias())


async def roll_back(office: Office) -> None:
    await office.addresses.roll_back(office.scope, office.identity.public_id)


async def retire(office: Office) -> None:
    await office.addresses.retire(office.scope, office.identity.public_id, await office.alias(), 0)


STEPS: tuple[tuple[str, Callable[[Office], Awaitable[None]]], ...] = (
    ("identity.created", create),
    ("identity.updated", partial(change, display_name="Other")),
    ("identity.paused", partial(change, status=IdentityStatus.PAUSED)),
    ("identity.resumed", partial(change, status=IdentityStatus.ACTIVE)),
    ("identity.address_added", add),
    ("identity.address_promoted", promote),
    ("identity.address_promoted", roll_back),
    ("identity.address_retired", retire),
)


@pytest.mark.covers("edge:J21", "decisions:A3")
async def test_a_change_and_what_follows_it_are_one(house: House, make_domain: Any) -> None:
    tenant = await house.tenant("one")
    identity = await house.identity(tenant, "first")
    office = Office(house, identity, await make_domain(tenant.id, "own.example"))
    for kind, step in STEPS:
        before = await office.rows()
        office.goes = True
        with pytest.raises(GoneError):
            await step(office)
        assert await office.rows() == before, kind
        office.goes = False
        await step(office)
        after = await office.rows()
        assert after["events"][len(before["events"]) :] == [kind]
        assert {name for name in before if before[name] != after[name]} > {"events"}, kind
    async with house.db.acquire() as conn:
        sequences = await conn.fetch("SELECT sequence FROM events WHERE identity_id = $1 ORDER BY id", identity.id)
    assert [row["sequence"] for row in sequences] == list(range(1, len(STEPS))), "none is missing for what was not done"
