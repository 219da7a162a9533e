"""Deleted addresses are remembered by a keyed hash, and never in clear (A5, FR-ADR-5)."""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime

from postroom.base.errors import PostroomError
from postroom.db import Connection
from postroom.directory import store
from postroom.directory.models import Identity, IdentityStatus


def address_hash(key: bytes, address: str) -> bytes:
    """HMAC-SHA-256 of the lower-case address under the deployment's hash key."""
    return hmac.new(key, address.lower().encode("utf-8", "surrogatepass"), hashlib.sha256).digest()


async def check_free(conn: Connection, hash_key: bytes, address: str, tenant_id: int, identity_id: int | None) -> None:
    """Raises `address_taken` unless `identity_id` may have the address, or, for None, anybody. Nobody else can take it
    before the end of the transaction, so that no tombstone is passed by (A5). Several are asked for in their order.
    """
    await store.reserve(conn, address)
    if await store.is_taken(conn, address, address_hash(hash_key, address), tenant_id, identity_id):
        raise PostroomError("address_taken")


async def bury_identity(conn: Connection, hash_key: bytes, identity: Identity, reason: str, now: datetime) -> None:
    """Inside the caller's transaction: the identity is `deleting`, its addresses are gone and blocked for ever
    (inbound §2.3).

    `reason` is `deleted` or `erased`. Mail to them is unknown from now on, late replies included (A13).
    """
    hashes = [address_hash(hash_key, address.address) for address in identity.addresses]
    await store.set_status(conn, identity.tenant_id, identity.id, IdentityStatus.DELETING, None, now)
    await store.bury(conn, identity.tenant_id, identity.id, hashes, reason, now)
