"""People who share mailboxes: carol and bob of one tenant, dora of another, and an agent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from postroom.accounts import GrantRole, NewPerson, NewTenant, Person, Tenant, Tenants
from postroom.accounts.service.standing import Standing
from postroom.base.errors import PostroomError
from postroom.directory import Identity, IdentityKind, NewIdentity
from postroom.mailbox.models import MailboxRef

PASSWORDS = {"carol": "correct horse battery", "bob": "bobs own secret", "dora": "doras own secret"}


@dataclass
class Street:
    """The office with more people. `carol` is who the office has a mailbox for already."""

    office: Any
    standing: Standing
    boxes: dict[str, Identity] = field(default_factory=dict)
    people: dict[str, Person] = field(default_factory=dict)
    other: Tenant | None = None

    def address(self, name: str) -> bytes:
        return self.boxes[name].primary.address.encode()

    def prefix(self, name: str) -> bytes:
        """What stands before the folders of a mailbox, for those whom it was granted to."""
        return b"Other Users/" + self.address(name) + b"/"

    def ref(self, name: str) -> MailboxRef:
        return MailboxRef(self.boxes[name].tenant_id, self.boxes[name].id)

    async def grant(self, box: str, person: str, role: GrantRole | str | None) -> None:
        """As an administrator does it; whoever is connected has learnt of it then."""
        identity, who = self.boxes[box], self.people[person].public_id
        if role is None:
            with contextlib.suppress(PostroomError):  # there may be none
                await self.office.people.ungrant(identity.tenant_id, identity.public_id, who)
        else:
            await self.office.people.grant(
                identity.tenant_id, identity.public_id, who, GrantRole(role), by_operator=True
            )
        await self.standing.check()

    async def client(self, name: str, select: bytes | None = None, *, box: str | None = None, node: Any = None) -> Any:
        """Somebody, signed in to their own mailbox or to another one."""
        client = await self.office.connect(node)
        await client.ok(b'LOGIN %b "%b"' % (self.address(box or name), PASSWORDS[name].encode()))
        if select is not None:
            await client.ok(b'SELECT "%b"' % select)
        return client

    async def deliver(self, box: str, raw: bytes, folder: str | None = None, flags: tuple[str, ...] = ()) -> Any:
        return await self.office.deliver(raw, folder, flags=flags, box=self.boxes[box])


@contextlib.asynccontextmanager
async def street_of(office: Any) -> AsyncIterator[Street]:
    """The office's neighbours; who is connected is looked at after each hint."""
    standing = Standing(office.db, office.clock, interval=30, sharing=office.services.sharing)
    office.services.sharing._changed = lambda person: standing.wake()
    office.services = replace(office.services, standing=standing)
    street = Street(office, standing, boxes={"carol": office.box, "robot": office.agent})
    (street.people["carol"],) = await office.people.page()
    street.other = await Tenants(office.db, office.ids, office.clock).create(NewTenant(slug="other", name="Other"))
    for name, tenant in (("bob", office.tenant), ("dora", street.other)):
        new = NewIdentity(username=name, display_name=name.title(), kind=IdentityKind.PERSON)
        street.boxes[name] = (await office.identities.create(tenant.id, new))[0]
        street.people[name] = await office.people.create(NewPerson(name.title(), password=PASSWORDS[name]))
        await street.grant(name, name, "owner")
    running = asyncio.create_task(standing.run())
    try:
        yield street
    finally:
        running.cancel()
