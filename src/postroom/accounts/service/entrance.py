"""Signing in as a person: for sessions, not mailboxes (decisions A2, A4, E; mail-server F1–F5)."""

from __future__ import annotations

from typing import Final

from postroom.accounts import contacts, tokens
from postroom.accounts.keys import mac
from postroom.accounts.models import PersonSession
from postroom.accounts.passkeys import Assertion
from postroom.accounts.passwords import MAX_LENGTH, HashingOverloaded, Passwords
from postroom.accounts.service.passkeys import PasskeyRefusedError, Passkeys
from postroom.accounts.service.sessions import Origin, Proved, Sessions
from postroom.accounts.service.sign_in import MAX_ADDRESS, MAX_CANDIDATES
from postroom.accounts.service.throttle import Throttle
from postroom.accounts.service.two_step import TwoStep
from postroom.accounts.store import credentials, reach
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.db import Database

_RETRY: Final = 5


class Entrance:
    """Opens sessions. Shares its throttle with the sign-in of mail programs, so that a guess counts wherever it is
    made.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        passwords: Passwords,
        two_step: TwoStep,
        sessions: Sessions,
        throttle: Throttle,
        pepper: bytes,
        passkeys: Passkeys,
    ) -> None:
        self._db, self._clock, self._passwords, self._passkeys = db, clock, passwords, passkeys
        self._two_step, self._sessions, self._throttle, self._pepper = two_step, sessions, throttle, pepper

    async def sign_in(self, address: str, password: str, code: str | None, origin: Origin) -> tuple[str, PersonSession]:
        """A session for whoever has the password, and the code if they have two-step verification; or an application
        password. `address` is that of a mailbox of theirs, or their contact address.

        Raises `invalid_credentials` whatever is wrong, `totp_required` when the password is right and a code is
        wanted, `too_many_attempts`, `unavailable`.
        """
        address = contacts.sought(address)
        network = self._throttle.network(origin.ip)
        _refuse_locked(await self._throttle.network_locked_for(network))
        counted, people = await self._known(address)
        account = self._throttle.account(counted or address)
        async with self._throttle.turn(account) as mine:
            if not mine:
                raise PostroomError("unavailable", retry_after=_RETRY)
            proved = await self._prove(people, account, network, password, code)
        return await self._sessions.open(proved, origin)

    async def sign_in_by_passkey(self, answer: Assertion, origin: Origin) -> tuple[str, PersonSession]:
        """A session, of both steps, for whoever's passkey it is. A right one is let in while the account is locked, and
        does not begin the count of failures anew, as with application passwords (decision 50).

        Raises `invalid_credentials` whatever is wrong, `too_many_attempts` for the network.
        """
        network = self._throttle.network(origin.ip)
        _refuse_locked(await self._throttle.network_locked_for(network))
        try:
            proved = await self._passkeys.prove(answer)
        except PasskeyRefusedError as refused:
            theirs = () if refused.person is None else (self._throttle.account(refused.person),)
            await self._throttle.failed(*theirs, network)
            raise PostroomError("invalid_credentials") from None
        return await self._sessions.open(proved, origin)

    async def confirm_password(self, person_id: int, public_id: str, password: str, remote: str) -> reach.Known:
        """The person as they are while this password is theirs. Raises `invalid_credentials`, `too_many_attempts`,
        `unavailable`; wrong ones count.
        """
        network = self._throttle.network(remote)
        account = self._throttle.confirmation(public_id)
        _refuse_locked(await self._throttle.network_locked_for(network))
        async with self._throttle.turn(account) as mine:
            if not mine:
                raise PostroomError("unavailable", retry_after=_RETRY)
            _refuse_locked(await self._throttle.locked_for(account))
            async with self._db.acquire() as conn:
                known = await reach.known(conn, person_id)
            if known is None or not await self._is_right(known.password_hash, password):
                await self._throttle.failed(account, network)
                raise PostroomError("invalid_credentials")
            await self._throttle.succeeded(account)
        return known

    async def _prove(
        self, people: list[reach.Known], account: str, network: str, password: str, code: str | None
    ) -> Proved:
        if tokens.is_app_password(password):
            proved = await self._by_app_password(people, password)
            if proved is not None:
                return proved
        tried = [known for known in people if known.password_hash is not None]
        guard = await self._throttle.guard(account, [known.person_public_id for known in tried])
        if guard.is_shut:
            _refuse_locked(guard.wait)
        known = await self._by_password([one for one in tried if one.person_public_id in guard.counted], password)
        if known is None:
            await self._throttle.failed(*guard.failing, network)
            _refuse_locked(guard.wait)  # it may have been right, of somebody who is not tried now
            raise PostroomError("invalid_credentials")
        theirs = guard.counted[known.person_public_id]
        if known.two_step:
            if not code:
                raise PostroomError("totp_required")
            await self._two_step.check(known.person_id, known.person_public_id, code, theirs, network)
        await self._throttle.succeeded(theirs)
        return Proved(known.person_id, known.person_public_id, known.epoch, second_factor=known.two_step)

    async def _known(self, address: str) -> tuple[str | None, list[reach.Known]]:
        if not 3 <= len(address) <= MAX_ADDRESS or "\0" in address or not address.isprintable():
            return None, []
        async with self._db.acquire() as conn:
            return await reach.known_by_address(conn, address, MAX_CANDIDATES)

    async def _by_app_password(self, people: list[reach.Known], password: str) -> Proved | None:
        async with self._db.acquire() as conn:
            ids = [known.person_id for known in people]
            found = await credentials.opens_account(conn, mac(self._pepper, password), list(ids))
            if found is None:
                return None
            await credentials.mark_used(conn, found.app_password_id, self._clock.now())
        return Proved(found.person_id, found.person_public_id, found.epoch, app_password_id=found.app_password_id)

    async def _by_password(self, people: list[reach.Known], password: str) -> reach.Known | None:
        if not people:
            await self._is_right(None, password)  # as long as it takes for somebody who exists
        for known in people:
            if await self._is_right(known.password_hash, password):
                return known
        return None

    async def _is_right(self, phc: str | None, password: str) -> bool:
        try:
            verified = await self._passwords.verify(phc, password[: MAX_LENGTH + 1])
        except HashingOverloaded:
            raise PostroomError("unavailable", retry_after=_RETRY) from None
        return verified.ok


def _refuse_locked(wait: int) -> None:
    if wait:
        raise PostroomError("too_many_attempts", retry_after=wait)
