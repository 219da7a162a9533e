"""The SQL of imports: what was brought before, what is in a folder already, whether it has the UIDs of the source."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import asyncpg

from postroom.db import Connection
from postroom.mailbox.models import FolderKey, MailboxRef

Row = tuple[bytes, FolderKey | None, int | None]
"""Key; folder and UID where the message has the UID that it had at the source."""

_DONE: Final = "SELECT key FROM imported WHERE tenant_id = $1 AND mailbox_id = $2 AND key = ANY ($3::bytea[])"

_ADD: Final = """
INSERT INTO imported (tenant_id, mailbox_id, key, folder_id, uid)
SELECT $1, $2, n.key, n.folder_id, n.uid FROM unnest($3::bytea[], $4::bigint[], $5::bigint[]) AS n (key, folder_id, uid)
"""
_ADD_AGAIN: Final = (
    _ADD + "ON CONFLICT (tenant_id, mailbox_id, key) DO UPDATE SET folder_id = excluded.folder_id, uid = excluded.uid"
)

_FORGET: Final = "DELETE FROM imported WHERE tenant_id = $1 AND mailbox_id = $2"

# What has the Message-IDs, and is the same or may be the same behind our own trace lines. "+ 0": by the index of those.
_ALIKE: Final = """
SELECT m.rfc_message_id, m.raw_sha256, m.raw_size, m.raw_prefix_len
FROM unnest($3::text[], $4::bytea[]) AS k (rfc_id, sha)
JOIN messages m ON m.tenant_id + 0 = $1 AND m.mailbox_id = $2 AND m.rfc_message_id = k.rfc_id
WHERE (m.raw_sha256 = k.sha OR m.raw_prefix_len > 0) AND EXISTS (
  SELECT FROM placements p WHERE p.tenant_id = $1 AND p.message_id = m.id AND ($5::bigint IS NULL OR p.folder_id = $5)
)
"""

# Nothing has come into the folder but by imports that gave it the UID of the source.
_IS_EXACT: Final = """
SELECT f.uid_next - 1 = coalesce((SELECT max(i.uid) FROM imported i WHERE i.tenant_id = $1 AND i.folder_id = $3), 0)
  AND NOT EXISTS (
    SELECT FROM placements p WHERE p.tenant_id = $1 AND p.folder_id = $3 AND NOT EXISTS (
      SELECT FROM imported i WHERE i.tenant_id = $1 AND i.folder_id = $3 AND i.uid = p.uid))
FROM folders f WHERE f.tenant_id = $1 AND f.mailbox_id = $2 AND f.id = $3
"""

_UID_VALIDITY: Final = "SELECT uid_validity FROM folders WHERE tenant_id = $1 AND mailbox_id = $2 AND id = $3"

_CONSTRAINT: Final = "imported_pkey"


async def done(conn: Connection, ref: MailboxRef, keys: Sequence[bytes]) -> frozenset[bytes]:
    """Those of the keys that were brought before."""
    rows = await conn.fetch(_DONE, ref.tenant_id, ref.mailbox_id, keys)
    return frozenset(row["key"] for row in rows)


async def add(conn: Connection, ref: MailboxRef, rows: Collection[Row], *, again: bool = False) -> None:
    """Remember. A key that is there is a unique violation (`is_done_twice`), but for `again`."""
    if rows:
        statement = _ADD_AGAIN if again else _ADD
        await conn.execute(statement, ref.tenant_id, ref.mailbox_id, *zip(*rows, strict=True))


async def forget(conn: Connection, ref: MailboxRef) -> None:
    """Forget all imports into the mailbox."""
    await conn.execute(_FORGET, ref.tenant_id, ref.mailbox_id)


async def alike(
    conn: Connection, ref: MailboxRef, folder_id: FolderKey | None, ids: Sequence[tuple[str, bytes]]
) -> dict[str, dict[bytes, tuple[int, int]]]:
    """By Message-ID, of messages in the folder (None: anywhere) that may be the same as those of the Message-IDs and
    digests: digest without our own trace lines → octets with them, octets of them."""
    rows = await conn.fetch(_ALIKE, ref.tenant_id, ref.mailbox_id, *zip(*ids, strict=True), folder_id)
    found: dict[str, dict[bytes, tuple[int, int]]] = {}
    for row in rows:
        found.setdefault(row["rfc_message_id"], {})[row["raw_sha256"]] = (row["raw_size"], row["raw_prefix_len"])
    return found


async def is_exact(conn: Connection, ref: MailboxRef, folder_id: FolderKey) -> bool:
    """Whether every message of the folder has the UID that it had at the source, and none else ever came."""
    return bool(await conn.fetchval(_IS_EXACT, ref.tenant_id, ref.mailbox_id, folder_id))


def is_done_twice(error: BaseException) -> bool:
    """Whether another import brought the same at the same time."""
    return isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == _CONSTRAINT


async def uid_validity(conn: Connection, ref: MailboxRef, folder_id: FolderKey) -> int:
    """Of the folder, as this transaction sees it; 0 when it is gone."""
    return int(await conn.fetchval(_UID_VALIDITY, ref.tenant_id, ref.mailbox_id, folder_id) or 0)
