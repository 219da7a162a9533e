"""Passkeys: made, named, removed, signed in with (WebAuthn Level 3; decisions A4, C5)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from postroom.accounts.audit import Actor, Entry, record
from postroom.accounts.models import Person
from postroom.accounts.passkeys import (
    CHALLENGE_BYTES,
    Assertion,
    CeremonyError,
    Passkey,
    Registration,
    RelyingParty,
    Shown,
    challenge_hash,
    challenge_key,
    counts_on,
    counts_until,
    known_transports,
    sign_in_challenge,
    user_handle,
)
from postroom.accounts.service.sessions import MAX_PAGE, Proved
from postroom.accounts.store import passkeys as store
from postroom.accounts.store import people as people_store
from postroom.accounts.text import check_name, invalid
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database

if TYPE_CHECKING:
    from postroom.accounts.webauthn import Ceremonies

LIFETIME: Final = timedelta(minutes=5)
"""How long a challenge counts."""
MAX_PASSKEYS: Final = 20
"""Of one person."""
MAX_NAME: Final = 128


@dataclass(frozen=True, slots=True)
class Options:
    """What a page hands to the browser, and how long the answer is waited for."""

    public_key: dict[str, Any] = field(repr=False)
    expires_at: datetime


class PasskeyRefusedError(Exception):
    """The sign-in was not accepted. `person` is the id of whoever's passkey it was not a right answer of."""

    def __init__(self, person: str | None = None) -> None:
        super().__init__()
        self.person = person


class Passkeys:
    """Use cases. Callers have made sure whose account it is; failures of signing in are the caller's to count.

    The pepper is the deployment's: what one process asks, another takes the answer to.
    """

    def __init__(
        self,
        db: Database,
        ids: IdGenerator,
        clock: Clock,
        party: RelyingParty,
        pepper: bytes,
        *,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._db, self._ids, self._clock, self._party, self._random = db, ids, clock, party, random
        self._key = challenge_key(pepper)
        self._made: Ceremonies | None = None

    async def _ceremonies(self) -> Ceremonies:
        """Made at the first use, off the loop: what it takes to make them is read from files for a twentieth of a
        second.
        """
        if self._made is None:
            self._made = await asyncio.to_thread(self._make)
        return self._made

    def _make(self) -> Ceremonies:
        from postroom.accounts.webauthn import Ceremonies  # here, for the library and its tables take 10 MiB

        return Ceremonies(self._party, timeout_ms=round(LIFETIME.total_seconds() * 1000))

    async def ask_to_register(self, person: Person, epoch: int) -> Options:
        """What a new passkey is made by; an earlier answer of the person is void. `epoch` is theirs when they proved
        who they are. Raises `passkey_limit_reached`.
        """
        ceremonies = await self._ceremonies()
        challenge, until = self._random(CHALLENGE_BYTES), self._clock.now() + LIFETIME
        async with self._db.transaction() as conn:
            known = await store.credentials(conn, person.id)
            if len(known) >= MAX_PASSKEYS:
                raise _limit()
            await store.ask_to_register(conn, challenge_hash(challenge), person.id, epoch, until)
        name = person.contact_email or person.display_name
        handle = user_handle(person.public_id)
        return Options(ceremonies.creation_options(challenge, handle, name, person.display_name, known), until)

    async def register(self, person: Person, name: str, answer: Registration, by: Actor) -> Passkey:
        """Keep what was made. The challenge is used up, whatever comes of it.

        Raises `invalid_request` for a name that is none and for an answer that does not hold or comes too late,
        `passkey_registered`, `passkey_limit_reached`; `invalid_credentials` when what was proved was undone meanwhile.
        """
        check_passkey_name(name)
        ceremonies = await self._ceremonies()
        try:
            challenge = ceremonies.challenge_of(answer.client_data)
            epoch = await self._take_to_register(person, challenge)
            made = ceremonies.register(challenge, answer)
        except CeremonyError:
            raise invalid("credential", "must be an answer, by a page of ours, to options that still count") from None
        now = self._clock.now()
        async with self._db.transaction() as conn:
            # The lock makes the count exact.
            if not await people_store.lock(conn, person.id, epoch):
                raise PostroomError("invalid_credentials")
            if await store.count(conn, person.id) >= MAX_PASSKEYS:
                raise _limit()
            transports = known_transports(answer.transports)
            kept = await store.insert(conn, self._ids.new("pky_"), person.id, made, transports, name, now)
            if kept is None:
                raise PostroomError("passkey_registered")
            entry = Entry("passkey.create", "passkey", kept.public_id, details={"person": person.public_id})
            await record(conn, self._ids, now, by, entry)
        return kept

    async def page(
        self, person_id: int, *, limit: int = 25, after: tuple[datetime, str] | None = None
    ) -> list[Passkey]:
        """Newest first."""
        async with self._db.acquire() as conn:
            return await store.page(conn, person_id, min(max(limit, 1), MAX_PAGE), after)

    async def rename(self, person_id: int, public_id: str, name: str) -> Passkey:
        """Raises `invalid_request`, `passkey_not_found`."""
        check_passkey_name(name)
        async with self._db.transaction() as conn:
            renamed = await store.rename(conn, person_id, public_id, name)
        if renamed is None:
            raise PostroomError("passkey_not_found")
        return renamed

    async def remove(self, person: Person, public_id: str, by: Actor) -> None:
        """Gone from now on; sessions that it opened end. Raises `passkey_not_found`, the second time too."""
        if not await self._remove(person, public_id, by):
            raise PostroomError("passkey_not_found")

    async def remove_all(self, person: Person, by: Actor) -> int:
        """As `remove`, of all that the person has; how many they were. For an operator at the host."""
        return await self._remove(person, None, by)

    async def ask_to_sign_in(self) -> Options:
        """For whoever has a passkey of ours. Nothing is kept: whoever asks may be anybody."""
        ceremonies, until = await self._ceremonies(), self._clock.now() + LIFETIME
        challenge = sign_in_challenge(self._key, self._random(CHALLENGE_BYTES), until)
        return Options(ceremonies.request_options(challenge), until)

    async def prove(self, answer: Assertion) -> Proved:
        """Who signs in, which counts as both steps: the authenticator is one, and verified them. A right answer uses
        the challenge up. Raises PasskeyRefusedError.
        """
        ceremonies = await self._ceremonies()
        try:
            challenge = ceremonies.challenge_of(answer.client_data)
        except CeremonyError:
            raise PasskeyRefusedError from None
        until = counts_until(self._key, challenge)
        if until is None or until <= self._clock.now():
            raise PasskeyRefusedError
        async with self._db.acquire() as conn:
            known = await store.find(conn, answer.credential_id)
        if known is None:
            raise PasskeyRefusedError
        if answer.user_handle != user_handle(known.person_public_id):
            raise PasskeyRefusedError(known.person_public_id)
        try:
            shown = ceremonies.authenticate(challenge, answer, known.credential)
        except CeremonyError:
            raise PasskeyRefusedError(known.person_public_id) from None
        await self._take(known, shown, challenge_hash(challenge), until)
        return Proved(known.person_id, known.person_public_id, known.epoch, second_factor=True, passkey_id=known.id)

    async def prune(self) -> None:
        """Forget challenges that nobody answered, and those that were taken, once they count by no process's clock."""
        now = self._clock.now()
        async with self._db.transaction() as conn:
            await store.prune(conn, now, taken_before=now - LIFETIME)

    async def _take_to_register(self, person: Person, challenge: bytes) -> int:
        async with self._db.acquire() as conn:
            epoch = await store.take_to_register(conn, challenge_hash(challenge), person.id, self._clock.now())
        if epoch is None:
            raise CeremonyError("the challenge does not count")
        return epoch

    async def _take(self, known: store.Known, shown: Shown, digest: bytes, until: datetime) -> None:
        """Take the challenge of a right answer, and write down the counter. Raises PasskeyRefusedError when the
        challenge was taken, the passkey was removed, or its counter did not go on: then it is in two places, which is
        written down, and the counter stays (§7.2 step 22).
        """
        now = self._clock.now()
        async with self._db.transaction() as conn:
            # First of all: of several at once the others wait here, and an answer that comes twice is no copy.
            if not await store.take_to_sign_in(conn, digest, until):
                raise PasskeyRefusedError
            stored = await store.lock_count(conn, known.person_id, known.id)
            goes_on = stored is not None and counts_on(stored, shown.sign_count)
            if goes_on:
                await store.used(conn, known.person_id, known.id, shown.sign_count, shown.backed_up, now)
            elif stored is not None:
                details = {"person": known.person_public_id, "stored": stored, "shown": shown.sign_count}
                entry = Entry("passkey.counter_went_back", "passkey", known.public_id, details=details)
                await record(conn, self._ids, now, Actor(), entry)
        if not goes_on:
            raise PasskeyRefusedError(known.person_public_id)

    async def _remove(self, person: Person, public_id: str | None, by: Actor) -> int:
        now = self._clock.now()
        async with self._db.transaction() as conn:
            # Whoever opens a session takes the same lock first: it is there to be ended, or is not made.
            await people_store.lock(conn, person.id)
            removed = await store.remove(conn, person.id, public_id, now)
            for one in removed:
                entry = Entry("passkey.remove", "passkey", one, details={"person": person.public_id})
                await record(conn, self._ids, now, by, entry)
        return len(removed)


def check_passkey_name(name: str) -> None:
    """Raises `invalid_request`."""
    check_name("name", name, MAX_NAME)


def _limit() -> PostroomError:
    return PostroomError("passkey_limit_reached", details={"limit": MAX_PASSKEYS})
