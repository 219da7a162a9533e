"""What people do with their own account (decisions E, mail-server F). The caller is a session; one that an application
password opened may look, and change no credential (F5).

Whoever has a second factor, a code or a passkey, changes credentials with it alone (A4): who has their password is kept
out by it, and must not make a way past it. Where a code is on and the operation takes one, it is asked for; elsewhere
the session has to be one that was opened with a second factor. Ending sessions and devices takes away, and wants
neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from postroom.accounts.audit import Actor, Entry, record
from postroom.accounts.models import AppPassword, Person, PersonSession
from postroom.accounts.passkeys import Passkey, Registration
from postroom.accounts.passwords import HashingOverloaded, Passwords, check_policy
from postroom.accounts.service.app_passwords import AppPasswords, check_label
from postroom.accounts.service.entrance import Entrance
from postroom.accounts.service.passkeys import Options, Passkeys
from postroom.accounts.service.people import check_display_name
from postroom.accounts.service.sessions import Sessions
from postroom.accounts.service.two_step import Enrolment, TwoStep
from postroom.accounts.store import people as people_store
from postroom.accounts.store import reach
from postroom.accounts.store import sessions as session_store
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database

MAX_PAGE: Final = 101
"""A page of a hundred, and one more that tells whether another follows."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A session and where its request comes from."""

    session: PersonSession
    remote: str
    request_id: str | None = None

    @property
    def actor(self) -> Actor:
        return Actor(person=self.session.person_public_id, request_id=self.request_id)


class Account:
    """Use cases of one's own account."""

    def __init__(
        self,
        db: Database,
        ids: IdGenerator,
        clock: Clock,
        passwords: Passwords,
        entrance: Entrance,
        sessions: Sessions,
        two_step: TwoStep,
        app_passwords: AppPasswords,
        passkeys: Passkeys,
    ) -> None:
        self._db, self._ids, self._clock, self._passwords = db, ids, clock, passwords
        self.entrance, self.sessions = entrance, sessions
        self.two_step, self.app_passwords, self.passkeys = two_step, app_passwords, passkeys

    async def rename(self, caller: Caller, display_name: str) -> Person:
        """Raises `invalid_request`."""
        check_display_name(display_name)
        async with self._db.transaction() as conn:
            person = await people_store.rename(conn, caller.session.person_id, display_name, self._clock.now())
        if person is None:
            raise PostroomError("unauthenticated")
        return person

    async def mailboxes(
        self, person_id: int, *, limit: int = 25, after: tuple[datetime, str] | None = None
    ) -> list[reach.MailboxOf]:
        """Mailboxes that the person may open, the newest grant first."""
        async with self._db.acquire() as conn:
            return await reach.mailboxes(conn, person_id, min(max(limit, 1), MAX_PAGE), after)

    async def change_password(self, caller: Caller, current: str, new: str) -> None:
        """A new password. Every other session ends, and every connection of a mail program (F1).

        Raises `permission_denied` for an application password and without a second factor that the person has,
        `invalid_request`, `invalid_credentials`, `too_many_attempts`, `unavailable`.
        """
        session = caller.session
        _refuse_app_password(session)
        check_policy(new)
        known = await self._confirmed(caller, current)
        _refuse_without_second_factor(session, known)
        try:
            hashed = await self._passwords.hash(new)
        except HashingOverloaded:
            raise PostroomError("unavailable", retry_after=2) from None
        now = self._clock.now()
        async with self._db.transaction() as conn:
            if not await people_store.change_password(conn, session.person_id, known.epoch, hashed, now):
                # Somebody else was first, perhaps who reset it because it had leaked.
                raise PostroomError("invalid_credentials")
            await session_store.revoke_all(conn, session.person_id, now, but=session.id)
            entry = Entry("person.password_change", "person", session.person_public_id)
            await record(conn, self._ids, now, caller.actor, entry)
        self.sessions.announce(session.person_public_id)

    async def enrol(self, caller: Caller, password: str) -> Enrolment:
        """Wants the password once more: a session alone, which may be stolen, gains no right by a second step.

        Raises `permission_denied`, `totp_enabled`, `invalid_credentials`, `too_many_attempts`, `unavailable`.
        """
        session = caller.session
        known, person = await self._again(caller, password)
        _refuse_without_second_factor(session, known)
        return await self.two_step.enrol(person, session_id=session.id, epoch=known.epoch)

    async def confirm(self, caller: Caller, code: str) -> tuple[str, ...]:
        """The recovery codes, shown once. Raises `permission_denied` and as `TwoStep.confirm`."""
        person = await self._with_second_factor(caller)
        return await self.two_step.confirm(person, code, caller.actor, session_id=caller.session.id)

    async def disable(self, caller: Caller, password: str, code: str) -> None:
        """Wants both steps once more. Raises `permission_denied`, `totp_not_enabled`, `invalid_credentials`,
        `too_many_attempts`, `unavailable`.
        """
        known, person = await self._again(caller, password)
        _refuse_without_second_factor(caller.session, known, coded=True)
        await self.two_step.disable(person, code, caller.actor)

    async def replace_recovery_codes(self, caller: Caller, password: str, code: str) -> tuple[str, ...]:
        """Ten new ones, shown once. Raises as `disable`."""
        known, person = await self._again(caller, password)
        _refuse_without_second_factor(caller.session, known, coded=True)
        return await self.two_step.replace_codes(person, code, caller.actor)

    async def create_app_password(
        self, caller: Caller, label: str, password: str, code: str | None
    ) -> tuple[AppPassword, str]:
        """Wants the password once more, and a code where two-step verification is on: it outlives the session.

        Raises `permission_denied`, `invalid_request`, `app_password_limit_reached`, `invalid_credentials`,
        `totp_required`, `too_many_attempts`, `unavailable`.
        """
        _refuse_app_password(caller.session)
        check_label(label)
        known, person = await self._again_with_both_steps(caller, password, code)
        return await self.app_passwords.create(person, label, caller.actor, epoch=known.epoch)

    async def revoke_app_password(self, caller: Caller, public_id: str) -> None:
        """Raises `permission_denied`, `app_password_not_found`."""
        await self.app_passwords.revoke(await self._with_second_factor(caller), public_id, caller.actor)

    async def ask_to_register_passkey(self, caller: Caller, password: str, code: str | None) -> Options:
        """Wants what an application password wants: a passkey outlives the session, too, and opens more.

        Raises `permission_denied`, `passkey_limit_reached`, `invalid_credentials`, `totp_required`,
        `too_many_attempts`, `unavailable`.
        """
        known, person = await self._again_with_both_steps(caller, password, code)
        return await self.passkeys.ask_to_register(person, known.epoch)

    async def register_passkey(self, caller: Caller, name: str, answer: Registration) -> Passkey:
        """Looks again at the second factor: the person may have made another passkey since the options. A code was
        given for them, if one was on; where it was turned on since, they do not count any more.

        Raises `permission_denied` and as `Passkeys.register`.
        """
        person = await self._with_second_factor(caller, coded=True)
        return await self.passkeys.register(person, name, answer, caller.actor)

    async def rename_passkey(self, caller: Caller, public_id: str, name: str) -> Passkey:
        """Raises `permission_denied`, `invalid_request`, `passkey_not_found`."""
        await self._with_second_factor(caller)
        return await self.passkeys.rename(caller.session.person_id, public_id, name)

    async def remove_passkey(self, caller: Caller, public_id: str) -> None:
        """Raises `permission_denied`, `passkey_not_found`."""
        await self.passkeys.remove(await self._with_second_factor(caller), public_id, caller.actor)

    async def revoke_session(self, caller: Caller, public_id: str) -> None:
        """Raises `permission_denied`, `session_not_found`."""
        _refuse_app_password(caller.session)
        await self.sessions.revoke(await self.sessions.person(caller.session), public_id, caller.actor)

    async def revoke_other_sessions(self, caller: Caller) -> None:
        """Sign out everywhere else, mail programs too. Raises `permission_denied`."""
        _refuse_app_password(caller.session)
        person = await self.sessions.person(caller.session)
        await self.sessions.revoke_all(person, caller.actor, but=caller.session.id)

    async def revoke_device(self, caller: Caller, public_id: str) -> None:
        """Raises `permission_denied`, `device_not_found`."""
        _refuse_app_password(caller.session)
        await self.sessions.revoke_device(await self.sessions.person(caller.session), public_id, caller.actor)

    async def _again_with_both_steps(
        self, caller: Caller, password: str, code: str | None
    ) -> tuple[reach.Known, Person]:
        known, person = await self._again(caller, password)
        _refuse_without_second_factor(caller.session, known, coded=True)
        if known.two_step:
            if not code:
                raise PostroomError("totp_required")
            await self.two_step.check(known.person_id, known.person_public_id, code)
        return known, person

    async def _again(self, caller: Caller, password: str) -> tuple[reach.Known, Person]:
        _refuse_app_password(caller.session)
        known = await self._confirmed(caller, password)
        return known, await self.sessions.person(caller.session)

    async def _confirmed(self, caller: Caller, password: str) -> reach.Known:
        session = caller.session
        return await self.entrance.confirm_password(
            session.person_id, session.person_public_id, password, caller.remote
        )

    async def _with_second_factor(self, caller: Caller, *, coded: bool = False) -> Person:
        """Whose session it is, where no password is given again. Raises `permission_denied`."""
        session = caller.session
        _refuse_app_password(session)
        if not session.second_factor:
            async with self._db.acquire() as conn:
                known = await reach.known(conn, session.person_id)
            if known is None:
                raise PostroomError("unauthenticated")
            _refuse_without_second_factor(session, known, coded=coded)
        return await self.sessions.person(session)


def _refuse_app_password(session: PersonSession) -> None:
    if session.app_password_id is not None:
        raise PostroomError("permission_denied", details={"reason": "app_password"})


def _refuse_without_second_factor(session: PersonSession, known: reach.Known, *, coded: bool = False) -> None:
    """Raises `permission_denied` to a session of the password alone, of somebody who has more. With `coded` a code is
    asked for beside this, or was, where there are any.
    """
    if session.second_factor or not (known.has_passkey or known.two_step) or (coded and known.two_step):
        return
    raise PostroomError(
        "permission_denied",
        details={"reason": "second_factor_required"},
        message="Sign in again with the second factor, a passkey or a code: the session was opened without.",
    )
