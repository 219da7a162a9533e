"""People, their memberships and their grants to mailboxes (A2, A4).

`tenant_id` None means the caller is an operator, or the command line. A tenant's administrator passes the tenant, and
then touches only people who have to do with that tenant; to reset or disable somebody they must have to do with no
other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import asyncpg

from postroom.accounts import contacts, invitations
from postroom.accounts.audit import HOST, Actor, Entry, record
from postroom.accounts.models import Grant, Member, MemberRole, NewPerson, Person
from postroom.accounts.passwords import HashingOverloaded, Passwords, check_policy
from postroom.accounts.permissions import GrantRole
from postroom.accounts.service import keys_of_people
from postroom.accounts.store import invitations as invitation_store
from postroom.accounts.store import people as store
from postroom.accounts.store import proofs as proof_store
from postroom.accounts.store import sessions as session_store
from postroom.accounts.store import tenants as tenant_store
from postroom.accounts.text import check_name, invalid
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database

MAX_DISPLAY_NAME: Final = 78
MAX_PAGE: Final = 101
"""A page of a hundred, and one more that tells whether another follows."""
_NOBODY: Final = 0
"""No row has this key."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a new person belongs from the first: as a member of a tenant, as the owner of a mailbox of it, or both."""

    tenant_id: int
    role: MemberRole | None = None
    owns: str | None = None
    """The public id of the mailbox's identity."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A person who can be made."""

    new: NewPerson = field(repr=False)
    contact_email: str | None
    password_hash: str | None = field(repr=False)


class People:
    """Use cases of people. Callers have checked permissions."""

    def __init__(
        self,
        db: Database,
        ids: IdGenerator,
        clock: Clock,
        passwords: Passwords,
        changed: Callable[[str], None] = lambda person: None,
        announce: invitations.Announce = invitations.silent,
    ) -> None:
        """`changed` is told the id of a person whose connections are to be looked at again; `announce` writes the
        events of members.
        """
        self._db, self._ids, self._clock, self._passwords, self._changed = db, ids, clock, passwords, changed
        self._announce = announce

    async def create(self, new: NewPerson, *, by: Actor = HOST, place: Place | None = None) -> Person:
        """A new person. Raises `invalid_request`, `address_invalid`, `address_taken` when the contact address is
        somebody's already, `unavailable` when too many passwords are being hashed.
        """
        ready = await self.prepare(new)
        async with self._db.transaction() as conn:
            return await self.add(conn, ready, by=by, place=place)

    async def prepare(self, new: NewPerson) -> Prepared:
        """What can be refused of a person to be made, and the work of hashing; raises as `create`."""
        check_display_name(new.display_name)
        try:
            contact = None if new.contact_email is None else contacts.folded(new.contact_email)
        except ValueError:
            raise PostroomError("address_invalid", details={"field": "contact_email"}) from None
        hashed = None if new.password is None else await self.hash(new.password)
        return Prepared(new, contact, hashed)

    async def check_contact(self, ready: Prepared) -> None:
        """Raises `invalid_request` for a contact address whose mail comes here (W45)."""
        if ready.contact_email is None:
            return
        async with self._db.acquire() as conn:
            if await invitation_store.is_hosted(conn, ready.contact_email):
                raise invalid("contact_email", "must not be an address of this deployment")

    async def add(
        self,
        conn: Connection,
        ready: Prepared,
        *,
        by: Actor = HOST,
        place: Place | None = None,
        vouched: bool = False,
    ) -> Person:
        """Make the person in the caller's transaction, which is over when this raises `address_taken`. `vouched`: who
        runs the deployment says that the contact address is theirs, as the host always does.
        """
        new, now, public_id = ready.new, self._clock.now(), self._ids.new("usr_")
        if place is not None:
            await self._may_still(conn, place.tenant_id, by)
        try:
            made = await store.insert(
                *(conn, public_id, ready.contact_email, new.display_name, ready.password_hash, new.is_operator, now),
                now if ready.contact_email is not None and (vouched or by.is_host) else None,
            )
        except asyncpg.UniqueViolationError:
            raise PostroomError("address_taken") from None
        tenant_id = None if place is None else place.tenant_id
        if place is not None and place.role is not None:
            await self.join(conn, place.tenant_id, made, place.role, by)
        if place is not None and place.owns is not None:
            await store.put_grant(conn, place.tenant_id, place.owns, made.id, GrantRole.OWNER, now)
        entry = Entry("person.create", "person", public_id, tenant_id, {"operator": new.is_operator})
        await record(conn, self._ids, now, by, entry)
        return made

    async def put_owner(
        self, conn: Connection, ready: Prepared, tenant_id: int, *, by: Actor = HOST, may_draw_in: bool = True
    ) -> None:
        """Inside the caller's transaction: a new tenant gets its owner, whom their contact address tells apart.

        Somebody who is there already becomes the owner only when `may_draw_in`: others are not made part of a tenant
        that they have not heard of, and nobody is told that they are there. Nor does somebody of whom only another
        tenant says that the address is theirs: the tenant stays without an owner, until one is invited.
        """
        contact = ready.contact_email
        known = None if contact is None else await store.by_contact(conn, contact)
        if known is None:
            try:
                async with conn.transaction():
                    place = Place(tenant_id, MemberRole.OWNER)
                    await self.add(conn, ready, by=by, place=place, vouched=may_draw_in)
                    return
            except PostroomError as error:
                # Somebody made the person meanwhile.
                if error.code != "address_taken" or contact is None:
                    raise
            known = _found(await store.by_contact(conn, contact))
        if may_draw_in:
            if not await store.lock(conn, known.id):
                raise PostroomError("unavailable", retry_after=1)  # they are going away at this moment
            held = await proof_store.holder(conn, known)
            if not (held.proven or held.untouched):
                return
            await self.join(conn, tenant_id, known, MemberRole.OWNER, by)

    async def join(self, conn: Connection, tenant_id: int, person: Person, role: MemberRole, by: Actor) -> None:
        """Inside the caller's transaction: the person, who is none yet, is a member of the tenant. Raises
        asyncpg.UniqueViolationError when the tenant would have a second owner.
        """
        now = self._clock.now()
        await store.put_member(conn, tenant_id, person.id, role, now)
        entry = Entry("member.join", "person", person.public_id, tenant_id, {"role": role.value})
        await record(conn, self._ids, now, by, entry)
        await self._announce(conn, invitations.joined(tenant_id, person.public_id, role, now))

    async def get(self, public_id: str, *, tenant_id: int | None = None) -> Person:
        """Raises `person_not_found`."""
        async with self._db.acquire() as conn:
            return _found(await store.get(conn, public_id, tenant_id))

    async def page(
        self, *, tenant_id: int | None = None, limit: int = 25, after: tuple[datetime, str] | None = None
    ) -> list[Person]:
        """People of a tenant, or all, newest first; `after`: creation time and public id of the last one seen."""
        async with self._db.acquire() as conn:
            return await store.page(conn, tenant_id, min(max(limit, 1), MAX_PAGE), after)

    async def set_password(
        self, public_id: str, password: str, *, tenant_id: int | None = None, by: Actor = HOST
    ) -> Person:
        """A new password, in force at once; whatever the person is signed in to ends (F1).

        Raises `invalid_request`, `person_not_found`, `unavailable`.
        """
        hashed = await self.hash(password)
        now = self._clock.now()
        async with self._db.transaction() as conn:
            await self._may_still(conn, tenant_id, by)
            await self._hold(conn, public_id)
            person = _found(await store.set_password(conn, public_id, tenant_id, hashed, now))
            await session_store.revoke_all(conn, person.id, now)
            await record(conn, self._ids, now, by, Entry("person.password_reset", "person", public_id, tenant_id))
        self._changed(public_id)
        return person

    async def set_enabled(
        self, public_id: str, enabled: bool, *, tenant_id: int | None = None, by: Actor = HOST
    ) -> Person:
        """Whether the person can sign in at all; when not, whatever they are signed in to ends. Raises
        `person_not_found`.
        """
        now = self._clock.now()
        async with self._db.transaction() as conn:
            await self._may_still(conn, tenant_id, by)
            await self._hold(conn, public_id)
            person = _found(await store.set_enabled(conn, public_id, tenant_id, enabled, now))
            if not enabled:
                await session_store.revoke_all(conn, person.id, now)
            action = "person.enable" if enabled else "person.disable"
            await record(conn, self._ids, now, by, Entry(action, "person", public_id, tenant_id))
        self._changed(public_id)
        return person

    async def rename(
        self, public_id: str, display_name: str, *, tenant_id: int | None = None, by: Actor = HOST
    ) -> Person:
        """Raises `invalid_request`, `person_not_found`."""
        check_display_name(display_name)
        now = self._clock.now()
        async with self._db.transaction() as conn:
            await self._may_still(conn, tenant_id, by)
            person = _found(await store.set_name(conn, public_id, tenant_id, display_name, now))
            await record(conn, self._ids, now, by, Entry("person.update", "person", public_id, tenant_id))
        return person

    async def put_member(
        self, tenant_id: int, person_id: str, role: MemberRole, *, by_operator: bool = False, by: Actor = HOST
    ) -> None:
        """Make the person a member, or change the role; keys of theirs that hold more than it are revoked. Others than
        an operator reach only people of the tenant, and new ones. Raises `person_not_found`; `owner_required` when
        the owner would lose the role, or the tenant have two owners: ownership is transferred, not given.
        """
        now = self._clock.now()
        try:
            async with self._db.transaction() as conn:
                if await tenant_store.lock(conn, tenant_id) is None:
                    raise PostroomError("tenant_not_found")
                await check_still_manages(conn, tenant_id, by)
                await self._hold(conn, person_id)
                person = _found(await self._find(conn, person_id, tenant_id, by_operator))
                before = await store.member_role(conn, tenant_id, person.id)
                if before is MemberRole.OWNER is not role:
                    raise PostroomError("owner_required")
                if before is None:
                    await self.join(conn, tenant_id, person, role, by)
                elif before is not role:
                    await store.put_member(conn, tenant_id, person.id, role, now)
                    details = {"from": before.value, "to": role.value}
                    await record(
                        conn, self._ids, now, by, Entry("member.role_change", "person", person_id, tenant_id, details)
                    )
                    await self._announce(conn, invitations.role_changed(tenant_id, person_id, before, role, now))
                lost = await keys_of_people.role_changed(conn, self._ids, now, by, tenant_id, person_id, role)
        except asyncpg.UniqueViolationError:
            raise PostroomError("owner_required") from None
        if lost:
            self._changed(person_id)

    async def members(self, tenant_id: int) -> list[Member]:
        async with self._db.acquire() as conn:
            return await store.members(conn, tenant_id)

    async def grant(
        self,
        tenant_id: int,
        identity: str,
        person_id: str,
        role: GrantRole,
        *,
        by_operator: bool = False,
        by: Actor = HOST,
    ) -> None:
        """Let the person open the mailbox, or change how. Others than an operator reach only people of the tenant,
        and new ones.

        Raises `person_not_found`, `identity_not_found`.
        """
        async with self._db.transaction() as conn:
            await self._may_still(conn, tenant_id, by)
            await self._hold(conn, person_id)
            person = _found(await self._find(conn, person_id, tenant_id, by_operator))
            now = self._clock.now()
            if await store.put_grant(conn, tenant_id, identity, person.id, role, now) is None:
                raise PostroomError("identity_not_found")
            details = {"person": person_id, "role": role.value}
            await record(conn, self._ids, now, by, Entry("grant.put", "identity", identity, tenant_id, details))
        self._changed(person_id)

    async def ungrant(self, tenant_id: int, identity: str, person_id: str, *, by: Actor = HOST) -> None:
        """Take the mailbox from the person; connections that they opened it with end. Raises `person_not_found`,
        `grant_not_found`.
        """
        now = self._clock.now()
        async with self._db.transaction() as conn:
            await self._may_still(conn, tenant_id, by)
            person = _found(await store.get(conn, person_id, tenant_id))
            if not await store.remove_grant(conn, tenant_id, identity, person.id):
                raise PostroomError("grant_not_found")
            entry = Entry("grant.remove", "identity", identity, tenant_id, {"person": person_id})
            await record(conn, self._ids, now, by, entry)
        self._changed(person_id)

    async def authority(self, public_id: str, tenant_id: int) -> Person:
        """The person, if a tenant's administrators may reset them: wholly of that tenant, and not its owner (A2).

        Raises `person_not_found` for whoever has nothing to do with the tenant, `scope_denied` for whoever has to do
        with another, `owner_required` for the owner, whom nobody but an operator resets.
        """
        async with self._db.acquire() as conn:
            return await self._authority(conn, public_id, tenant_id)

    async def still_has_authority(self, conn: Connection, public_id: str, tenant_id: int | None, by: Actor) -> None:
        """Inside the caller's transaction, before anything else in it: as `authority`, now, and of whoever still
        manages the tenant; None is an operator. Nobody draws the person in, or takes anybody out, until it is over.
        """
        await self._may_still(conn, tenant_id, by)
        await self._hold(conn, public_id)
        if tenant_id is not None:
            await self._authority(conn, public_id, tenant_id)

    async def _authority(self, conn: Connection, public_id: str, tenant_id: int) -> Person:
        person = _found(await store.get(conn, public_id, tenant_id))
        if await store.member_role(conn, tenant_id, person.id) is MemberRole.OWNER:
            raise PostroomError("owner_required")
        if not await store.is_wholly_of(conn, person.id, tenant_id):
            raise PostroomError("scope_denied")
        return person

    async def _may_still(self, conn: Connection, tenant_id: int | None, by: Actor) -> None:
        """Whoever takes a person out of the tenant waits, or was before us, and then `by` may have lost their place."""
        if tenant_id is not None:
            await tenant_store.share(conn, tenant_id)
        await check_still_manages(conn, tenant_id, by)

    async def remove(self, tenant_id: int, person_id: str, *, by: Actor = HOST) -> None:
        """Take membership and mailboxes of the tenant from the person, who goes away with the last of either (A2).
        Their sessions end, and keys of the tenant that they stand behind are revoked. Mailboxes and mail stay.

        Raises `person_not_found`, `owner_required` for the tenant's owner.
        """
        await self._remove(tenant_id, person_id, by, member=False)

    async def remove_member(self, tenant_id: int, person_id: str, *, by: Actor = HOST) -> None:
        """As `remove`, of a member. Raises `member_not_found` for whoever is none, `owner_required` for the owner."""
        await self._remove(tenant_id, person_id, by, member=True)

    async def _remove(self, tenant_id: int, person_id: str, by: Actor, *, member: bool) -> None:
        missing = "member_not_found" if member else "person_not_found"
        now = self._clock.now()
        async with self._db.transaction() as conn:
            await tenant_store.lock(conn, tenant_id)  # as who makes a key of the tenant does, and who makes an owner
            await check_still_manages(conn, tenant_id, by)
            person = await store.get(conn, person_id, tenant_id)
            if person is None:
                raise PostroomError(missing)
            await store.lock(conn, person.id)
            role = await store.member_role(conn, tenant_id, person.id)
            if role is None and member:
                raise PostroomError(missing)
            if role is MemberRole.OWNER:
                raise PostroomError("owner_required")
            await store.remove_from(conn, tenant_id, person.id)
            await session_store.revoke_all(conn, person.id, now)  # a session is of no tenant: they sign in again (W9)
            gone = await store.delete_unless_needed(conn, person.id)
            action = "person.remove" if role is None else "member.remove"
            await record(conn, self._ids, now, by, Entry(action, "person", person_id, tenant_id, {"deleted": gone}))
            if role is not None:
                await self._announce(conn, invitations.removed(tenant_id, person_id, now))
            await keys_of_people.removed(conn, self._ids, now, by, tenant_id, person_id)
        self._changed(person_id)

    def look_again(self, person: Person) -> None:
        """What the person signed in with was changed, and that is committed: connections are looked at again."""
        self._changed(person.public_id)

    async def grant_page(
        self, tenant_id: int, person_id: int, *, limit: int = 25, after: tuple[datetime, str] | None = None
    ) -> list[Grant]:
        """Rights of a person to mailboxes of a tenant, newest first."""
        async with self._db.acquire() as conn:
            return await store.grant_page(conn, tenant_id, person_id, min(max(limit, 1), MAX_PAGE), after)

    async def grants(
        self, tenant_id: int, *, mailbox_id: int | None = None, person_id: int | None = None
    ) -> list[Grant]:
        """Rights to mailboxes of a tenant, of one mailbox or one person."""
        async with self._db.acquire() as conn:
            return await store.grants(conn, tenant_id, mailbox_id=mailbox_id, person_id=person_id)

    async def _hold(self, conn: Connection, person_id: str) -> None:
        """What the person has to do with is read after this, so that nobody draws them in or takes them out meanwhile.
        A statement that only waits for their row does not look anew at what others wrote elsewhere.
        """
        person = await store.get(conn, person_id, None)
        # For one who is not there, too: as many statements tell nothing.
        await store.lock(conn, _NOBODY if person is None else person.id)

    async def _find(self, conn: Connection, person_id: str, tenant_id: int, by_operator: bool) -> Person | None:
        if by_operator:
            return await store.get(conn, person_id, None)
        return await store.get_free(conn, person_id, tenant_id)

    async def hash(self, password: str) -> str:
        """What is kept of a new password. Raises `invalid_request`, `unavailable`."""
        check_policy(password)
        try:
            return await self._passwords.hash(password)
        except HashingOverloaded:
            raise PostroomError("unavailable", retry_after=2) from None


async def check_still_manages(conn: Connection, tenant_id: int | None, by: Actor) -> None:
    """Whoever was taken out of the tenant while their request waited for its row, which the caller holds, does nothing
    any more (W9); None: what only an operator does. Raises `permission_denied`, `key_revoked`.
    """
    if not await store.still_manages(conn, tenant_id, by.person, by.key):
        raise PostroomError("permission_denied" if by.key is None else "key_revoked")


def check_display_name(name: str) -> None:
    """Raises `invalid_request` unless the name has 1 to 78 characters and no control characters."""
    check_name("display_name", name, MAX_DISPLAY_NAME)


def _found(person: Person | None) -> Person:
    if person is None:
        raise PostroomError("person_not_found")
    return person
