"""Use cases of endpoints: made, listed, changed, deleted, given a new secret, tried (events-webhooks-errors §5, §11).

Callers have checked `webhooks:manage` or `webhooks:read`. What one must hold beside it depends on the events that the
endpoint gets, and is asked here. A caller None is the command line, who reaches everything.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from postroom.accounts.audit import Actor, Entry, record
from postroom.accounts.models import PLATFORM_SCOPE, Principal
from postroom.accounts.partners import Partner
from postroom.accounts.permissions import Level, Permission
from postroom.accounts.text import check_text, invalid
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator, is_id
from postroom.base.sealed_columns import WEBHOOK_PREVIOUS, WEBHOOK_SECRET
from postroom.base.sealing import Keyring, UnsealError
from postroom.db.pool import Connection, Database
from postroom.events.catalogue import envelope
from postroom.events.registry import TEST
from postroom.events.settled import present
from postroom.events.webhooks import attempts, signing, store
from postroom.events.webhooks.models import Answered, Attempt, AttemptStatus, DisabledReason, Endpoint
from postroom.events.webhooks.rules import needed, needed_to_change
from postroom.events.webhooks.sending import Sender
from postroom.events.webhooks.store import Owner, Sealed
from postroom.net.guard import Refusal
from postroom.net.guarded_http import Code, GuardedClient

MAX_PAGE: Final = 101
"""A page of a hundred, and one more that tells whether another follows."""
MAX_OVERLAP_HOURS: Final = 168
DEFAULT_OVERLAP_HOURS: Final = 24
MAX_DESCRIPTION: Final = 1024
MAX_IDENTITIES: Final = 1000
Made = Callable[[Connection, Endpoint, str], Awaitable[None]]
"""What is done in the transaction of a change, told the endpoint and its new secret."""
Tried = Callable[[Connection, Attempt], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """What somebody asks for."""

    url: str
    events: tuple[str, ...]
    identity_ids: tuple[str, ...] | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be other; `names` says which of the members count."""

    names: frozenset[str]
    url: str = ""
    events: tuple[str, ...] = ()
    identity_ids: tuple[str, ...] | None = None
    description: str | None = None
    enabled: bool = True


class Endpoints:
    """What is done is audited in its own transaction. `changed` is called after a commit."""

    def __init__(
        self,
        database: Database,
        ids: IdGenerator,
        clock: Clock,
        keyring: Keyring,
        client: GuardedClient,
        *,
        random: Callable[[int], bytes] = os.urandom,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._database, self._ids, self._clock, self._keyring = database, ids, clock, keyring
        self._client, self._random, self._changed = client, random, changed
        self._sender = Sender(clock, keyring, client.post)

    async def create(
        self, caller: Principal | None, owner: Owner, new: NewEndpoint, *, by: Actor, then: Made | None = None
    ) -> tuple[Endpoint, str]:
        """A new endpoint of the owner, who is in the caller's reach, and its secret, which is shown this once. `then`
        is done in the transaction.

        It is told of everything that is committed after this returns, and of nothing that was before it was called.

        Raises `permission_denied`, `webhook_limit_reached`, and `invalid_request` for a URL that is not asked or
        identities that are not the owner's; `unavailable` when somebody takes too long who writes events, as it could
        not be said what is before.
        """
        _require(caller, new.events)
        _check(new.description, new.identity_ids)
        await self._check_url(new.url)
        async with self._database.acquire() as conn:
            after_event = await present(conn)
        if after_event is None:
            raise PostroomError("unavailable")
        now = self._clock.now()
        secret = self._random(signing.SECRET_BYTES)
        async with self._database.transaction() as conn:
            if await store.hold_owner(conn, owner) >= store.MAX_ENDPOINTS:
                raise PostroomError("webhook_limit_reached", details={"limit": store.MAX_ENDPOINTS})
            made = await store.insert(
                *(conn, self._ids.new("whk_"), owner, new.url, new.description, new.events, new.identity_ids, now),
                after_event,
            )
            await _check_identities(conn, made)
            await store.put_secret(conn, made.id, self._keyring.seal(WEBHOOK_SECRET, secret, made.id))
            details = {"scope": made.scope.value, "host": _host(made.url), "events": list(made.events)}
            await self._audit(conn, by, "webhook.create", made, details, now)
            text = signing.secret_text(secret)
            if then is not None:
                await then(conn, made, text)
        self._changed()
        return made, text

    async def page(self, owner: Owner, *, limit: int = 25, after: tuple[datetime, str] | None = None) -> list[Endpoint]:
        """Endpoints of the owner, newest first."""
        return await endpoints_of(self._database, owner, limit=limit, after=after)

    async def get(self, caller: Principal | None, public_id: str) -> Endpoint:
        """Raises `webhook_not_found`, also for what is out of reach."""
        async with self._database.acquire() as conn:
            return await found(conn, caller, public_id)

    async def update(self, caller: Principal | None, public_id: str, changes: Changes, *, by: Actor) -> Endpoint:
        """Raises `webhook_not_found`, `permission_denied`, `invalid_request`. With another URL nothing is sent until a
        test of it succeeds."""
        names = changes.names
        if not names:
            raise invalid("", "must have at least one member")
        _check(
            changes.description if "description" in names else None,
            changes.identity_ids if "identity_ids" in names else None,
        )
        before = await self.get(caller, public_id)
        _may_change(caller, before, changes)
        if "url" in names and changes.url != before.url:
            await self._check_url(changes.url)
        now = self._clock.now()
        async with self._database.transaction() as conn:
            before = await found(conn, caller, public_id, lock=True)
            _may_change(caller, before, changes)  # of what it has become meanwhile
            made = _changed(before, changes, now)
            await _check_identities(conn, made, known=before.identity_ids)
            await store.update(conn, made, healthy=made.enabled and "enabled" in names)
            details: dict[str, Any] = {"fields": sorted(names)}
            if made.url != before.url:
                details["host"] = [_host(before.url), _host(made.url)]
            await self._audit(conn, by, "webhook.update", made, details, now)
        self._changed()
        return made

    async def delete(self, caller: Principal | None, public_id: str, *, by: Actor) -> None:
        """With all that was still to be sent, and what was. Raises `webhook_not_found`."""
        async with self._database.transaction() as conn:
            gone = await found(conn, caller, public_id, lock=True)
            await store.delete(conn, gone.id)
            await self._audit(conn, by, "webhook.delete", gone, {"host": _host(gone.url)}, self._clock.now())

    async def rotate(
        self, caller: Principal | None, public_id: str, overlap_hours: int, *, by: Actor, then: Made | None = None
    ) -> tuple[Endpoint, str]:
        """A new secret, shown this once; for the overlap what is sent is signed with the one before, too. Raises
        `webhook_not_found`."""
        if not 0 <= overlap_hours <= MAX_OVERLAP_HOURS:
            raise invalid("overlap_hours", f"must be from 0 to {MAX_OVERLAP_HOURS}")
        now, secret = self._clock.now(), self._random(signing.SECRET_BYTES)
        async with self._database.transaction() as conn:
            one = await found(conn, caller, public_id, lock=True)
            old = await store.secrets(conn, one.id)
            sealed = Sealed(self._keyring.seal(WEBHOOK_SECRET, secret, one.id))
            if overlap_hours and (previous := self._previous(one.id, old.current)) is not None:
                sealed = replace(sealed, previous=previous, previous_until=now + timedelta(hours=overlap_hours))
            await store.rotate(conn, one.id, sealed)
            await self._audit(conn, by, "webhook.rotate_secret", one, {"overlap_hours": overlap_hours}, now)
            text = signing.secret_text(secret)
            if then is not None:
                await then(conn, one, text)
        return one, text

    async def test(self, caller: Principal | None, public_id: str, *, by: Actor, then: Tried | None = None) -> Attempt:
        """One attempt, now, also of a disabled endpoint, of an event that is nothing but a test: it is not stored, nor
        sent again. A success lets an endpoint go on whose URL was changed. Raises `webhook_not_found`."""
        async with self._database.acquire() as conn:
            one = await found(conn, caller, public_id)
            sealed = await store.secrets(conn, one.id)
        event_id, now = self._ids.new("evt_"), self._clock.now()
        payload = envelope(
            event_id=event_id,
            kind=TEST,
            occurred_at=now,
            tenant_id=one.tenant_public_id,
            identity_id=None,
            sequence=None,
            data={"message": "hello"},
        )
        answered = await self._sender.send(one.id, one.url, sealed, event_id, payload)
        now = self._clock.now()
        async with self._database.transaction() as conn:
            held = await found(conn, caller, public_id, lock=True)
            resumed = (
                answered.error is None
                and held.disabled_reason is DisabledReason.URL_CHANGED
                and held.url == one.url  # another change may have come between
            )
            if resumed:
                held = replace(held, enabled=True, disabled_reason=None, updated_at=now)
                await store.update(conn, held, healthy=True)
            made = _tried(self._ids.new("dlv_"), held, event_id, answered, now)
            await attempts.insert(conn, held, made)
            details = {"status": made.status.value, "resumed": resumed}
            await self._audit(conn, by, "webhook.test", held, details, now)
            if then is not None:
                await then(conn, made)
        if resumed:
            self._changed()
        return made

    async def attempts(
        self,
        caller: Principal | None,
        public_id: str,
        filter_: attempts.Filter,
        *,
        limit: int = 25,
        after: tuple[datetime, str] | None = None,
    ) -> list[Attempt]:
        """Attempts, newest first. Raises `webhook_not_found`."""
        return await attempts_of(self._database, caller, public_id, filter_, limit=limit, after=after)

    async def _check_url(self, url: str) -> None:
        refused = await self._client.check(url)
        if refused is not None:
            raise invalid("url", URL_WORDS.get(refused, "cannot be checked now"))

    def _previous(self, key: int, sealed: bytes) -> bytes | None:
        """The current secret, sealed for its new place; None if it does not open, and so signs nothing any more."""
        try:
            return self._keyring.seal(WEBHOOK_PREVIOUS, self._keyring.open(WEBHOOK_SECRET, sealed, key), key)
        except UnsealError:
            return None

    async def _audit(
        self, conn: Connection, by: Actor, action: str, one: Endpoint, details: dict[str, Any], now: datetime
    ) -> None:
        await record(conn, self._ids, now, by, Entry(action, "webhook", one.public_id, one.tenant_id, details))


URL_WORDS: Final[dict[Refusal | Code, str]] = {
    Code.DNS: "has a host that has no address in the DNS now",
    Refusal.NO_ADDRESS: "has a host that has no address in the DNS now",
    Refusal.TOO_LONG: "is too long",
    Refusal.NOT_HTTPS: "must begin with https://",
    Refusal.MALFORMED: "is not written as a URL is",
    Refusal.USERINFO: "has a user or password in it",
    Refusal.FRAGMENT: "has a # in it",
    Refusal.IP_LITERAL: "has an IP address in place of the name of a host",
    Refusal.HOST: "has a host that is not a name of two labels or more",
    Refusal.NAME: "has a host that is not a name of the public internet",
    Refusal.PORT: "has a port other than 443 and those from 1024 on",
    Refusal.OWN_NAME: "leads back to this server",
    Refusal.ADDRESS: "has a host whose address is not on the public internet",
}


async def endpoints_of(
    database: Database, owner: Owner, *, limit: int = 25, after: tuple[datetime, str] | None = None
) -> list[Endpoint]:
    """Endpoints of the owner, newest first."""
    async with database.acquire() as conn:
        return await store.page(conn, owner, min(max(limit, 1), MAX_PAGE), after)


async def attempts_of(
    database: Database,
    caller: Principal | None,
    public_id: str,
    filter_: attempts.Filter,
    *,
    limit: int = 25,
    after: tuple[datetime, str] | None = None,
) -> list[Attempt]:
    """Attempts, newest first. Raises `webhook_not_found`."""
    async with database.acquire() as conn:
        one = await found(conn, caller, public_id)
        return await attempts.page(conn, one, filter_, min(max(limit, 1), MAX_PAGE), after)


async def end_of_partner(conn: Connection, partner: Partner, now: datetime) -> None:
    """What goes with a partner: its endpoints (J12)."""
    await store.delete_of_partner(conn, partner.id)


async def found(conn: Connection, caller: Principal | None, public_id: str, *, lock: bool = False) -> Endpoint:
    """The endpoint, if the caller reaches it. Raises `webhook_not_found`."""
    scope = PLATFORM_SCOPE if caller is None else caller.scope
    one = await store.get(conn, scope, public_id, lock=lock) if is_id("whk_", public_id) else None
    if one is None:
        raise PostroomError("webhook_not_found")
    return one


def owner_of(caller: Principal) -> Owner:
    """Whose endpoints are the caller's own: its tenant's, its partner's, or the platform's."""
    match caller.level:
        case Level.PLATFORM:
            return Owner()
        case Level.PARTNER:
            return Owner(partner_id=caller.partner_id)
        case _:
            return Owner(tenant_id=caller.tenant_id)


def may_read(caller: Principal | None, events: tuple[str, ...]) -> None:
    """Raises `permission_denied` unless the caller may have such events sent somewhere (J29)."""
    _require(caller, events)


def _require(caller: Principal | None, events: tuple[str, ...]) -> None:
    _hold(caller, needed(events))


def _may_change(caller: Principal | None, before: Endpoint, changes: Changes) -> None:
    """Raises `permission_denied`. Before `_changed` says what cannot be: who may not is told nothing else."""
    enabled = changes.enabled if "enabled" in changes.names else before.enabled
    after = replace(_named(before, changes), enabled=enabled)
    _hold(caller, needed_to_change(before, after, changes.names))


def _hold(caller: Principal | None, permissions: frozenset[Permission]) -> None:
    missing = frozenset() if caller is None else permissions - caller.permissions
    if missing:
        raise PostroomError("permission_denied", details={"required": sorted(missing)})


def _check(description: str | None, identity_ids: tuple[str, ...] | None) -> None:
    check_text("description", description, MAX_DESCRIPTION)
    if identity_ids is not None and len(identity_ids) > MAX_IDENTITIES:
        raise invalid("identity_ids", f"must name at most {MAX_IDENTITIES} identities")


async def _check_identities(conn: Connection, one: Endpoint, *, known: tuple[str, ...] | None = None) -> None:
    """Those that are added are the owner's. What is not there and what is another's are the same answer; what the
    endpoint had already may be gone by now."""
    added = set(one.identity_ids or ()) - set(known or ())
    if added and await store.count_identities(conn, one, sorted(added)) != len(added):
        raise invalid("identity_ids", "must name identities that there are")


def _named(before: Endpoint, changes: Changes) -> Endpoint:
    plain = ("url", "events", "identity_ids", "description")
    return replace(before, **{name: getattr(changes, name) for name in plain if name in changes.names})


def _changed(before: Endpoint, changes: Changes, now: datetime) -> Endpoint:
    names = changes.names
    after = replace(_named(before, changes), updated_at=now)
    if after.url != before.url or before.disabled_reason is DisabledReason.URL_CHANGED:
        # Disabling it by hand beside does not open another way round the test.
        if "enabled" in names and changes.enabled:
            raise invalid("enabled", "a changed url is enabled by a test that succeeds")
        return replace(after, enabled=False, disabled_reason=DisabledReason.URL_CHANGED)
    if "enabled" not in names:
        return after
    if changes.enabled:
        return replace(after, enabled=True, disabled_reason=None)
    return replace(after, enabled=False, disabled_reason=before.disabled_reason or DisabledReason.MANUAL)


def _tried(public_id: str, one: Endpoint, event_id: str, answered: Answered, now: datetime) -> Attempt:
    status = AttemptStatus.SUCCEEDED if answered.error is None else AttemptStatus.FAILED
    return Attempt(
        *(public_id, one.public_id, event_id, TEST, 1, status),
        *(answered.http_status, answered.error, answered.duration_ms, None, now),
    )


def _host(url: str) -> str:
    """For the audit log: never a path or a query, which may have a secret."""
    return urlsplit(url).hostname or ""
