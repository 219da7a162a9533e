"""Idempotency of POSTs that do not send mail (data-model §4): run once, answer the same again.

A request *begins* in a slot, and either *completes*, inside the transaction of its effect, or *abandons* the slot
when nothing changed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from postroom.accounts.store import idempotency as store
from postroom.accounts.store.idempotency import Slot
from postroom.accounts.text import invalid
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.db import Connection

__all__ = ["Claim", "Replay", "Request", "Slot", "abandon", "begin", "check_key", "complete", "fingerprint", "prune"]

LIFE: Final = timedelta(days=30)
TAKE_OVER_AFTER: Final = timedelta(seconds=60)
MAX_BODY: Final = 64 * 1024
"""Octets of an answer that is kept; of a longer one only its reference is."""

_KEY: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")


@dataclass(frozen=True, slots=True)
class Request:
    """A request that wants to run once. `tenant_id` and `identity_id` say whose data the answer will hold."""

    slot: Slot
    method: str
    path: str
    fingerprint: str
    tenant_id: int | None = None
    identity_id: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run the request, until it is completed, abandoned, or 60 s old and taken over."""

    slot: Slot
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Replay:
    """The answer of the first time; sent with `Idempotent-Replayed: true`. A body `{"$ref": …}` is read again by the
    caller.
    """

    status: int
    body: Any


def check_key(value: str) -> str:
    """The idempotency key, if it is 1 to 255 printable ASCII characters; else `invalid_idempotency_key`."""
    if not _KEY.fullmatch(value):
        raise PostroomError("invalid_idempotency_key")
    return value


def fingerprint(method: str, path: str, body: Any) -> str:
    """SHA-256 over method, path and the body as canonical JSON (sorted members, no spaces).

    Raises `invalid_request` for a body whose objects and lists are within one another nearly a thousand deep.
    """
    try:
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    except RecursionError:
        raise invalid("body", "is nested too deeply") from None
    return hashlib.sha256("\n".join((method, path, canonical)).encode()).hexdigest()


async def begin(conn: Connection, clock: Clock, request: Request) -> Claim | Replay:
    """Claim the slot, or the recorded answer. Its own statement or transaction, committed before the request runs.

    Raises `idempotency_conflict` when the key was used for another request, `request_in_progress` while the first one
    runs.
    """
    now = clock.now()
    row = store.Row(
        *(request.tenant_id, request.identity_id, request.method, request.path, request.fingerprint),
        *(now, now + LIFE),
    )
    if await store.insert(conn, request.slot, row):
        return Claim(request.slot, now)
    recorded = await store.get(conn, request.slot)
    if recorded is None:  # abandoned or pruned between the two statements
        raise PostroomError("request_in_progress", retry_after=1)
    expired = recorded.expires_at <= now
    if not recorded.completed and not expired and now - recorded.created_at < TAKE_OVER_AFTER:
        raise PostroomError("request_in_progress", retry_after=1)
    same = (recorded.method, recorded.path, recorded.fingerprint) == (
        *(request.method, request.path, request.fingerprint),
    )
    if not same and not expired:
        raise PostroomError("idempotency_conflict")
    if recorded.completed and not expired:
        assert recorded.response_status is not None
        return Replay(recorded.response_status, recorded.response_body)
    if not await store.take_over(conn, request.slot, row, recorded.created_at):
        raise PostroomError("request_in_progress", retry_after=1)
    return Claim(request.slot, now)


async def complete(
    conn: Connection,
    claim: Claim,
    status: int,
    body: Mapping[str, Any] | None,
    *,
    reference: Mapping[str, Any] | None,
    tenant_id: int | None = None,
    identity_id: int | None = None,
) -> None:
    """Record the answer, in the transaction of what it answers. `tenant_id` and `identity_id` say whose data it holds,
    where the request did not tell when it began.

    A member `secret` is never stored. A body of more than 64 KiB is replaced by `{"$ref": reference}`. Raises
    `request_in_progress` when the slot was taken over meanwhile, so that the transaction is rolled back and the
    effect happens once.
    """
    kept = _kept(body, reference)
    if not await store.complete(conn, claim.slot, claim.created_at, status, kept, tenant_id, identity_id):
        raise PostroomError("request_in_progress", retry_after=1)


async def abandon(conn: Connection, claim: Claim) -> None:
    """Nothing was changed: the key may be used again."""
    await store.abandon(conn, claim.slot, claim.created_at)


async def prune(conn: Connection, now: datetime, limit: int = 1_000) -> int:
    """Delete at most `limit` records that have expired; how many."""
    return await store.prune(conn, now, limit)


def _kept(body: Mapping[str, Any] | None, reference: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if body is None:
        return None
    kept = dict(body)
    if "secret" in kept:
        del kept["secret"]
        kept["secret_replayed"] = False
    if len(json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")) <= MAX_BODY:
        return kept
    if reference is None:
        raise ValueError("an answer this long needs a reference to be read again by")
    return {"$ref": dict(reference)}
