"""Members of a tenant and invitations to it (console-billing-notifications §8; FR-CON-2, FR-CON-4).

Whoever invites, accepts or removes holds the tenant's row, so that none of it happens twice, a tenant has one owner
and keeps it. The mail about an invitation is written by whoever finds that it is due (`outbound.invitation_mail`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta

from postroom.accounts import contacts
from postroom.accounts import invitations as rules
from postroom.accounts.audit import HOST, Actor, Entry, record
from postroom.accounts.invitations import Invitation
from postroom.accounts.models import MemberRole, NewPerson, Person, PersonSession, Tenant, TenantStatus
from postroom.accounts.service import proofs
from postroom.accounts.service.people import People, Prepared, check_display_name, check_still_manages
from postroom.accounts.signing_keys import Purpose, SigningKeys
from postroom.accounts.store import credentials as credential_store
from postroom.accounts.store import invitations as store
from postroom.accounts.store import people as people_store
from postroom.accounts.store import proofs as proof_store
from postroom.accounts.store import tenants as tenant_store
from postroom.accounts.text import invalid
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database

Then = Callable[[Connection, Invitation], Awaitable[None]]
"""What is done in the same transaction as an invitation."""


@dataclass(frozen=True, slots=True)
class Inviter:
    """Who invites. `may_give_owner`: they run the tenant from outside, as the platform and its partner do."""

    by: Actor = HOST
    may_give_owner: bool = True


@dataclass(frozen=True, slots=True)
class Roll:
    """Who is in a tenant, and who may come. Nobody bills for seats yet, so there is no end of them."""

    members: list[store.Seen]
    invitations: list[Invitation] = field(default_factory=list)

    @property
    def seats_used(self) -> int:
        return len(self.members) + len(self.invitations)


@dataclass(frozen=True, slots=True)
class Joined:
    """Somebody came."""

    tenant: Tenant
    person: Person
    role: MemberRole


class Members:
    """Use cases of members. Callers have checked permissions; codes speak for themselves."""

    def __init__(
        self,
        db: Database,
        ids: IdGenerator,
        clock: Clock,
        people: People,
        keys: SigningKeys,
        hash_key: bytes,
        *,
        announce: rules.Announce = rules.silent,
    ) -> None:
        """`hash_key` hides whose mail is counted; `announce` writes the events of members."""
        self._db, self._ids, self._clock = db, ids, clock
        self._people, self._keys, self._hash_key, self._announce = people, keys, hash_key, announce

    async def roll(self, tenant_id: int) -> Roll:
        """All members, who came last first, and all invitations that can still be accepted."""
        async with self._db.transaction() as conn:
            return Roll(await store.members(conn, tenant_id), await store.pending(conn, tenant_id, self._clock.now()))

    async def invite(
        self, tenant_id: int, email: str, role: MemberRole, inviter: Inviter | None = None, *, then: Then | None = None
    ) -> Invitation:
        """Invite whoever reads the mail of an address; one that is pending is mailed anew, and has the role that was
        said last. `then` is done in the transaction.

        Raises `invalid_request` for an address that is none, is a member's or ours (W45), `tenant_suspended`,
        `tenant_not_found`; `daily_cap_reached` before anything is written (W44).
        """
        inviter = inviter or Inviter()
        if role is MemberRole.OWNER:
            raise invalid("role", "must be admin, member or viewer")
        email, now = _checked(email), self._clock.now()
        async with self._db.transaction() as conn:
            tenant = _open(await tenant_store.lock(conn, tenant_id))
            await check_still_manages(conn, tenant_id, inviter.by)
            if tenant.status is TenantStatus.SUSPENDED:
                raise PostroomError("tenant_suspended")
            await self._check_address(conn, tenant_id, email)
            await self._count(conn, tenant, email, now)
            new = store.NewInvitation(
                tenant_id,
                self._ids.new("inv_"),
                email,
                role,
                inviter.may_give_owner,
                inviter.by.person,
                now + rules.LIFE,
                self._ids.new("msg_"),
            )
            made, is_new = await store.put(conn, new, now)
            action = "member.invite" if is_new else "member.invite_resend"
            entry = Entry(action, "invitation", made.public_id, tenant_id, {"role": role.value})
            await record(conn, self._ids, now, inviter.by, entry)
            await self._announce(conn, rules.invited(made, now))
            if then is not None:
                await then(conn, made)
        return made

    async def revoke(self, tenant_id: int, public_id: str, *, by: Actor = HOST) -> None:
        """Its code is worthless from now on. Raises `invitation_not_found`, also for what was accepted or is over."""
        now = self._clock.now()
        async with self._db.transaction() as conn:
            await tenant_store.lock(conn, tenant_id)
            await check_still_manages(conn, tenant_id, by)
            if not await store.revoke(conn, tenant_id, public_id, now):
                raise PostroomError("invitation_not_found")
            await record(conn, self._ids, now, by, Entry("member.invite_revoke", "invitation", public_id, tenant_id))

    async def remove(self, tenant_id: int, person_id: str, *, by: Actor = HOST) -> None:
        """Take a member out of the tenant, with all that they have there (W9, W36). Raises `member_not_found`,
        `owner_required` for the owner (W10).
        """
        await self._people.remove_member(tenant_id, person_id, by=by)

    async def code(self, invitation: Invitation) -> str:
        """The code that accepts it; for its mail alone."""
        key = await self._keys.current(Purpose.LINK)
        return rules.mint(key.kid, key.secret, rules.Code(invitation.public_id, invitation.issue))

    async def accept(self, session: PersonSession, code: str, by: Actor, password: str | None = None) -> Joined:
        """Whoever is signed in comes in, if they are whom the invitation was sent to (W23, W40).

        The code proves that their contact address is theirs. While nobody had, whoever made them may know what they
        sign in with: then they choose a `password`, nothing that signed in before does any more, and all sessions end.

        Raises `permission_denied` to a session of an application password, without the password where one is to be
        chosen, and to a session of one step of whoever has two; `invalid_request` with one where none is;
        `invitation_not_found` for a code that opens nothing, any more or to them; `tenant_suspended`; `unavailable`.
        """
        if session.app_password_id is not None:
            raise PostroomError("permission_denied", details={"reason": "app_password"})
        found = await self._find(code)
        hashed = None if password is None else await self._people.hash(password)
        async with self._db.transaction() as conn:
            tenant = await self._take(conn, found)
            # They may be leaving their last tenant at this moment, and go away with it.
            if not await people_store.lock(conn, session.person_id):
                raise PostroomError("invitation_not_found")
            person = await people_store.by_contact(conn, found.email)
            if person is None or person.id != session.person_id:
                raise PostroomError("invitation_not_found")
            proven = (await proof_store.holder(conn, person)).proven
            if not proven:
                person = await self._prove(conn, session, person, hashed, by)
            elif hashed is not None:
                raise invalid("password", "is for whoever's address was not proved before")
            role = await people_store.member_role(conn, tenant.id, person.id)
            if role is None:
                role = await self._enter(conn, found, person, by)
            await store.accept(conn, found, person.public_id)
        if not proven:
            self._people.look_again(person)
        return Joined(tenant, person, role)

    async def join(self, code: str, display_name: str, password: str) -> Joined:
        """Whoever is not here yet comes in, and signs in with the address that they were invited by. Somebody may have
        been made with that address: whom nobody can sign in as is they; others, of whom nobody proved it, lose it.

        Raises `invitation_not_found`; `address_taken` when the address is known to be somebody's, who signs in and then
        accepts; `tenant_suspended`; what `People.prepare` raises.
        """
        check_display_name(display_name)
        found = await self._find(code)  # first: nothing is hashed for whoever guesses
        async with self._db.acquire() as conn:
            known = await people_store.by_contact(conn, found.email)
            if known is not None:
                _free(await proof_store.holder(conn, known))
        ready = await self._people.prepare(NewPerson(display_name, found.email, password))
        async with self._db.transaction() as conn:
            tenant = await self._take(conn, found)
            person = await self._of_address(conn, found.email, ready)
            by = Actor(person=person.public_id)
            role = await people_store.member_role(conn, tenant.id, person.id)
            if role is None:
                role = await self._enter(conn, found, person, by)
            await store.accept(conn, found, person.public_id)
        return Joined(tenant, person, role)

    async def expire(self) -> None:
        """End what nobody accepted in time, and forget it a month later. It may run twice."""
        now = self._clock.now()
        async with self._db.transaction() as conn:
            await store.expire(conn, now, now - rules.KEPT)

    # -- parts

    async def _of_address(self, conn: Connection, email: str, ready: Prepared) -> Person:
        """Whoever showed the code that was mailed to the address. Raises `address_taken`."""
        held, now = await proof_store.lock_holder(conn, email), self._clock.now()
        if held is not None:
            _free(held)
            person = held.person
            if held.untouched:
                assert ready.password_hash is not None, "whoever joins chooses a password"
                by, name = Actor(person=person.public_id), ready.new.display_name
                return await proofs.prove(conn, self._ids, now, person, ready.password_hash, by=by, name=name)
            await proofs.release(conn, self._ids, now, person)
        return await self._people.add(conn, ready)

    async def _prove(
        self, conn: Connection, session: PersonSession, person: Person, hashed: str | None, by: Actor
    ) -> Person:
        """Whoever is signed in, of whom only somebody else said that the address is theirs; their row is locked."""
        if hashed is None:
            raise PostroomError("permission_denied", details={"reason": "address_unproven"})
        if not await proof_store.session_lives(conn, session.id):
            raise PostroomError("unauthenticated")  # whoever may reset them did so meanwhile
        step = await credential_store.totp(conn, person.id, lock=True)
        if step is not None and step.enabled_at is not None and not session.second_factor:
            raise PostroomError("permission_denied", details={"reason": "second_factor_required"})
        return await proofs.prove(conn, self._ids, self._clock.now(), person, hashed, by=by)

    async def _check_address(self, conn: Connection, tenant_id: int, email: str) -> None:
        if await store.is_hosted(conn, email):
            raise invalid("email", "must not be an address of this deployment")
        known = await people_store.by_contact(conn, email)
        if known is not None and await people_store.member_role(conn, tenant_id, known.id) is not None:
            raise invalid("email", "is a member's already")

    async def _count(self, conn: Connection, tenant: Tenant, email: str, now: datetime) -> None:
        day = now.astimezone(UTC).date()
        who = hmac.digest(self._hash_key, b"system-mail\0" + email.encode(), hashlib.sha256).hex()[:32]
        limits = [
            ("invitations", rules.MAX_MAILS),
            (f"invitations:{tenant.public_id}", rules.MAX_MAILS_OF_TENANT),
            (f"to:{who}", rules.MAX_MAILS_TO_ONE),
        ]
        if tenant.partner_public_id is not None:
            limits.append((f"invitations:{tenant.partner_public_id}", rules.MAX_MAILS_OF_PARTNER))
        if not await store.count_mail(conn, day, limits):
            resets = datetime.combine(day + timedelta(days=1), time(), UTC)
            raise PostroomError(
                "daily_cap_reached",
                details={"cap": "invitations", "resets_at": resets.isoformat(timespec="milliseconds")[:-6] + "Z"},
                retry_after=max(int((resets - now).total_seconds()), 1),
            )

    async def _find(self, code: str) -> Invitation:
        """What a code opens. Whatever is none is answered without asking the database about it."""
        kid = rules.kid_of(code)
        named = None
        if kid is not None:
            ring = await self._keys.ring(Purpose.LINK, kid=kid)
            named = rules.verify(code, {key.kid: key.secret for key in ring})
        if named is None:
            raise PostroomError("invitation_not_found")
        async with self._db.acquire() as conn:
            found = await store.find(conn, named.invitation, named.issue, self._clock.now())
        if found is None:
            raise PostroomError("invitation_not_found")
        return found

    async def _take(self, conn: Connection, found: Invitation) -> Tenant:
        """The tenant, locked; the invitation is still what it was, and nobody else takes it. Raises
        `invitation_not_found`, `tenant_suspended`.
        """
        tenant = await tenant_store.lock(conn, found.tenant_id)
        if tenant is None or tenant.status.is_gone or not await store.lock(conn, found, self._clock.now()):
            raise PostroomError("invitation_not_found")
        if await store.is_hosted(conn, found.email):
            raise PostroomError("invitation_not_found")  # the address became one of ours since (W45)
        if tenant.status is TenantStatus.SUSPENDED:
            raise PostroomError("tenant_suspended")
        return tenant

    async def _enter(self, conn: Connection, found: Invitation, person: Person, by: Actor) -> MemberRole:
        # A tenant without an owner gets one by the first administrator whom its platform or partner invited.
        gives = found.role is MemberRole.ADMIN and found.may_own
        role = MemberRole.OWNER if gives and not await store.has_owner(conn, found.tenant_id) else found.role
        await self._people.join(conn, found.tenant_id, person, role, by)
        return role


def _checked(email: str) -> str:
    """As people's contact addresses are. Raises `invalid_request`."""
    try:
        return contacts.folded(email)
    except ValueError:
        raise invalid("email", "must be an address, local-part@domain") from None


def _free(held: proof_store.Holder) -> None:
    """Raises `address_taken` for an address that is known to be somebody's who can sign in."""
    if held.proven and not held.untouched:
        raise PostroomError("address_taken")


def _open(tenant: Tenant | None) -> Tenant:
    if tenant is None or tenant.status.is_gone:
        raise PostroomError("tenant_not_found")
    return tenant
