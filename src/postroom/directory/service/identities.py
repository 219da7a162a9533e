"""Identities: made with their mailbox and addresses in one transaction, read, changed, paused and resumed (inbound
§2).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Final

import asyncpg

from postroom.accounts import audit
from postroom.accounts.audit import HOST, Actor
from postroom.accounts.models import PLATFORM_SCOPE, Scope, Tenant, TenantStatus
from postroom.accounts.permissions import Level
from postroom.accounts.service import tenants as tenant_service
from postroom.accounts.store import tenants as tenant_store
from postroom.accounts.text import check_text
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database
from postroom.directory import rules, store
from postroom.directory.models import (
    AddressRole,
    AddressStatus,
    Announce,
    Announcement,
    Changed,
    Fact,
    Identity,
    IdentityChanges,
    IdentityKind,
    IdentityStatus,
    MailboxFactory,
    NewIdentity,
    NewMailbox,
    PauseReason,
)
from postroom.directory.tombstones import check_free
from postroom.directory.usernames import class_of, validate_username

MAX_PAGE: Final = 101
"""A page of a hundred, and one more that tells whether another follows."""

Then = Callable[[Connection, Identity], Awaitable[None]]
"""Done in the transaction of a change, with what is there after it."""

_TAKEN: Final = {
    "identities_username": "username_taken",
    "identities_fold": "username_taken",
    "identities_client": "client_id_conflict",
    "addresses_address_key": "address_taken",
}


class Identities:
    """Use cases of identities. `announce` writes events in the transaction, `mailbox_factory` the mailbox's rows.

    `changed` is told of a change in who receives; what is new or paused needs no telling.
    """

    def __init__(
        self,
        db: Database,
        ids: IdGenerator,
        clock: Clock,
        hash_key: bytes,
        mailbox_factory: MailboxFactory,
        announce: Announce,
        changed: Changed,
    ) -> None:
        self._db, self._ids, self._clock, self._hash_key = db, ids, clock, hash_key
        self._mailbox_factory, self._announce, self._changed = mailbox_factory, announce, changed

    async def create(
        self,
        tenant_id: int,
        new: NewIdentity,
        then: Then | None = None,
        *,
        by: Actor = HOST,
    ) -> tuple[Identity, bool]:
        """The identity, and whether it was made now: a known `client_id` with the same request gives the one that is
        there. `then` is done in the transaction that makes it; `by` is who asks, for the audit log.

        Raises the errors of `validate_username`; `invalid_request`, `address_invalid` (owner's e-mail),
        `client_id_conflict`, `username_taken`, `address_taken`, `domain_not_found`, `domain_not_ready`,
        `tenant_not_found`, `tenant_suspended`.
        """
        rules.check_identity(new)
        fingerprint = None if new.client_id is None else rules.fingerprint(new)
        async with self._db.acquire() as conn:
            tenant = await tenant_store.get_by_id(conn, tenant_id)
            if tenant is None or tenant.status.is_gone:
                raise PostroomError("tenant_not_found")
            known = await self._known(conn, tenant_id, new.client_id, fingerprint)
        if known is not None:
            return known, False
        username, fold = validate_username(new.username, class_of(tenant.address_suffix), suffix=tenant.address_suffix)
        try:
            async with self._db.transaction() as conn:
                # Whoever suspends the tenant pauses what is there: this is there by then, or is not made.
                tenant = await tenant_store.share(conn, tenant_id)
                if tenant is None or tenant.status.is_gone:
                    raise PostroomError("tenant_not_found")
                if tenant.status is TenantStatus.SUSPENDED:
                    raise PostroomError("tenant_suspended")
                made = await self._insert(conn, tenant, new, username, fold, fingerprint)
                await self._record(conn, "identity.create", made, by, made.created_at)
                if then is not None:
                    await then(conn, made)
                return made, True
        except asyncpg.UniqueViolationError as exc:
            code = _TAKEN.get(exc.constraint_name or "")
            if code is None:
                raise
        # Somebody else was first, perhaps with this very request.
        async with self._db.acquire() as conn:
            known = await self._known(conn, tenant_id, new.client_id, fingerprint)
        if known is not None:
            return known, False
        raise PostroomError(code)

    async def create_system(self, tenant_id: int, local_part: str, display_name: str, owner_email: str) -> Identity:
        """The deployment's own identity (inbound §2.4), once: the one that is there, if there is one. Its name may be
        a reserved one.
        """
        new = NewIdentity(
            username=local_part,
            display_name=display_name,
            kind=IdentityKind.AGENT,
            owner_name="Operator",
            owner_email=owner_email,
        )
        rules.check_identity(new)
        local_part = local_part.lower()
        if not rules.is_plausible(local_part) or "@" in local_part or "+" in local_part or " " in local_part:
            raise PostroomError("address_invalid")
        async with self._db.transaction() as conn:
            tenant = await tenant_store.lock(conn, tenant_id)
            if tenant is None:
                raise PostroomError("tenant_not_found")
            existing = await store.system_identity(conn)
            if existing is not None:
                return existing
            return await self._insert(conn, tenant, new, local_part, local_part, None, is_system=True)

    async def get(self, scope: Scope, public_id: str) -> Identity:
        """Raises `identity_not_found`, also out of scope."""
        async with self._db.acquire() as conn:
            return _found(await store.get(conn, scope, public_id))

    async def by_address(self, scope: Scope, address: str) -> Identity:
        """The identity that a full address, without detail, belongs to. Raises `address_not_found`, also out of
        scope.
        """
        async with self._db.acquire() as conn:
            found = await store.by_address(conn, scope, address.lower())
        if found is None:
            raise PostroomError("address_not_found")
        return found

    async def by_address_id(self, scope: Scope, public_id: str) -> Identity:
        """As `by_address`, of the address of that id."""
        async with self._db.acquire() as conn:
            found = await store.by_address_id(conn, scope, public_id)
        if found is None:
            raise PostroomError("address_not_found")
        return found

    async def page(
        self,
        scope: Scope,
        tenant_id: int | None,
        *,
        statuses: Iterable[IdentityStatus] | None = None,
        purpose: str | None = None,
        client_id: str | None = None,
        limit: int = 25,
        after: tuple[datetime, str] | None = None,
    ) -> list[Identity]:
        """Identities of a tenant, for the platform also of all (None), newest first; `after` is the creation time and
        public id of the last one seen.

        What is out of scope is not listed; a tenant out of scope is for the caller to refuse.
        """
        check_text("purpose", purpose, rules.MAX_TAG)
        check_text("client_id", client_id, rules.MAX_TAG)
        async with self._db.acquire() as conn:
            return await store.page(
                conn,
                scope,
                tenant_id,
                statuses=statuses,
                purpose=purpose,
                client_id=client_id,
                limit=min(max(limit, 1), MAX_PAGE),
                after=after,
            )

    async def granted(
        self,
        person_id: int,
        *,
        tenant: str | None = None,
        statuses: Iterable[IdentityStatus] | None = None,
        purpose: str | None = None,
        limit: int = 25,
        after: tuple[datetime, str] | None = None,
    ) -> list[Identity]:
        """Identities whose mailboxes a person may open, newest first; `tenant` is a public id."""
        check_text("purpose", purpose, rules.MAX_TAG)
        async with self._db.acquire() as conn:
            return await store.granted(
                conn,
                person_id,
                tenant=tenant,
                statuses=statuses,
                purpose=purpose,
                limit=min(max(limit, 1), MAX_PAGE),
                after=after,
            )

    async def update(self, scope: Scope, public_id: str, changes: IdentityChanges, *, by: Actor = HOST) -> Identity:
        """Set fields, and pause or resume, all or nothing. What changes nothing announces nothing, and is not audited.

        Raises `identity_not_found` (also while deleting), `invalid_request`, `address_invalid`, and as `resume`.
        """
        rules.check_changes(changes)
        now = self._clock.now()
        async with self._db.transaction() as conn:
            before = await writable(conn, scope, public_id)
            values = (
                *(changes.display_name, changes.purpose, changes.owner_name, changes.owner_email),
                *(changes.signature_text, changes.signature_html),
                None if changes.metadata is None else dict(changes.metadata),
                {**before.send_policy, **(changes.send_policy or {})},
            )
            await store.update(conn, before, values, now)
            after = _found(await store.get(conn, scope, public_id))
            changed = rules.changed_fields(before, after)
            if changed:
                await self._announce(conn, Announcement(Fact.IDENTITY_UPDATED, after, now, changed=changed))
            if changes.status is IdentityStatus.PAUSED:
                after = await self._pause(conn, after, PauseReason.MANUAL, now)
            elif changes.status is IdentityStatus.ACTIVE:
                after = await self._resume(conn, scope, after, now)
            await self._record_update(conn, before, after, changed, by, now)
            return after

    async def pause(
        self, scope: Scope, public_id: str, reason: PauseReason = PauseReason.MANUAL, *, by: Actor = HOST
    ) -> Identity:
        """Stop sending; mail is still received (A7). Nothing changes for one that is paused. Raises
        `identity_not_found`.
        """
        now = self._clock.now()
        async with self._db.transaction() as conn:
            before = await writable(conn, scope, public_id)
            after = await self._pause(conn, before, reason, now)
            if after is not before and reason is PauseReason.ABUSE_THRESHOLD:
                await self._record(conn, "identity.auto_pause", after, by, now, reason=reason.value)
            else:
                await self._record_update(conn, before, after, (), by, now)
            return after

    async def _pause(self, conn: Connection, identity: Identity, reason: PauseReason, now: datetime) -> Identity:
        if identity.status is IdentityStatus.PAUSED:
            return identity
        return await self._set_status(conn, identity, IdentityStatus.PAUSED, reason, now)

    async def resume(self, scope: Scope, public_id: str, *, by: Actor = HOST) -> Identity:
        """Let it send again. Raises `identity_not_found`; `identity_paused` while its tenant is suspended;
        `scope_denied` when an identity's own key would lift a pause for abuse, or anybody's but the platform's that of
        a partner's tenant (J17).
        """
        now = self._clock.now()
        async with self._db.transaction() as conn:
            before = await writable(conn, scope, public_id)
            after = await self._resume(conn, scope, before, now)
            await self._record_update(conn, before, after, (), by, now)
            return after

    async def _resume(self, conn: Connection, scope: Scope, identity: Identity, now: datetime) -> Identity:
        if identity.status is IdentityStatus.ACTIVE:
            return identity
        if identity.pause_reason is PauseReason.TENANT_SUSPENDED:
            raise PostroomError("identity_paused", details={"reason": PauseReason.TENANT_SUSPENDED.value})
        if identity.pause_reason is PauseReason.ABUSE_THRESHOLD and not await _may_lift(conn, scope, identity):
            raise PostroomError("scope_denied", details={"field": "status"})
        return await self._set_status(conn, identity, IdentityStatus.ACTIVE, None, now)

    async def suspend_tenant(self, tenant_id: int, by: str = "platform") -> Tenant:
        """Suspend a tenant and pause its active identities, each with its event (FR-TEN-3, inbound §2.1).

        Raises `tenant_not_found`, `tenant_erased`.
        """
        now = self._clock.now()
        async with self._db.transaction() as conn:
            tenant, changed = await tenant_service.suspend(conn, tenant_id, by, now)
            if changed:
                await self.follow_tenant(conn, tenant, now)
        self._changed(tenant.public_id)
        return tenant

    async def resume_tenant(self, tenant_id: int, by: str = "platform") -> Tenant:
        """Lift a suspension, and only the pauses that it made. Raises as `suspend_tenant`, and `scope_denied` (J17)."""
        now = self._clock.now()
        async with self._db.transaction() as conn:
            tenant, changed = await tenant_service.resume(conn, tenant_id, by, now)
            if changed:
                await self.follow_tenant(conn, tenant, now)
        self._changed(tenant.public_id)
        return tenant

    async def follow_tenant(self, conn: Connection, tenant: Tenant, now: datetime) -> None:
        """In the transaction that suspended or resumed the tenant: its identities are paused, or those resumed that
        the suspension paused.
        """
        if tenant.status is TenantStatus.SUSPENDED:
            for identity in await store.pause_tenant(conn, tenant.id, now):
                await self._announce(conn, Announcement(Fact.IDENTITY_PAUSED, identity, now))
        else:
            for identity in await store.resume_tenant(conn, tenant.id, now):
                await self._announce(conn, Announcement(Fact.IDENTITY_RESUMED, identity, now))

    async def _known(
        self, conn: Connection, tenant_id: int, client_id: str | None, fingerprint: str | None
    ) -> Identity | None:
        if client_id is None:
            return None
        found = await store.by_client_id(conn, tenant_id, client_id)
        if found is None:
            return None
        identity, recorded = found
        if recorded != fingerprint:
            raise PostroomError("client_id_conflict")
        return identity

    async def _insert(
        self,
        conn: Connection,
        tenant: Tenant,
        new: NewIdentity,
        username: str,
        fold: str,
        fingerprint: str | None,
        *,
        is_system: bool = False,
    ) -> Identity:
        now = self._clock.now()
        platform = await store.platform_domain(conn)
        if platform is None:
            raise PostroomError("unavailable", message="The deployment has not been set up.")
        wanted = [(f"{username}{tenant.address_suffix}", platform)]
        if new.domain is not None:
            wanted.insert(0, (username, await ready_domain(conn, tenant.id, new.domain)))
        public_id = self._ids.new("idn_")
        identity_id = await store.insert(
            conn, tenant.id, public_id, new, username, fold, fingerprint, now, is_system=is_system
        )
        for address in sorted(f"{local_part}@{domain.name}" for local_part, domain in wanted):
            await check_free(conn, self._hash_key, address, tenant.id, identity_id)
        for at, (local_part, domain) in enumerate(wanted):
            role = AddressRole.ALIAS if at else AddressRole.PRIMARY
            await store.insert_address(
                conn,
                tenant.id,
                identity_id,
                self._ids.new("adr_"),
                local_part,
                domain,
                role,
                AddressStatus.ACTIVE,
                now,
            )
        await self._mailbox_factory(
            conn, NewMailbox(tenant.id, identity_id, tenant.public_id, public_id, new.kind, is_system, now)
        )
        identity = _found(await store.get(conn, PLATFORM_SCOPE, public_id))
        if not is_system:
            await self._announce(conn, Announcement(Fact.IDENTITY_CREATED, identity, now))
        return identity

    async def _record_update(
        self,
        conn: Connection,
        before: Identity,
        after: Identity,
        changed: tuple[str, ...],
        by: Actor,
        now: datetime,
    ) -> None:
        """Write down what a change did, if it did anything."""
        if after.status is not before.status:
            changed = (*changed, "status")
            was = None if before.pause_reason is None else before.pause_reason.value
            await self._record(
                conn,
                "identity.update",
                after,
                by,
                now,
                changed=" ".join(changed),
                status=after.status.value,
                reason=was,
            )
        elif changed:
            await self._record(conn, "identity.update", after, by, now, changed=" ".join(changed))

    async def _record(
        self, conn: Connection, action: str, identity: Identity, by: Actor, now: datetime, **details: str | None
    ) -> None:
        entry = audit.Entry(action, "identity", identity.public_id, identity.tenant_id, details)
        await audit.record(conn, self._ids, now, by, entry)

    async def _set_status(
        self,
        conn: Connection,
        identity: Identity,
        status: IdentityStatus,
        reason: PauseReason | None,
        now: datetime,
    ) -> Identity:
        await store.set_status(conn, identity.tenant_id, identity.id, status, reason, now)
        after = _found(await store.get(conn, PLATFORM_SCOPE, identity.public_id))
        fact = Fact.IDENTITY_PAUSED if status is IdentityStatus.PAUSED else Fact.IDENTITY_RESUMED
        await self._announce(conn, Announcement(fact, after, now))
        return after


async def writable(conn: Connection, scope: Scope, public_id: str, *, lock: bool = True) -> Identity:
    """An identity in scope that may be changed, its row locked unless told otherwise.

    Raises `identity_not_found`, also for one that is being deleted (inbound §2.1); `scope_denied` for the system's own,
    which setup alone writes (inbound §2.4).
    """
    identity = _found(await store.get(conn, scope, public_id, lock=lock))
    if identity.status in (IdentityStatus.DELETING, IdentityStatus.DELETED):
        raise PostroomError("identity_not_found")
    if identity.is_system:
        raise PostroomError("scope_denied", details={"reason": "system_identity"})
    return identity


async def ready_domain(conn: Connection, tenant_id: int, public_id: str) -> rules.DomainRow:
    """A domain of the tenant that receives mail, and does until the end of the transaction. Raises `domain_not_found`,
    `domain_not_ready`.
    """
    domain = await store.hold_domain(conn, tenant_id, public_id)
    if domain is None:
        raise PostroomError("domain_not_found")
    if not rules.receives(domain):
        raise PostroomError("domain_not_ready")
    return domain


def _found(identity: Identity | None) -> Identity:
    if identity is None:
        raise PostroomError("identity_not_found")
    return identity


async def _may_lift(conn: Connection, scope: Scope, identity: Identity) -> bool:
    """Whether a pause for abuse is the caller's to lift."""
    if scope.level in (Level.PLATFORM, Level.IDENTITY):
        return scope.level is Level.PLATFORM
    tenant = await tenant_store.get_by_id(conn, identity.tenant_id)
    return tenant is not None and tenant.partner_id is None
