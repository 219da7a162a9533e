"""Two-step verification: enrolled, confirmed, asked for, disabled; and the codes for when the phone is lost (F4)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from postroom.accounts import totp
from postroom.accounts.audit import Actor, Entry, record
from postroom.accounts.keys import mac
from postroom.accounts.models import Person
from postroom.accounts.service.throttle import Throttle
from postroom.accounts.store import credentials as store
from postroom.accounts.store import people as people_store
from postroom.accounts.store import sessions as session_store
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.base.sealed_columns import TOTP_PENDING, TOTP_SECRET, SealedColumn
from postroom.base.sealing import Keyring, UnsealError
from postroom.db import Connection, Database

log = base_log.get("two_step")

ENROLMENT: Final = timedelta(minutes=10)
"""How long a secret waits to be confirmed."""
RECENT: Final = timedelta(minutes=10)
"""How long ago the password may have been given in a session that a code makes one of both steps (A10)."""
CODES_A_MINUTE: Final = 5
"""Wrong codes of one person within a clock minute (security-privacy A5)."""

_RECOVERY_PREFIX: Final = "recovery:"


class TwoStepState(StrEnum):
    DISABLED = "disabled"
    PENDING = "pending"
    """A secret was shown and no code of it was given yet: nothing is asked for."""
    ENABLED = "enabled"


@dataclass(frozen=True, slots=True)
class TwoStepStatus:
    state: TwoStepState
    recovery_codes_left: int


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What an authenticator app is told. Shown once: never log it."""

    secret: str
    uri: str

    def __repr__(self) -> str:
        return "Enrolment(…)"


class TwoStep:
    """Use cases of the second step. Callers have made sure of the first, where one is wanted.

    `issuer` is how apps name this deployment; `changed` is told the id of a person whose sign-ins are to be looked at
    again.
    """

    def __init__(
        self,
        db: Database,
        ids: IdGenerator,
        clock: Clock,
        keyring: Keyring,
        pepper: bytes,
        throttle: Throttle,
        *,
        issuer: str,
        random: Callable[[int], bytes] = os.urandom,
        changed: Callable[[str], None] = lambda person: None,
    ) -> None:
        self._db, self._ids, self._clock, self._pepper, self._throttle = db, ids, clock, pepper, throttle
        self._keyring = keyring
        self._issuer, self._random, self._changed = issuer, random, changed

    async def status(self, person_id: int) -> TwoStepStatus:
        now = self._clock.now()
        async with self._db.acquire() as conn:
            row = await store.totp(conn, person_id)
            left = await store.recovery_codes_left(conn, person_id)
        if row is None:
            return TwoStepStatus(TwoStepState.DISABLED, 0)
        if row.enabled_at is not None:
            return TwoStepStatus(TwoStepState.ENABLED, left)
        pending = row.pending_until is not None and row.pending_until > now
        return TwoStepStatus(TwoStepState.PENDING if pending else TwoStepState.DISABLED, 0)

    async def enrol(self, person: Person, *, session_id: int | None = None, epoch: int | None = None) -> Enrolment:
        """A new secret, which is in force when a code of it was given within ten minutes.

        With a session, whoever has it has just given the password, while the person was at `epoch`. Raises
        `totp_enabled`; `invalid_credentials` when the password was undone meanwhile.
        """
        secret = self._random(totp.SECRET_BYTES)
        sealed = self._keyring.seal(TOTP_PENDING, secret, person.id)
        now = self._clock.now()
        async with self._db.transaction() as conn:
            if not await people_store.lock(conn, person.id, epoch):
                raise PostroomError("invalid_credentials")
            if not await store.enrol(conn, person.id, sealed, now + ENROLMENT):
                raise PostroomError("totp_enabled")
            if session_id is not None:
                await session_store.proved_again(conn, session_id, now)
        account = person.contact_email or person.display_name
        return Enrolment(totp.shown_secret(secret), totp.provisioning_uri(secret, account, self._issuer))

    async def confirm(self, person: Person, code: str, by: Actor, *, session_id: int | None = None) -> tuple[str, ...]:
        """Two-step verification is on from now on; returns the recovery codes, which nobody can be shown again.

        Whoever is signed in by mail program with the password alone is signed out; the session counts as opened with
        both steps if the password was given in it within ten minutes: one that was stolen is worth no more.

        Raises `totp_not_enabled` when nothing waits to be confirmed, `totp_enabled`, `invalid_credentials`,
        `too_many_attempts`.
        """
        async with self._tries(person.public_id), self._db.transaction() as conn:
            now = self._clock.now()
            await people_store.lock(conn, person.id)
            row = await store.totp(conn, person.id, lock=True)
            if row is not None and row.enabled_at is not None:
                raise PostroomError("totp_enabled")
            if row is None or row.pending is None or row.pending_until is None or row.pending_until <= now:
                raise PostroomError("totp_not_enabled")
            secret = self._opened(TOTP_PENDING, row.pending, person.id)
            step = totp.matching_step(secret, code, now, 0)
            if step is None:
                raise _WrongCodeError
            await store.enable(conn, person.id, self._keyring.seal(TOTP_SECRET, secret, person.id), now, step)
            codes = await self._new_codes(conn, person.id, now)
            await people_store.raise_epoch(conn, person.id)
            if session_id is not None:
                await session_store.has_second_factor(conn, session_id, now, now - RECENT)
            await record(conn, self._ids, now, by, Entry("totp.enable", "person", person.public_id))
        self._changed(person.public_id)
        return codes

    async def check(self, person_id: int, public_id: str, code: str, *counted: str) -> None:
        """Take a code of the app, or a recovery code; each counts once.

        Raises `invalid_credentials`, and counts it under `counted` too; `too_many_attempts`.
        """
        async with self._tries(public_id, *counted), self._db.transaction() as conn:
            await self._use(conn, person_id, code)

    async def disable(self, person: Person, code: str, by: Actor) -> None:
        """Without a second step from now on. Raises `totp_not_enabled`, `invalid_credentials`, `too_many_attempts`."""
        async with self._tries(person.public_id), self._db.transaction() as conn:
            await self._use(conn, person.id, code)
            await self._forget(conn, person, by)

    async def clear(self, person: Person, by: Actor) -> None:
        """As `disable`, for an operator at the host (F4). Raises `totp_not_enabled`."""
        async with self._db.transaction() as conn:
            row = await store.totp(conn, person.id, lock=True)
            if row is None or row.enabled_at is None:
                raise PostroomError("totp_not_enabled")
            await self._forget(conn, person, by)

    async def replace_codes(self, person: Person, code: str, by: Actor) -> tuple[str, ...]:
        """Ten new recovery codes; the old ones stop at once (W28). Raises as `disable`."""
        async with self._tries(person.public_id), self._db.transaction() as conn:
            await self._use(conn, person.id, code)
            now = self._clock.now()
            codes = await self._new_codes(conn, person.id, now)
            await record(conn, self._ids, now, by, Entry("recovery_codes.replace", "person", person.public_id))
        return codes

    async def prune(self) -> None:
        """Forget secrets that were never confirmed, a day after they could have been (data-model §10)."""
        async with self._db.transaction() as conn:
            await store.prune_pending(conn, self._clock.now() - timedelta(days=1))

    async def _use(self, conn: Connection, person_id: int, code: str) -> None:
        now = self._clock.now()
        row = await store.totp(conn, person_id, lock=True)
        if row is None or row.secret is None:
            raise PostroomError("totp_not_enabled")
        recovery = totp.read_recovery_code(code)
        if recovery is not None:
            if not await store.use_recovery_code(conn, person_id, self._recovery_mac(recovery), now):
                raise _WrongCodeError
            return
        step = totp.matching_step(self._opened(TOTP_SECRET, row.secret, person_id), code, now, row.last_step)
        if step is None:
            raise _WrongCodeError
        await store.use_step(conn, person_id, step)

    def _opened(self, column: SealedColumn, sealed: bytes, person_id: int) -> bytes:
        """Raises PostroomError `unavailable` when no master key opens it."""
        try:
            return self._keyring.open(column, sealed, person_id)
        except UnsealError as error:
            log.error("totp_secret_unusable", column=column.column, master_kid=error.kid)
            raise PostroomError("unavailable") from error

    async def _forget(self, conn: Connection, person: Person, by: Actor) -> None:
        await store.forget_totp(conn, person.id)
        await record(conn, self._ids, self._clock.now(), by, Entry("totp.disable", "person", person.public_id))

    async def _new_codes(self, conn: Connection, person_id: int, now: datetime) -> tuple[str, ...]:
        codes = totp.draw_recovery_codes(self._random)
        plain = [text for code in codes if (text := totp.read_recovery_code(code)) is not None]
        await store.replace_recovery_codes(conn, person_id, [self._recovery_mac(text) for text in plain], now)
        return codes

    def _recovery_mac(self, text: str) -> bytes:
        return mac(self._pepper, f"{_RECOVERY_PREFIX}{text}")

    @asynccontextmanager
    async def _tries(self, public_id: str, *counted: str) -> AsyncIterator[None]:
        """One try at a code after the other; wrong ones are counted when their transaction is undone."""
        subject = self._throttle.second_step(public_id)
        async with self._throttle.turn(subject) as mine:
            if not mine:
                raise PostroomError("unavailable", retry_after=5)
            wait = await self._throttle.locked_for(subject)
            wait = wait or await self._throttle.locked_for(subject, CODES_A_MINUTE, 0)
            if wait:
                raise PostroomError("too_many_attempts", retry_after=wait)
            try:
                yield
            except _WrongCodeError:
                await self._throttle.failed(subject, *counted)
                raise PostroomError("invalid_credentials") from None
            await self._throttle.succeeded(subject)


class _WrongCodeError(Exception):
    """Undoes the transaction of a try."""
