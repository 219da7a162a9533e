"""Notes of mail clients on folders, and on a mailbox as a whole (RFC 5464).

They have no row in the log and no event. A change of them raises the modseq of the mailbox all the same, which no
message and no folder has then: so whoever watches the mailbox is woken, on every node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from postroom.base.errors import PostroomError
from postroom.db import Connection, Database
from postroom.mailbox import folders
from postroom.mailbox.models import FolderKey, MailboxRef
from postroom.mailbox.rules import LimitExceeded
from postroom.mailbox.writing import LOCK_TIMEOUT_MS

MAX_ENTRIES: Final = 100
"""Entries of one folder, or of the mailbox, that one owner may have."""
MAX_NAME: Final = 255
MAX_VALUE: Final = 64 * 1024
"""Octets."""
MAX_BYTES: Final = 1024 * 1024
"""Octets of all values of a mailbox: they are notes, and count for no quota."""

_RAISE: Final = """
UPDATE mailboxes SET modseq = modseq + 1 WHERE tenant_id = $1 AND id = $2 AND NOT erased RETURNING modseq
"""
_READ: Final = """
SELECT entry, value FROM annotations
WHERE tenant_id = $1 AND mailbox_id = $2 AND folder_id IS NOT DISTINCT FROM $3 AND owner = ANY ($4::text[])
ORDER BY entry LIMIT $5
"""
_MARKS: Final = """
SELECT folder_id, entry, md5(value) AS digest FROM annotations
WHERE tenant_id = $1 AND mailbox_id = $2 AND owner = ANY ($3::text[]) LIMIT $4
"""
_REMOVE: Final = """
DELETE FROM annotations
WHERE tenant_id = $1 AND mailbox_id = $2 AND folder_id IS NOT DISTINCT FROM $3 AND (owner, entry) IN (
  SELECT * FROM unnest($4::text[], $5::text[])
)
"""
_WRITE: Final = """
INSERT INTO annotations (tenant_id, mailbox_id, folder_id, owner, entry, value)
SELECT $1, $2, $3, owner, entry, value FROM unnest($4::text[], $5::text[], $6::bytea[]) AS new (owner, entry, value)
"""
_COUNT: Final = """
SELECT coalesce(max(number), 0) FROM (
  SELECT count(*) AS number FROM annotations
  WHERE tenant_id = $1 AND mailbox_id = $2 AND folder_id IS NOT DISTINCT FROM $3 GROUP BY owner
) counted
"""
_WEIGH: Final = """
SELECT coalesce(sum(length(value) + length(entry)), 0) FROM annotations WHERE tenant_id = $1 AND mailbox_id = $2
"""

SHARED: Final = ""
"""The owner of what everybody sees who may open the mailbox."""


class Entry(NamedTuple):
    """The name of an annotation, in lower case, and whose it is."""

    owner: str
    name: str


Marks = Mapping[FolderKey | None, Mapping[str, str]]
"""Digests (MD5 in hexadecimal) of values by name, of each folder that has any and of the mailbox (None)."""


class Annotations:
    """Of all mailboxes of a deployment. `changed` is told after a commit, as by `service.Mailboxes`."""

    def __init__(self, database: Database, changed: Callable[[MailboxRef, int], None]) -> None:
        self._database = database
        self._changed = changed

    async def read(self, ref: MailboxRef, folder_id: FolderKey | None, owner: str) -> Mapping[str, bytes]:
        """What `owner` sees of a folder, or of the mailbox (None), by name: at most `MAX_ENTRIES` of each kind."""
        async with self._database.acquire() as conn:
            rows = await conn.fetch(_READ, ref.tenant_id, ref.mailbox_id, folder_id, [SHARED, owner], 2 * MAX_ENTRIES)
        return {row["entry"]: row["value"] for row in rows}

    async def marks(self, ref: MailboxRef, owner: str, limit: int) -> Marks:
        """What tells whether anything changed that `owner` sees, of no more than `limit` entries."""
        async with self._database.acquire() as conn:
            rows = await conn.fetch(_MARKS, ref.tenant_id, ref.mailbox_id, [SHARED, owner], limit)
        found: dict[FolderKey | None, dict[str, str]] = {}
        for row in rows:
            found.setdefault(row["folder_id"], {})[row["entry"]] = row["digest"]
        return found

    async def write(
        self, ref: MailboxRef, folder_id: FolderKey | None, values: Sequence[tuple[Entry, bytes | None]]
    ) -> None:
        """Set entries, or remove those whose value is None: all of them or none.

        Raises `identity_not_found`, `folder_not_found`, and LimitExceeded when there would be too many.
        """
        last = dict(values)
        async with self._database.transaction() as conn:
            # So that two at a time cannot both be the last that fits; the folder cannot go meanwhile either.
            await conn.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
            modseq = await conn.fetchval(_RAISE, ref.tenant_id, ref.mailbox_id)
            if modseq is None:
                raise PostroomError("identity_not_found")
            if folder_id is not None:
                await folders.by_key(conn, ref, folder_id)
            await self._replace(conn, ref, folder_id, last.items())
            if await conn.fetchval(_COUNT, ref.tenant_id, ref.mailbox_id, folder_id) > MAX_ENTRIES:
                raise LimitExceeded("annotations", MAX_ENTRIES)
            if await conn.fetchval(_WEIGH, ref.tenant_id, ref.mailbox_id) > MAX_BYTES:
                raise LimitExceeded("annotations", MAX_BYTES)
        self._changed(ref, modseq)

    async def _replace(
        self,
        conn: Connection,
        ref: MailboxRef,
        folder_id: FolderKey | None,
        values: Iterable[tuple[Entry, bytes | None]],
    ) -> None:
        pairs = list(values)
        await conn.execute(
            _REMOVE,
            ref.tenant_id,
            ref.mailbox_id,
            folder_id,
            [entry.owner for entry, _ in pairs],
            [entry.name for entry, _ in pairs],
        )
        kept = [(entry, value) for entry, value in pairs if value is not None]
        await conn.execute(
            _WRITE,
            ref.tenant_id,
            ref.mailbox_id,
            folder_id,
            [entry.owner for entry, _ in kept],
            [entry.name for entry, _ in kept],
            [value for _, value in kept],
        )
