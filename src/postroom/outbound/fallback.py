"""Mail whose domain fails leaves from the identity's address on the platform domain (outbound §6.2; FR-DOM-5, FR-DOM-6,
edge G7).

That is decided once for a message, for all its recipients, and before anybody was asked to take it; from then on it is
mail of the platform domain: its bytes are made anew, with another From and Reply-To and another signature. What the
Sent folder holds is what was written, and its Message-ID stays, for answers name it.

    bytes anew -> stored -> one transaction: nothing was sent, nobody else has it in hand; rows, thread pinned

Whoever is killed in between leaves bytes without a row. Where several destinations of a message are in hand at once,
each but the last gives its own back, so that the last one switches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from postroom.accounts.models import Mode
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.blobs.store import BlobMissing, BlobStore, StorageError
from postroom.db import errors as db_errors
from postroom.db.pool import Connection, Database
from postroom.mail.address import Address
from postroom.mail.thread_token import with_token
from postroom.mailbox import pins
from postroom.mailbox.writing import begin_write
from postroom.outbound import wire
from postroom.outbound.claiming import Group
from postroom.outbound.gates import FALLBACK_FAILED, is_broken, is_ready
from postroom.outbound.models import RouteKind, Status
from postroom.outbound.rules import Decided
from postroom.outbound.store import group_of
from postroom.outbound.transports.base import OFFLOAD_BYTES, Offload, paused
from postroom.smtp.outcome import Outcome

log = base_log.get("outbound")

AGAIN: Final = timedelta(seconds=1)
"""After which what was given back for another's sake is due."""

FallBack = Callable[[Group], Awaitable[Outcome | Decided | None]]
"""See `Fallback.switch`."""
Sign = Callable[[bytes, str], Awaitable[bytes]]
Mint = Callable[[str, int], Awaitable[str]]


class Route(Protocol):
    """How mail of a tenant from a domain to an address leaves (`routes.Routes`)."""

    async def __call__(self, address: str, /, *, from_domain: str, mode: Mode) -> RouteKind: ...


# The identity's one platform address, if it takes mail, and the state of that domain.
_STAND_IN: Final = """
SELECT a.address, d.status, d.enabled, m.from_name, m.thread_seq, i.kind = 'agent' AS has_tokens, o.wire_key,
  o.sent_from
FROM messages m
JOIN outbound_messages o ON o.tenant_id = m.tenant_id AND o.message_id = m.id
JOIN identities i ON i.tenant_id = m.tenant_id AND i.id = m.mailbox_id
JOIN addresses a ON a.tenant_id = i.tenant_id AND a.identity_id = i.id AND a.status IN ('active', 'retiring')
JOIN domains d ON d.id = a.domain_id AND d.kind = 'platform'
WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.id = $3
"""
_DELIVERIES: Final = """
SELECT id, status, tries, data_started_at, claim_token, lease_until, recipient, route FROM deliveries
WHERE tenant_id = $1 AND message_id = $2 ORDER BY id FOR NO KEY UPDATE
"""
_GIVE_BACK: Final = """
UPDATE deliveries SET claim_token = NULL, lease_until = NULL, attempts = greatest(attempts - 1, 0), next_attempt_at = $4
WHERE tenant_id = $1 AND message_id = $2 AND claim_token = $3
"""
# Claims that lapsed: who comes back with one would send, from memory, what the message was.
_LAPSE: Final = """
UPDATE deliveries SET claim_token = NULL, lease_until = NULL
WHERE tenant_id = $1 AND message_id = $2 AND claim_token <> $3
"""
_SWITCH: Final = """
UPDATE outbound_messages SET sent_from = $3, envelope_from = $3, reply_to = $4, wire_key = $5, wire_size = $6
WHERE tenant_id = $1 AND message_id = $2 AND wire_key = $7 AND sent_from IS NULL
RETURNING message_id
"""
_REROUTE: Final = """
UPDATE deliveries d SET route = r.route, domain = r.domain
FROM unnest($3::bigint[], $4::text[], $5::text[]) AS r (id, route, domain)
WHERE d.tenant_id = $1 AND d.message_id = $2 AND d.id = r.id
"""


async def no_fallback(group: Group) -> Outcome | Decided | None:
    """Where there is no other way."""
    return FALLBACK_FAILED


class Fallback:
    """One per worker process. `sign`, `mint` and `route` are those of sending."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        ids: IdGenerator,
        *,
        sign: Sign,
        mint: Mint,
        route: Route,
        offload: Offload,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._ids = ids
        self._sign = sign
        self._mint = mint
        self._route = route
        self._offload = offload

    async def switch(self, group: Group) -> Outcome | Decided | None:
        """Let the message of a claimed group leave from the platform address. None: the group was given back, or is to
        be, and is claimed anew as it is by then; else what becomes of it instead."""
        letter = group.letter
        try:
            async with self._database.acquire() as conn:
                row = await conn.fetchrow(_STAND_IN, *_message(group))
            if row is not None and row["sent_from"] is not None:
                return None
            if row is None or is_broken(row["status"]):
                return FALLBACK_FAILED
            if not is_ready(row["status"], row["enabled"]):
                return paused("Neither the sender's domain nor the platform's is ready")
            made = await self._remade(group, row)
            if made is None:
                return None  # its bytes are gone, or were made anew meanwhile: the next claim sees what is
            key, size, reply_to = made
            routes = await self._routes(group, row["address"].rpartition("@")[2])
            switched, outcome = await self._store(group, row, (key, size), reply_to, routes)
        except (PostroomError, StorageError) as error:
            # Of a key or a domain that an operator has to mend.
            log.warning("fallback_delayed", message_id=letter.id, error=type(error).__name__)
            return paused("The message cannot be made anew at the moment")
        except Exception as error:
            if not db_errors.is_transient(error):
                raise
            # Whether it was committed is not known: the sweep finds what no row names.
            log.warning("fallback_delayed", message_id=letter.id, error=type(error).__name__)
            return None
        await self._forget(row["wire_key"] if switched else key)
        if switched:
            log.info("sent_via_fallback", message_id=letter.id)
        return outcome

    async def _remade(self, group: Group, row: Any) -> tuple[str, int, str | None] | None:
        """Key and size of the bytes that go out now, stored, and the address for answers."""
        letter = group.letter
        local, _, domain = row["address"].rpartition("@")
        from_ = Address(row["from_name"] or "", local, domain)
        reply_to: Address | None = None
        if row["has_tokens"]:
            token = await self._mint(letter.identity_id, row["thread_seq"])
            try:
                reply_to = with_token(from_, token)
            except ValueError:  # no room (A12): the bare From is where answers go
                reply_to = None
        if row["wire_key"] is None:
            return None
        try:
            raw = await self._blobs.get(row["wire_key"])
        except BlobMissing:
            return None
        domains = ((letter.from_address or "").rpartition("@")[2].lower(),)
        if len(raw) < OFFLOAD_BYTES:
            unsigned = wire.readdressed(raw, domains, from_, reply_to)
        else:
            unsigned = await self._offload(len(raw), wire.readdressed, raw, domains, from_, reply_to)
        signed = await self._sign(unsigned, domain)
        key = f"t/{letter.tenant_id}/i/{letter.identity_id}/out/{letter.id}-{self._ids.ulid()}.eml"
        await self._blobs.put(key, signed)
        return key, len(signed), None if reply_to is None else reply_to.address

    async def _routes(self, group: Group, domain: str) -> dict[str, RouteKind]:
        """How each recipient is reached from the platform domain, which may use the relay or not (C6). Test tenants'
        mail never leaves, whatever it is from."""
        if group.letter.is_test:
            return {}
        async with self._database.acquire() as conn:
            rows = await conn.fetch(
                "SELECT recipient FROM deliveries WHERE tenant_id = $1 AND message_id = $2", *_message(group)[::2]
            )
        found = {}
        for row in rows:
            found[row["recipient"]] = await self._route(row["recipient"], from_domain=domain, mode=Mode.LIVE)
        return found

    async def _store(
        self, group: Group, row: Any, made: tuple[str, int], reply_to: str | None, routes: dict[str, RouteKind]
    ) -> tuple[bool, Outcome | None]:
        """Whether it was switched, and else what becomes of it: None that it was given back."""
        tenant, _, message = _message(group)
        async with self._database.transaction() as conn:
            now = self._clock.now()
            write = await begin_write(conn, group.letter.ref, now)
            rows = await conn.fetch(_DELIVERIES, tenant, message)
            if not any(one["claim_token"] == group.token for one in rows):
                return False, None
            if any(map(_is_touched, rows)):
                return False, paused("The sender's domain is not ready")
            if any(_is_held(one, group, now) for one in rows):
                await conn.execute(_GIVE_BACK, tenant, message, group.token, now + AGAIN)
                return False, None
            values = (row["address"], reply_to, *made, row["wire_key"])
            if await conn.fetchval(_SWITCH, tenant, message, *values) is None:
                return False, None
            await self._reroute(conn, tenant, message, rows, routes)
            await conn.execute(_LAPSE, tenant, message, group.token)
            await conn.execute(_GIVE_BACK, tenant, message, group.token, now)
            await pins.pin(write, message)
            await write.finish()
        return True, None

    async def _reroute(
        self, conn: Connection, tenant: int, message: int, rows: Sequence[Any], routes: dict[str, RouteKind]
    ) -> None:
        new = [
            (one["id"], route.value, group_of(route, one["recipient"].rpartition("@")[2]))
            for one in rows
            if (route := routes.get(one["recipient"])) is not None and one["route"] != route.value
        ]
        if new:
            await conn.execute(_REROUTE, tenant, message, *zip(*new, strict=True))

    async def _forget(self, key: str) -> None:
        try:
            await self._blobs.delete([key])
        except StorageError:
            log.warning("orphan_blobs_left", count=1)


def _message(group: Group) -> tuple[int, int, int]:
    return group.letter.ref.tenant_id, group.letter.ref.mailbox_id, group.letter.key


def _is_touched(row: Any) -> bool:
    """Whether a server may have been asked to take the message for it."""
    settled = row["status"] in (Status.SUPPRESSED, Status.CANCELED)
    return not settled and (row["status"] != Status.QUEUED or row["tries"] > 0 or row["data_started_at"] is not None)


def _is_held(row: Any, group: Group, now: datetime) -> bool:
    """Whether another claim has it in hand."""
    token, until = row["claim_token"], row["lease_until"]
    return token is not None and token != group.token and until is not None and until > now
