"""Sessions of people and the devices they are on (mail-server F2, F6; decisions A2, D7).

The token is opaque; the row is read at every request, so that ending a session counts for the next one.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from postroom.accounts import tokens
from postroom.accounts.audit import Actor, Entry, record
from postroom.accounts.keys import mac
from postroom.accounts.models import (
    Device,
    Mode,
    NewDevice,
    Person,
    PersonSession,
    Principal,
    PrincipalKind,
    SessionKind,
)
from postroom.accounts.permissions import OF_GRANT, OF_MEMBER, OF_OPERATOR, GrantRole, Level, Permission
from postroom.accounts.store import passkeys as passkey_store
from postroom.accounts.store import people as people_store
from postroom.accounts.store import reach as reach_store
from postroom.accounts.store import sessions as store
from postroom.accounts.text import check_name, invalid
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator, is_id
from postroom.db import Connection, Database

ROLLING: Final = timedelta(days=7)
ABSOLUTE: Final = timedelta(days=30)
KEPT: Final = timedelta(days=30)
"""How long an ended session stays in the database (data-model)."""
SEEN_INTERVAL: Final = timedelta(seconds=60)
MAX_DEVICE_UID: Final = 128
MAX_DEVICE_TEXT: Final = 128
MAX_USER_AGENT: Final = 256
MAX_PAGE: Final = 101
"""A page of a hundred, and one more that tells whether another follows."""

First = Callable[[Connection], Awaitable[None]]
"""What is done first in a transaction, and may refuse the rest."""


@dataclass(frozen=True, slots=True)
class Proved:
    """Who somebody proved to be, and how; `epoch` is the person's at that moment."""

    person_id: int
    person_public_id: str
    epoch: int
    second_factor: bool = False
    app_password_id: int | None = None
    passkey_id: int | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a sign-in comes from."""

    ip: str
    user_agent: str | None = None
    kind: SessionKind = SessionKind.WEB
    device: NewDevice | None = None


class Sessions:
    """`changed` is told the id of a person whose connections are to be looked at again."""

    def __init__(
        self,
        db: Database,
        ids: IdGenerator,
        clock: Clock,
        pepper: bytes,
        random: Callable[[int], bytes] = os.urandom,
        changed: Callable[[str], None] = lambda person: None,
    ) -> None:
        self._db, self._ids, self._clock, self._pepper, self._random = db, ids, clock, pepper, random
        self._changed = changed

    async def open(self, proved: Proved, origin: Origin) -> tuple[str, PersonSession]:
        """A new session and its token, which is stored nowhere. Raises `invalid_credentials` when what was proved was
        undone meanwhile, `invalid_request` for a device that is none.
        """
        if origin.device is not None:
            check_device(origin.device)
        token = tokens.draw_session(self._random)
        token_hash = mac(self._pepper, token)
        now = self._clock.now()
        agent = None if origin.user_agent is None else origin.user_agent[:MAX_USER_AGENT]
        async with self._db.transaction() as conn:
            device_id = None
            if origin.device is not None:
                device_id = await store.put_device(conn, self._ids.new("dev_"), proved.person_id, origin.device, now)
            made = store.NewSession(
                public_id=self._ids.new("ses_"),
                token_hash=token_hash,
                person_id=proved.person_id,
                epoch=proved.epoch,
                kind=origin.kind,
                second_factor=proved.second_factor,
                app_password_id=proved.app_password_id,
                device_id=device_id,
                ip=origin.ip,
                user_agent=agent,
                now=now,
                rolling=ROLLING,
                absolute=ABSOLUTE,
                passkey_id=proved.passkey_id,
            )
            if not await _passkey_counts(conn, proved):
                raise PostroomError("invalid_credentials")
            if not await store.insert(conn, made):
                raise PostroomError("invalid_credentials")
            session = await store.find(conn, token_hash, now)
        if session is None:
            raise PostroomError("invalid_credentials")
        return token, session

    async def verify(self, token: str) -> PersonSession:
        """The live session of a token. Raises `unauthenticated`, whatever is wrong with it."""
        if not tokens.is_session(token):
            raise PostroomError("unauthenticated")
        now = self._clock.now()
        async with self._db.acquire() as conn:
            session = await store.find(conn, mac(self._pepper, token), now)
            if session is None:
                raise PostroomError("unauthenticated")
            if now - session.last_seen_at >= SEEN_INTERVAL:
                await store.seen(conn, session.id, now, now + ROLLING)
        return session

    async def person(self, session: PersonSession) -> Person:
        """Whose session it is."""
        async with self._db.acquire() as conn:
            person = await people_store.get(conn, session.person_public_id, None)
        if person is None:
            raise PostroomError("unauthenticated")
        return person

    # -- what a session may do (decisions A2, section E)

    def as_person(self, session: PersonSession) -> Principal:
        """The person as such: for their own account, with no right to anything else."""
        return Principal(
            kind=PrincipalKind.PERSON,
            public_id=session.person_public_id,
            row_id=session.person_id,
            level=Level.IDENTITY,
            permissions=frozenset(),
            session=session,
        )

    def as_grantee(self, session: PersonSession) -> Principal:
        """The person among the mailboxes that are granted to them, in no tenant."""
        return Principal(
            kind=PrincipalKind.PERSON,
            public_id=session.person_public_id,
            row_id=session.person_id,
            level=Level.IDENTITY,
            permissions=frozenset({Permission.IDENTITIES_READ}),
            session=session,
        )

    def as_operator(self, session: PersonSession) -> Principal | None:
        """Whoever runs the deployment, and gave a second factor; else None."""
        if not (session.is_operator and session.second_factor):
            return None
        return Principal(
            kind=PrincipalKind.PERSON,
            public_id=session.person_public_id,
            row_id=session.person_id,
            level=Level.PLATFORM,
            permissions=OF_OPERATOR,
            session=session,
        )

    async def at_identity(self, session: PersonSession, identity: str) -> Principal | None:
        """The person in a mailbox that is granted to them; None for any other."""
        if not is_id("idn_", identity):
            return None
        async with self._db.acquire() as conn:
            reached = await reach_store.reached_identity(conn, session.person_id, identity)
        if reached is None or reached.tenant_status.is_gone:
            return None
        role = GrantRole(reached.role)
        return self._principal(session, reached, Level.IDENTITY, OF_GRANT[role], role)

    async def at_tenant(self, session: PersonSession, tenant: str) -> Principal | None:
        """The person as a member of a tenant; None where they are none. Raises `permission_denied` to owners and
        administrators who gave no second factor (A4).
        """
        if not is_id("ten_", tenant) or session.app_password_id is not None:
            return None
        async with self._db.acquire() as conn:
            reached = await reach_store.reached_tenant(conn, session.person_id, tenant)
        if reached is None or reached.tenant_status.is_gone:
            return None
        rights = OF_MEMBER[reached.role]
        if rights and not session.second_factor:
            raise PostroomError("permission_denied", details={"reason": "second_factor_required"})
        return self._principal(session, reached, Level.TENANT, rights, None)

    def _principal(
        self,
        session: PersonSession,
        reached: reach_store.Reached,
        level: Level,
        rights: frozenset[Permission],
        grant: GrantRole | None,
    ) -> Principal:
        return Principal(
            kind=PrincipalKind.PERSON,
            public_id=session.person_public_id,
            row_id=session.person_id,
            level=level,
            permissions=rights,
            mode=Mode(reached.tenant_mode),
            tenant_id=reached.tenant_id,
            tenant_public_id=reached.tenant_public_id,
            tenant_status=reached.tenant_status,
            identity_id=reached.identity_id,
            identity_public_id=reached.identity_public_id,
            grant=grant,
            session=session,
        )

    # -- lists, and ends

    def announce(self, person_public_id: str) -> None:
        """What the person is signed in with changed: connections are to be looked at again."""
        self._changed(person_public_id)

    async def page(
        self, person_id: int, *, limit: int = 25, after: tuple[datetime, str] | None = None
    ) -> list[PersonSession]:
        """Live sessions, newest first."""
        async with self._db.acquire() as conn:
            return await store.page(conn, person_id, self._clock.now(), min(max(limit, 1), MAX_PAGE), after)

    async def close(self, session: PersonSession) -> None:
        """Sign out. The device stays known (F6)."""
        async with self._db.transaction() as conn:
            await store.revoke(conn, session.person_id, session.public_id, self._clock.now())

    async def revoke(self, person: Person, public_id: str, by: Actor) -> None:
        """End a session. Raises `session_not_found`, the second time too."""
        now = self._clock.now()
        async with self._db.transaction() as conn:
            if not await store.revoke(conn, person.id, public_id, now):
                raise PostroomError("session_not_found")
            entry = Entry("session.revoke", "session", public_id, details={"person": person.public_id})
            await record(conn, self._ids, now, by, entry)

    async def revoke_all(
        self, person: Person, by: Actor, *, but: int | None = None, first: First | None = None
    ) -> None:
        """End every session, but the one of that key, and every connection of mail programs. Those that have an
        application password, or the password, may come again. `first` is done first in the transaction.
        """
        now = self._clock.now()
        async with self._db.transaction() as conn:
            if first is not None:
                await first(conn)
            await people_store.raise_epoch(conn, person.id)
            await store.revoke_all(conn, person.id, now, but=but)
            await record(conn, self._ids, now, by, Entry("session.revoke_all", "person", person.public_id))
        self._changed(person.public_id)

    async def devices(
        self, person_id: int, *, limit: int = 25, after: tuple[datetime, str] | None = None
    ) -> list[Device]:
        """Newest first; revoked ones stay in the list."""
        async with self._db.acquire() as conn:
            return await store.devices(conn, person_id, min(max(limit, 1), MAX_PAGE), after)

    async def revoke_device(self, person: Person, public_id: str, by: Actor) -> None:
        """Revoke a device and end its sessions, together. Raises `device_not_found`, the second time too."""
        now = self._clock.now()
        async with self._db.transaction() as conn:
            if not await store.revoke_device(conn, person.id, public_id, now):
                raise PostroomError("device_not_found")
            entry = Entry("device.revoke", "device", public_id, details={"person": person.public_id})
            await record(conn, self._ids, now, by, entry)

    async def prune(self) -> None:
        """Delete what ended a month ago, a batch at a time."""
        async with self._db.transaction() as conn:
            await store.prune(conn, self._clock.now() - KEPT)


async def _passkey_counts(conn: Connection, proved: Proved) -> bool:
    """Whether nobody has removed the passkey that was shown; who would now waits until the session is there."""
    if proved.passkey_id is None:
        return True
    if not await people_store.lock(conn, proved.person_id, proved.epoch):
        return False
    return await passkey_store.is_there(conn, proved.person_id, proved.passkey_id)


def check_device(device: NewDevice) -> None:
    """Raises `invalid_request` unless the device has an id of its own and a name (F6)."""
    check_name("device.device_uid", device.device_uid, MAX_DEVICE_UID)
    check_name("device.name", device.name, MAX_DEVICE_TEXT)
    for path, value in (("device.platform", device.platform), ("device.client_version", device.client_version)):
        if value is not None:
            check_name(path, value, MAX_DEVICE_TEXT)
    if device.platform is not None and not device.platform.isascii():
        raise invalid("device.platform", "must be ASCII")
