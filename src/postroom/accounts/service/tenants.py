"""Tenants: made, read, changed, suspended and resumed, and their policy written (rest-api §5.2; A3.8; FR-TEN-1–4).

`caller` None is the command line, which may do what a platform key may.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from zoneinfo import available_timezones

import asyncpg

from postroom.accounts import policy_rules
from postroom.accounts.audit import HOST, Actor, Entry, record
from postroom.accounts.models import (
    BillingMode,
    Mode,
    NewTenant,
    Principal,
    PrincipalKind,
    Tenant,
    TenantChanges,
    TenantStatus,
)
from postroom.accounts.names import check_slug, suffix_of
from postroom.accounts.permissions import Level
from postroom.accounts.policy import StoredPolicy
from postroom.accounts.service.partners import admit
from postroom.accounts.service.policies import Announce, PolicyWritten, silent
from postroom.accounts.store import tenants as store
from postroom.accounts.text import check_name, invalid
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database

MAX_NAME: Final = 128
MAX_PAGE: Final = 101
"""A page of 100, and whether another follows."""
DEFAULT_SLUGS: Final = ("default", "deployment")
ATTEMPTS: Final = 3
"""Of writing a policy that others write at the same time (J27)."""

Then = Callable[[Connection, Tenant], Awaitable[None]]
Follow = Callable[[Connection, Tenant, datetime], Awaitable[None]]
"""What follows in the same transaction when a tenant was suspended or resumed: so are its identities."""

_TAKEN: Final = {
    "tenants_slug_key": "slug_taken",
    "tenants_address_suffix_key": "suffix_taken",
    "tenants_suffix_fold": "suffix_taken",
}


class _LostRaceError(Exception):
    """Somebody else wrote the policy meanwhile."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change that was asked for, read."""

    asked: TenantChanges
    patch: policy_rules.Patch | None
    caller: Principal | None
    by: Actor
    follow: Follow | None

    @property
    def level(self) -> Level:
        return _level(self.caller)

    @property
    def is_person(self) -> bool:
        return self.caller is not None and self.caller.kind is PrincipalKind.PERSON


class Tenants:
    """Use cases of tenants. Callers have checked permissions, and pass keys of tenants in their own reach."""

    def __init__(
        self,
        db: Database,
        ids: IdGenerator,
        clock: Clock,
        stance: policy_rules.Stance | None = None,
        *,
        announce: Announce = silent,
        changed: Callable[[str], None] = lambda tenant: None,
        policy_changed: Callable[[str], None] = lambda tenant: None,
    ) -> None:
        """`announce` writes the event of a policy. After a commit, `changed` is told the id of a tenant that was
        suspended or resumed, `policy_changed` that of one whose policy was written.
        """
        self._db, self._ids, self._clock = db, ids, clock
        self.stance = policy_rules.Stance() if stance is None else stance
        self._announce, self._changed, self._policy_changed = announce, changed, policy_changed

    async def create(
        self, new: NewTenant, *, caller: Principal | None = None, by: Actor = HOST, then: Then | None = None
    ) -> Tenant:
        """A new tenant; a partner's key makes one of its partner. `then` is done in the transaction.

        Raises `invalid_request`, `address_reserved`, `slug_taken` or `suffix_taken` (D12), the refusals of
        `policy_rules.write`; of a partner's key `scope_denied` when it says how to bill, `partner_tenant_limit`,
        `partner_suspended`.
        """
        check_slug(new.slug)
        check_name("name", new.name, MAX_NAME)
        _check_timezone(new.timezone)
        suffix, fold = suffix_of(new.slug, new.address_suffix, default_tenant=new.is_default)
        level, partner_id = _level(caller), None
        if level is Level.PARTNER:
            assert caller is not None
            assert caller.partner_id is not None
            partner_id = caller.partner_id
            if new.billing_mode is not None:
                raise PostroomError("scope_denied", details={"field": "billing"})
        policy = StoredPolicy()
        if new.policy:
            patch = policy_rules.parse(new.policy, "policy.")
            writer = policy_rules.Writer(level)
            policy = policy_rules.write(policy, self.stance.defaults, patch, writer).stored
        billing = BillingMode.DISABLED if new.billing_mode is None else new.billing_mode
        now = self._clock.now()
        try:
            async with self._db.transaction() as conn:
                if partner_id is not None:
                    billing = (await admit(conn, partner_id)).default_billing_mode
                made = await store.insert(
                    conn, self._ids.new("ten_"), new, suffix, fold, policy, billing, partner_id, now
                )
                details = {"partner_id": made.partner_public_id, "mode": made.mode.value}
                await record(
                    conn, self._ids, now, by, Entry("tenant.create", "tenant", made.public_id, made.id, details)
                )
                if then is not None:
                    await then(conn, made)
                return made
        except asyncpg.UniqueViolationError as exc:
            code = _TAKEN.get(exc.constraint_name or "")
            if code is None:
                raise
            raise PostroomError(code) from None

    async def get(self, public_id: str) -> Tenant:
        """Raises `tenant_not_found`."""
        async with self._db.acquire() as conn:
            return _found(await store.get(conn, public_id))

    async def get_by_slug(self, slug: str) -> Tenant:
        """Raises `tenant_not_found`."""
        async with self._db.acquire() as conn:
            return _found(await store.get_by_slug(conn, slug))

    async def default(self) -> Tenant:
        """The tenant without a suffix, whose is what belongs to the deployment; made where there is none yet. Raises
        `slug_taken` when others have all the names for it.
        """
        for slug in DEFAULT_SLUGS:
            async with self._db.acquire() as conn:
                found = await store.get_default(conn)
            if found is not None:
                return found
            try:
                return await self.create(NewTenant(slug=slug, name="Default", is_default=True))
            except PostroomError as error:
                if error.code not in ("slug_taken", "suffix_taken"):
                    raise
        async with self._db.acquire() as conn:
            found = await store.get_default(conn)
        if found is None:
            raise PostroomError("slug_taken")
        return found

    async def page(self, *, limit: int = 25, after: tuple[datetime, str] | None = None) -> list[Tenant]:
        """Tenants that are not erased, newest first; `after` is creation time and public id of the last one seen."""
        async with self._db.acquire() as conn:
            return await store.page(conn, min(max(limit, 1), MAX_PAGE), after)

    async def search(
        self,
        *,
        status: TenantStatus | None = None,
        mode: Mode | None = None,
        partner_id: int | None = None,
        limit: int = 25,
        after: tuple[datetime, str] | None = None,
    ) -> list[Tenant]:
        """As `page`, of any status, as far as they are what is asked for."""
        async with self._db.acquire() as conn:
            return await store.search(
                conn, min(max(limit, 1), MAX_PAGE), after, status=status, mode=mode, partner_id=partner_id
            )

    async def is_hosted(self, domain: str) -> bool:
        """Whether mail to the domain comes here, so that nobody proves with it who they are (W45)."""
        async with self._db.acquire() as conn:
            return await store.is_hosted(conn, domain)

    async def update(
        self,
        tenant_id: int,
        changes: TenantChanges,
        *,
        follow: Follow,
        caller: Principal | None = None,
        by: Actor = HOST,
    ) -> Tenant:
        """Everything that is asked for, or nothing. `follow` is done when the tenant was suspended or resumed.

        Raises `invalid_request`; `tenant_erased`, to others than the platform `tenant_not_found`; `scope_denied` when a
        partner would lift what the platform did (J17); the refusals of `policy_rules.write`; `domain_in_use` for a zone
        that has domains (H13); `unavailable` when others were faster three times (J27).
        """
        if changes.name is not None:
            check_name("name", changes.name, MAX_NAME)
        if changes.timezone is not None:
            _check_timezone(changes.timezone)
        patch = None if changes.policy is None else policy_rules.parse(changes.policy, "policy.")
        return await self._write(tenant_id, _Change(changes, patch, caller, by, follow))

    async def change_policy(
        self, tenant_id: int, document: Mapping[str, Any], *, caller: Principal | None = None, by: Actor = HOST
    ) -> Tenant:
        """Write the policy alone, as whoever may. Raises as `update`."""
        patch = policy_rules.parse(document)
        return await self._write(tenant_id, _Change(TenantChanges(), patch, caller, by, None))

    async def _write(self, tenant_id: int, change: _Change) -> Tenant:
        for _ in range(ATTEMPTS):
            try:
                async with self._db.transaction() as conn:
                    after, has_moved = await self._attempt(conn, tenant_id, change, self._clock.now())
            except _LostRaceError:
                continue
            if has_moved:
                self._changed(after.public_id)
            if change.patch is not None:
                self._policy_changed(after.public_id)
            return after
        raise PostroomError("unavailable", retry_after=1)

    async def _attempt(self, conn: Connection, tenant_id: int, change: _Change, now: datetime) -> tuple[Tenant, bool]:
        """The tenant afterwards, and whether it was suspended or resumed."""
        asked, has_moved = change.asked, False
        # A policy is not read under a lock: checking takes its time, and whoever comes second sees it (J27).
        read = store.lock if change.patch is None else store.get_by_id
        before = _writable(await read(conn, tenant_id), change.level)
        if change.patch is not None:
            await self._write_policy(conn, before, change.patch, change, now)
        if asked.resume_sending:
            if change.level is not Level.PLATFORM:
                raise PostroomError("scope_denied", details={"field": "sending_paused"})
            await store.resume_sending(conn, tenant_id, now)
        if asked.name is not None or asked.timezone is not None:
            await store.set_names(conn, tenant_id, asked.name, asked.timezone, now)
        if asked.status is not None:
            assert change.follow is not None
            move = suspend if asked.status is TenantStatus.SUSPENDED else resume
            moved, has_moved = await move(conn, tenant_id, _side(change.level), now)
            if has_moved:
                await change.follow(conn, moved, now)
        after = _found(await store.get_by_id(conn, tenant_id))
        fields = [name for name in ("name", "timezone", "status") if getattr(asked, name) is not None]
        fields += ["sending_paused"] if asked.resume_sending else []
        if fields:
            details: dict[str, Any] = {"fields": fields}
            if asked.status is not None:
                details["status"] = [before.status.value, after.status.value]
                details["suspended_by"] = after.suspended_by
            await record(
                conn, self._ids, now, change.by, Entry("tenant.update", "tenant", after.public_id, after.id, details)
            )
        return after, has_moved

    async def _write_policy(
        self, conn: Connection, before: Tenant, patch: policy_rules.Patch, change: _Change, now: datetime
    ) -> None:
        defaults = self.stance.defaults
        writer = self.stance.writer(change.level, before.policy, is_person=change.is_person)
        written = policy_rules.write(before.policy, defaults, patch, writer)
        zones = {*before.policy.under(defaults).domains_dns_zones} - {*written.stored.under(defaults).domains_dns_zones}
        if zones and (used := await store.domains_in(conn, before.id, sorted(zones))):
            raise PostroomError("domain_in_use", details={"reason": "zone_has_domains", "domain_ids": used})
        if await store.set_policy(conn, before.id, before.policy_version, written.stored, now) is None:
            raise _LostRaceError
        details: dict[str, Any] = {
            "fields": list(written.paths),
            "changes": [{"field": one.path, "from": one.before, "to": one.after} for one in written.changes],
            "level": change.level.value,
            "via": "cli" if change.caller is None else "api",
        }
        entry = Entry("tenant.policy_update", "tenant", before.public_id, before.id, details)
        await record(conn, self._ids, now, change.by, entry)
        after = _found(await store.get_by_id(conn, before.id))
        await self._announce(conn, PolicyWritten(after, written, change.by, change.level))


def _level(caller: Principal | None) -> Level:
    return Level.PLATFORM if caller is None else caller.level


def _side(level: Level) -> str:
    return "partner" if level is Level.PARTNER else "platform"


def _check_timezone(name: str) -> None:
    if name not in available_timezones():
        raise invalid("timezone", "must be the name of an IANA time zone")


def _writable(tenant: Tenant | None, level: Level) -> Tenant:
    """Of a tenant that is erased, or being so, only the platform is told what it is (I8)."""
    tenant = _found(tenant)
    if tenant.status.is_gone:
        raise PostroomError("tenant_erased" if level is Level.PLATFORM else "tenant_not_found")
    return tenant


async def suspend(conn: Connection, tenant_id: int, by: str, now: datetime) -> tuple[Tenant, bool]:
    """Inside the caller's transaction: the tenant suspended, and whether it was active before.

    `by` is `platform` or `partner`. A platform's suspension replaces a partner's and keeps its time; otherwise a
    second one changes nothing (inbound §2.1). Raises `tenant_not_found`, `tenant_erased`.
    """
    tenant = await _locked(conn, tenant_id)
    if tenant.status is TenantStatus.SUSPENDED:
        if by == "platform" and tenant.suspended_by == "partner":
            tenant = await _set(conn, tenant_id, TenantStatus.SUSPENDED, tenant.suspended_at, by, now)
        return tenant, False
    return await _set(conn, tenant_id, TenantStatus.SUSPENDED, now, by, now), True


async def resume(conn: Connection, tenant_id: int, by: str, now: datetime) -> tuple[Tenant, bool]:
    """Inside the caller's transaction: the tenant active again, and whether it was suspended.

    Raises `scope_denied` when a partner would lift the platform's suspension (J17), `tenant_not_found`,
    `tenant_erased`.
    """
    tenant = await _locked(conn, tenant_id)
    if tenant.status is TenantStatus.ACTIVE:
        return tenant, False
    if by == "partner" and tenant.suspended_by == "platform":
        raise PostroomError("scope_denied", details={"field": "status"})
    return await _set(conn, tenant_id, TenantStatus.ACTIVE, None, None, now), True


async def _locked(conn: Connection, tenant_id: int) -> Tenant:
    tenant = _found(await store.lock(conn, tenant_id))
    if tenant.status.is_gone:
        raise PostroomError("tenant_erased")
    return tenant


async def _set(
    conn: Connection,
    tenant_id: int,
    status: TenantStatus,
    suspended_at: datetime | None,
    by: str | None,
    now: datetime,
) -> Tenant:
    return _found(await store.set_status(conn, tenant_id, status, suspended_at, by, now))


def _found(tenant: Tenant | None) -> Tenant:
    if tenant is None:
        raise PostroomError("tenant_not_found")
    return tenant
