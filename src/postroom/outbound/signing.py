"""DKIM keys of the domains that we send for, and signing with them (mail-server C8; decision D2).

A domain's first key is made when it is first needed. Rotation has three steps: `rotate` makes the key of the other
selector, whose record is then published; `switch` signs with it from now on; the old record stays published for 30
days, and its row until the next rotation. Private parts are stored sealed and never leave this module.

A second signature, with Ed25519, is for receivers that can verify it (RFC 8463); others go by the one with RSA. Its key
accompanies an RSA key, under a selector of its own (RFC 8463 §3): made, switched and retired with that.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.sealed_columns import DKIM_KEY
from postroom.base.sealing import Keyring, UnsealError
from postroom.db.pool import Connection, Database
from postroom.mailauth.dkim_key import Algorithm, PrivateKey, PrivateKeyError, record_name
from postroom.mailauth.dkim_sign import Signer, SigningError, sign_message
from postroom.outbound.transports.base import OFFLOAD_BYTES, Offload

log = base_log.get("dkim")

SELECTORS: Final = ("pm1", "pm2")
SECOND: Final = "e"
"""Added to a selector: that of the Ed25519 key which accompanies the RSA key."""
KEEP_PUBLISHED: Final = timedelta(days=30)
CACHE_SECONDS: Final = 60.0
"""After which a switch that another process made is noticed."""
MAX_CACHED: Final = 1000
DOMAINS_PAGE: Final = 100

_DOMAIN: Final = "SELECT id FROM domains WHERE name = $1 AND enabled"
_LOCK: Final = "SELECT id FROM domains WHERE id = $1 FOR NO KEY UPDATE"
_KEYS: Final = """
SELECT selector, algorithm, private_sealed, public_record, signs, created_at, retire_at FROM dkim_keys
WHERE domain_id = $1 ORDER BY selector
"""
_PUBLISHED: Final = """
SELECT k.public_record FROM domains d JOIN dkim_keys k ON k.domain_id = d.id
WHERE d.name = $1 AND d.enabled AND k.selector = $2
"""
_DOMAINS: Final = "SELECT id, name FROM domains WHERE enabled AND id > $1 ORDER BY id LIMIT $2"
_KEYS_OF: Final = """
SELECT domain_id, selector, private_sealed, signs, retire_at FROM dkim_keys WHERE domain_id = ANY ($1)
"""
_INSERT: Final = """
INSERT INTO dkim_keys (domain_id, selector, algorithm, private_sealed, public_record, signs, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
"""
_DELETE: Final = "DELETE FROM dkim_keys WHERE domain_id = $1 AND selector = ANY ($2::text[])"
_SWITCH: Final = """
UPDATE dkim_keys SET signs = selector = ANY ($2::text[]),
  retire_at = CASE WHEN selector <> ALL ($2::text[]) THEN $3::timestamptz END
WHERE domain_id = $1
"""


class DomainState(StrEnum):
    """Of a domain's keys, the first that holds."""

    NONE = "none"
    """The first is made when it is needed."""
    UNUSABLE = "unusable"
    """The key that should sign does not open."""
    PENDING = "pending"
    """A key was made and waits until its record is published."""
    SIGNING = "signing"


class RotationError(Exception):
    """The step does not fit the state of the domain's keys; `until` when it will, if time is all that is missing."""

    def __init__(self, text: str, until: datetime | None = None) -> None:
        super().__init__(text)
        self.until = until


@dataclass(frozen=True, slots=True)
class PublicKey:
    """What may be shown of a key. `name` is where `record` is to be published; `retire_at` until when, once it does not
    sign any more. A key that neither signs nor retires waits for its record to be published.
    """

    domain: str
    selector: str
    algorithm: str
    name: str
    record: str
    signs: bool
    created_at: datetime
    retire_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Cached:
    signers: tuple[Signer, ...]
    held: tuple[tuple[str, bytes], ...]
    """Selector and key of each, for a process of its own."""
    until: float


class DkimKeys:
    """The keys of this deployment, as one process sees them. `offload` is for signing large messages, `second` for
    signing with Ed25519, too (`dkim.second_signature`).
    """

    def __init__(
        self,
        database: Database,
        keyring: Keyring,
        clock: Clock,
        *,
        offload: Offload | None = None,
        algorithm: Algorithm = Algorithm.RSA_SHA256,
        second: bool = False,
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._clock = clock
        self._offload = offload
        self._algorithm = algorithm
        self._second = second
        self._cache: OrderedDict[str, _Cached] = OrderedDict()
        self._making: dict[str, asyncio.Lock] = {}

    async def sign(self, wire: bytes, from_domain: str) -> bytes:
        """The message signed for its From domain, in wire form; as it is for a domain that is none of ours.

        Raises PostroomError `unavailable` when it cannot be signed: it must not go out without (U4).
        """
        domain = from_domain.lower()
        cached = await self._signer(domain)
        if not cached.signers:
            return wire
        at = int(self._clock.now().timestamp())
        try:
            if len(wire) < OFFLOAD_BYTES or self._offload is None:
                return sign_message(wire, cached.signers, signed_at=at)
            return await self._offload(len(wire), sign_with, wire, domain, cached.held, at)
        except SigningError as error:
            log.warning("not_signed", error=type(error).__name__)
            raise PostroomError("unavailable") from error

    async def show(self, domain: str, *, second: bool = False) -> tuple[PublicKey, ...]:
        """The domain's keys; the first one is made if there is none, and those for the `second` signature even before
        it is switched on, so that their records can be published. Raises `domain_not_found`.
        """
        async with self._database.transaction() as conn:
            key = await self._domain(conn, domain)
            rows = await self._ensure(conn, key, second=second)
        return self._public(domain, rows)

    async def published(self, name: str) -> bytes | None:
        """The record that stands, or should, at a name of the DNS; None unless it is of a key of one of our domains.

        Mail between our own mailboxes is verified by it: not even the world's name servers are asked about ourselves.
        """
        selector, mark, domain = name.lower().partition("._domainkey.")
        if not mark:
            return None
        async with self._database.acquire() as conn:
            record: str | None = await conn.fetchval(_PUBLISHED, domain, selector)
        return None if record is None else record.encode()

    async def rotate(self, domain: str) -> tuple[PublicKey, ...]:
        """Make the key that will sign next; its record is to be published, then `switch`. Doing it again changes
        nothing before the switch. Raises `domain_not_found`, and RotationError while the record of the selector that
        comes next is still needed by mail that was signed with it.
        """
        now = self._clock.now()
        fresh = await asyncio.to_thread(PrivateKey.generate, self._algorithm)
        async with self._database.transaction() as conn:
            key = await self._domain(conn, domain)
            rows = await self._ensure(conn, key)
            signing = next(row for row in _first(rows) if row["signs"])
            other = next((row for row in _first(rows) if not row["signs"]), None)
            if other is not None and other["retire_at"] is None:
                return self._public(domain, rows)
            if other is not None and other["retire_at"] > now:
                raise RotationError("the record of the key before is still needed", other["retire_at"])
            selector = next(name for name in SELECTORS if name != signing["selector"])
            await conn.execute(_DELETE, key, [selector, selector + SECOND])
            await self._insert(conn, key, selector, fresh, signs=False)
            rows = await self._ensure(conn, key, second=_has_second(rows, signing))
        log.info("dkim_key_made", selector=selector)
        return self._public(domain, rows)

    async def switch(self, domain: str) -> tuple[PublicKey, ...]:
        """Sign with the key that `rotate` made, whose record is published by now. Raises `domain_not_found`,
        RotationError when there is none.
        """
        now = self._clock.now()
        async with self._database.transaction() as conn:
            key = await self._domain(conn, domain)
            rows = await self._ensure(conn, key)
            pending = next((row for row in _first(rows) if not row["signs"] and row["retire_at"] is None), None)
            if pending is None:
                raise RotationError("there is no new key to switch to")
            selectors = [pending["selector"], pending["selector"] + SECOND]
            await conn.execute(_SWITCH, key, selectors, now + KEEP_PUBLISHED)
            rows = await conn.fetch(_KEYS, key)
        self._cache.pop(domain, None)
        log.info("dkim_key_switched", selector=pending["selector"])
        return self._public(domain, rows)

    async def states(self) -> AsyncIterator[tuple[str, DomainState]]:
        """Every domain that we send for, by its database key, with the state of its keys. Nothing is made."""
        after = 0
        while True:
            async with self._database.acquire() as conn:
                domains = await conn.fetch(_DOMAINS, after, DOMAINS_PAGE)
                keys = await conn.fetch(_KEYS_OF, [one["id"] for one in domains])
            for domain in domains:
                yield (
                    domain["name"],
                    self._state(domain["id"], [row for row in keys if row["domain_id"] == domain["id"]]),
                )
            if len(domains) < DOMAINS_PAGE:
                return
            after = domains[-1]["id"]

    def _state(self, key: int, rows: list[Any]) -> DomainState:
        signing = next((row for row in rows if row["signs"]), None)
        if signing is None:
            return DomainState.UNUSABLE if rows else DomainState.NONE
        try:
            PrivateKey.from_der(self._keyring.open(DKIM_KEY, signing["private_sealed"], key, signing["selector"]))
        except (UnsealError, PrivateKeyError):
            return DomainState.UNUSABLE
        pending = any(not row["signs"] and row["retire_at"] is None for row in rows)
        return DomainState.PENDING if pending else DomainState.SIGNING

    # -- keys ----------------------------------------------------------------------------------------------------------

    async def _signer(self, domain: str) -> _Cached:
        now = self._clock.monotonic()
        cached = self._cache.get(domain)
        if cached is not None and now < cached.until:
            self._cache.move_to_end(domain)
            return cached
        # One at a time for a domain: the first of many messages makes its key.
        lock = self._making.setdefault(domain, asyncio.Lock())
        async with lock:
            cached = self._cache.get(domain)
            if cached is None or now >= cached.until:
                cached = self._cache[domain] = await self._load(domain, now + CACHE_SECONDS)
                while len(self._cache) > MAX_CACHED:
                    self._cache.popitem(last=False)
        self._making.pop(domain, None)
        return cached

    async def _load(self, domain: str, until: float) -> _Cached:
        async with self._database.transaction() as conn:
            key = await conn.fetchval(_DOMAIN, domain)
            if key is None:
                return _Cached((), (), until)
            rows = await conn.fetch(_KEYS, key)
            if not rows or self._missing(rows):
                rows = await self._ensure(conn, key)
        signing = [row for row in rows if self._signs(row)]
        try:
            held = tuple(
                (row["selector"], self._keyring.open(DKIM_KEY, row["private_sealed"], key, row["selector"]))
                for row in signing
            )
            return _Cached(_signers(domain, held), held, until)
        except (UnsealError, PrivateKeyError, SigningError) as error:
            missing = error.kid if isinstance(error, UnsealError) else None
            log.error(
                "dkim_key_unusable", selector=signing[0]["selector"], error=type(error).__name__, master_kid=missing
            )
            raise PostroomError("unavailable") from error

    async def _domain(self, conn: Connection, domain: str) -> int:
        key: int | None = await conn.fetchval(_DOMAIN, domain.lower())
        if key is None:
            raise PostroomError("domain_not_found")
        return key

    async def _ensure(self, conn: Connection, key: int, *, second: bool = False) -> list[Any]:
        """The rows of the domain's keys, of which one signs, or two. The domain's row is locked, so that two who find
        no key make one."""
        await conn.fetchval(_LOCK, key)
        rows = await conn.fetch(_KEYS, key)
        if not rows:
            made = await asyncio.to_thread(PrivateKey.generate, self._algorithm)
            await self._insert(conn, key, SELECTORS[0], made, signs=True)
            rows = await conn.fetch(_KEYS, key)
            log.info("dkim_key_made", selector=SELECTORS[0])
        missing = self._missing(rows, second=second)
        for row in missing:
            selector = row["selector"] + SECOND
            made = PrivateKey.generate(Algorithm.ED25519_SHA256)
            await self._insert(conn, key, selector, made, signs=row["signs"])
            log.info("dkim_key_made", selector=selector)
        return list(await conn.fetch(_KEYS, key) if missing else rows)

    def _missing(self, rows: Sequence[Any], *, second: bool = False) -> list[Any]:
        """Keys that sign, or will, and have nothing yet that accompanies them. Beside Ed25519 there is no need."""
        if not (second or self._second):
            return []
        return [
            row
            for row in _first(rows)
            if row["retire_at"] is None and row["algorithm"] == Algorithm.RSA_SHA256 and not _has_second(rows, row)
        ]

    def _signs(self, row: Any) -> bool:
        return bool(row["signs"]) and (self._second or row["selector"] in SELECTORS)

    def _public(self, domain: str, rows: Sequence[Any]) -> tuple[PublicKey, ...]:
        return tuple(
            PublicKey(
                domain=domain.lower(),
                selector=row["selector"],
                algorithm=row["algorithm"],
                name=record_name(row["selector"], domain.lower()),
                record=row["public_record"],
                signs=self._signs(row),
                created_at=row["created_at"],
                retire_at=row["retire_at"],
            )
            for row in rows
        )

    async def _insert(self, conn: Connection, key: int, selector: str, made: PrivateKey, *, signs: bool) -> None:
        sealed = self._keyring.seal(DKIM_KEY, made.to_der(), key, selector)
        now = self._clock.now()
        await conn.execute(_INSERT, key, selector, made.algorithm.value, sealed, made.public_record(), signs, now)


def sign_with(wire: bytes, domain: str, held: Sequence[tuple[str, bytes]], signed_at: int) -> bytes:
    """`sign_message` with selectors and their keys as octets, for a process of its own."""
    return sign_message(wire, _signers(domain, held), signed_at=signed_at)


def _signers(domain: str, held: Sequence[tuple[str, bytes]]) -> tuple[Signer, ...]:
    """The first signature stands above the second."""
    return tuple(Signer(domain, selector, PrivateKey.from_der(der)) for selector, der in held)


def _first(rows: Sequence[Any]) -> list[Any]:
    """The keys of the first signature."""
    return [row for row in rows if row["selector"] in SELECTORS]


def _has_second(rows: Sequence[Any], first: Any) -> bool:
    return any(row["selector"] == first["selector"] + SECOND for row in rows)
