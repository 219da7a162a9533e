"""Signing in to a mailbox: the address selects it, the person must hold a grant (mail-server D1, F1, F3; A2).

Every reason of a failure looks the same to the caller but for two: too many failures, and not possible right now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeVar

from postroom.accounts import contacts, tokens
from postroom.accounts import keys as key_rules
from postroom.accounts.models import Credential, Mode, PersonKey, Principal, PrincipalKind
from postroom.accounts.passwords import MAX_LENGTH, HashingOverloaded, Passwords
from postroom.accounts.permissions import OF_GRANT, Level, Permission
from postroom.accounts.scram import ScramKeys
from postroom.accounts.service.keys import KeyVerifier
from postroom.accounts.service.throttle import WINDOW, Guard, Throttle, ThrottlePolicy, client_network
from postroom.accounts.store import counters, credentials, standing
from postroom.accounts.store import people as store
from postroom.base import log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.sealing import UnsealError
from postroom.db import Connection, Database, is_transient
from postroom.sasl import Keys, Proof, Proven

MAX_ADDRESS: Final = 320
MAX_CANDIDATES: Final = 8
"""People of one mailbox whose passwords are tried. Each costs a hash; owners come first."""
MAX_SCRAM_KEYS: Final = 128
"""Application passwords of one mailbox's people that a proof is held against, those used last first: 5 µs each."""
_NOBODY: Final = Keys(bytes(32), bytes(32))
T = TypeVar("T")

__all__ = [
    "MAX_ADDRESS",
    "MAX_CANDIDATES",
    "MAX_SCRAM_KEYS",
    "SignIn",
    "SignInError",
    "SignInFailure",
    "ThrottlePolicy",
    "client_network",
    "prune_failures",
]

_log = log.get("accounts.sign_in")


class SignInFailure(StrEnum):
    INVALID = "invalid"
    """Unknown address, wrong password, disabled person, no grant: one answer (`535 5.7.8`)."""
    THROTTLED = "throttled"
    """Too many failures of this account or from this network (`454 4.7.0`)."""
    UNAVAILABLE = "unavailable"
    """Our own fault: database away, or too many passwords waiting to be hashed (`454 4.7.0`)."""


@dataclass(frozen=True, slots=True)
class SignInError:
    """Why a sign-in was refused. `retry_after` is in seconds, for a failure that waiting helps."""

    kind: SignInFailure
    retry_after: int | None = None


_INVALID: Final = SignInError(SignInFailure.INVALID)
_UNAVAILABLE: Final = SignInError(SignInFailure.UNAVAILABLE, retry_after=5)


class SignIn:
    """Signs people and agents in to mailboxes. One per process; lock state is the database's, shared by all nodes.
    Without `scram` no proof is right.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        passwords: Passwords,
        keys: KeyVerifier,
        hash_key: bytes,
        policy: ThrottlePolicy | None = None,
        *,
        scram: ScramKeys | None = None,
    ) -> None:
        self._db, self._clock, self._passwords, self._keys, self._scram = db, clock, passwords, keys, scram
        self.throttle = Throttle(db, clock, hash_key, policy or ThrottlePolicy())

    async def sign_in(
        self, address: str, password: str, remote: str, needs: Permission = Permission.MESSAGES_READ
    ) -> Principal | SignInError:
        """Open the mailbox of `address` for whoever has `password`; `remote` is the client's IP address.

        An agent's password is an identity key of that very mailbox with the permission that is needed. A person's is
        an application password, or their own unless they have two-step verification (A4, F5). What a person may do
        follows from their grants, and is the caller's to look at. Never raises for what the client sent.
        """
        return await self._in_turn(
            address,
            remote,
            lambda opening, account, network: self._attempt(opening, account, network, password, needs),
        )

    async def prove(self, proof: Proof, remote: str) -> Proven[Principal] | SignInError:
        """Open the mailbox of a SCRAM user name for whoever has proved to have an application password (RFC 5802).

        What holds of one that is shown (`sign_in`) holds of one that is proved. Never raises for what the client sent.
        """
        return await self._in_turn(
            proof.username,
            remote,
            lambda opening, account, network: self._attempt_with_proof(opening, account, network, proof),
        )

    async def _in_turn(
        self,
        address: str,
        remote: str,
        attempt: Callable[[store.Opening | None, str, str], Awaitable[T | SignInError]],
    ) -> T | SignInError:
        address = contacts.sought(address)
        network = self.throttle.network(remote)
        try:
            wait = await self.throttle.network_locked_for(network)
            if wait:
                return SignInError(SignInFailure.THROTTLED, wait)
            opening = await self._opening(address)
            account = self.throttle.account(address if opening is None else opening.identity_public_id)
            async with self.throttle.turn(account) as mine:
                if not mine:
                    return _UNAVAILABLE
                return await attempt(opening, account, network)
        except HashingOverloaded:
            return _UNAVAILABLE
        except Exception as exc:
            if not is_transient(exc):
                raise
            _log.warning("sign-in unavailable", exc_info=exc)
            return _UNAVAILABLE

    async def stands(self, principal: Principal) -> bool:
        """Whether who signed in would still be let in with what they gave: it was not revoked, nor the password
        changed, nor the mailbox taken from them. Raises what the database raises.
        """
        async with self._db.acquire() as conn:
            return not await standing.fallen(conn, (principal,), self._clock.now())

    async def _attempt(
        self, opening: store.Opening | None, account: str, network: str, password: str, needs: Permission
    ) -> Principal | SignInError:
        # Nobody guesses 192 random bits: a lock, which anybody can bring about, does not keep out whoever has them,
        # and having them says nothing of those who guess passwords meanwhile (decision 0050).
        if tokens.is_app_password(password):
            principal = await self._by_app_password(opening, password)
            if principal is not None:
                return principal
        if key_rules.parse(password) is not None:
            return await self._attempt_with_key(opening, account, network, password, needs)
        candidates = () if opening is None else opening.candidates
        guard = await self._guard(opening, account)
        if guard.is_shut:
            return SignInError(SignInFailure.THROTTLED, guard.wait)
        tried = tuple(one for one in candidates if one.person_public_id in guard.counted)
        principal = await self._by_password(opening, tried, password)
        if principal is not None:
            await self.throttle.succeeded(guard.counted[principal.public_id])
            return principal
        return await self._failed(guard, network)

    async def _attempt_with_proof(
        self, opening: store.Opening | None, account: str, network: str, proof: Proof
    ) -> Proven[Principal] | SignInError:
        proven = await self._by_proof(opening, proof)
        if proven is not None:
            return proven  # whatever is locked, as in `_attempt`
        guard = await self._guard(opening, account)
        if guard.is_shut:
            return SignInError(SignInFailure.THROTTLED, guard.wait)
        return await self._failed(guard, network)

    async def _guard(self, opening: store.Opening | None, account: str) -> Guard:
        candidates = () if opening is None else opening.candidates
        return await self.throttle.guard(account, [one.person_public_id for one in candidates])

    async def _failed(self, guard: Guard, network: str) -> SignInError:
        await self.throttle.failed(*guard.failing, network)
        # It may have been right, of somebody who is not tried now.
        return SignInError(SignInFailure.THROTTLED, guard.wait) if guard.wait else _INVALID

    async def _attempt_with_key(
        self, opening: store.Opening | None, account: str, network: str, key: str, needs: Permission
    ) -> Principal | SignInError:
        wait = await self.throttle.locked_for(account)
        if wait:
            return SignInError(SignInFailure.THROTTLED, wait)
        principal = await self._by_key(opening, key, needs)
        if principal is None:
            await self.throttle.failed(account, network)
            return _INVALID
        if opening is not None and not opening.candidates:
            # Else the count is, or was, that of somebody's password, which the agent may be guessing.
            await self.throttle.succeeded(account)
        return principal

    async def _by_app_password(self, opening: store.Opening | None, password: str) -> Principal | None:
        if opening is None:
            return None
        async with self._db.acquire() as conn:
            mac = self._keys.mac_of(password)
            found = await credentials.opens_mailbox(conn, mac, opening.tenant_id, opening.identity_id)
            return None if found is None else await self._let_in(conn, opening, found)

    async def _by_proof(self, opening: store.Opening | None, proof: Proof) -> Proven[Principal] | None:
        # Where there is no such mailbox, or nothing that opens it, what is done is the same.
        place = (0, 0) if opening is None else (opening.tenant_id, opening.identity_id)
        async with self._db.acquire() as conn:
            rows = await credentials.scram_of_mailbox(conn, *place, MAX_SCRAM_KEYS)
            proof.verified(_NOBODY)
            for row in rows:
                keys = self._opened(row)
                signature = None if keys is None else proof.verified(keys)
                if signature is not None and opening is not None:
                    principal = await self._let_in(conn, opening, row.opens)
                    return None if principal is None else Proven(principal, signature)
        return None

    def _opened(self, row: credentials.ScramRow) -> Keys | None:
        if self._scram is None:
            return None
        try:
            return self._scram.opened(row.sealed, row.public_id)
        except UnsealError as error:
            _log.error("scram keys cannot be opened", app_password=row.public_id, master_kid=error.kid)
            return None

    async def _let_in(self, conn: Connection, opening: store.Opening, found: credentials.Opened) -> Principal | None:
        """Whoever has that application password."""
        if found.role is None:
            return None
        await credentials.mark_used(conn, found.app_password_id, self._clock.now())
        who = store.Candidate(
            PersonKey(found.person_id), found.person_public_id, "", found.role, found.epoch, two_step=False
        )
        return _principal(opening, who, found.app_password_id)

    async def _opening(self, address: str) -> store.Opening | None:
        if not 3 <= len(address) <= MAX_ADDRESS or "\0" in address or not address.isprintable():
            return None
        async with self._db.acquire() as conn:
            return await store.opening(conn, address, MAX_CANDIDATES)

    async def _by_key(self, opening: store.Opening | None, password: str, needs: Permission) -> Principal | None:
        try:
            principal = await self._keys.verify(password)
        except PostroomError:
            return None
        if opening is None or not opening.is_agent or principal.level is not Level.IDENTITY:
            return None
        if not principal.reaches_identity(opening.tenant_id, opening.identity_id):
            return None
        return principal if principal.may(needs) else None

    async def _by_password(
        self, opening: store.Opening | None, candidates: tuple[store.Candidate, ...], password: str
    ) -> Principal | None:
        if opening is None or not candidates:
            await self._passwords.verify(None, password[: MAX_LENGTH + 1])
            return None
        for candidate in candidates:
            verified = await self._passwords.verify(candidate.password_hash, password)
            # The password alone is one step of two: as wrong as any other, here where there is no room for the second.
            if verified.ok and not candidate.two_step:
                if verified.stale:
                    await self._rehash(candidate, password)
                return _principal(opening, candidate)
        return None

    async def _rehash(self, candidate: store.Candidate, password: str) -> None:
        try:
            renewed = await self._passwords.hash(password)
        except (HashingOverloaded, PostroomError):
            return  # F1: the sign-in stands; the next one tries again
        async with self._db.acquire() as conn:
            await store.rehash(conn, candidate.person_id, candidate.password_hash, renewed)


async def prune_failures(conn: Connection, now: datetime, policy: ThrottlePolicy) -> None:
    """Delete counters of failed sign-ins and of requests that no decision reads any more."""
    span = timedelta(seconds=policy.seconds) + 2 * WINDOW
    await counters.prune(conn, now - span, now - timedelta(hours=1))


def _principal(opening: store.Opening, candidate: store.Candidate, app_password_id: int | None = None) -> Principal:
    return Principal(
        kind=PrincipalKind.PERSON,
        public_id=candidate.person_public_id,
        row_id=candidate.person_id,
        level=Level.IDENTITY,
        permissions=OF_GRANT[candidate.role],
        mode=Mode(opening.tenant_mode),
        tenant_id=opening.tenant_id,
        tenant_public_id=opening.tenant_public_id,
        tenant_status=opening.tenant_status,
        identity_id=opening.identity_id,
        identity_public_id=opening.identity_public_id,
        grant=candidate.role,
        credential=Credential(epoch=candidate.epoch, app_password_id=app_password_id),
    )
