"""Notes of mail clients on folders, and on a mailbox as a whole (RFC 5464).

They change nothing that others see of a folder, so that they have no modseq, no row in the log and no event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from postroom.db import Connection, Database
from postroom.mailbox import folders
from postroom.mailbox.models import FolderKey, MailboxRef
from postroom.mailbox.rules import LimitExceeded

MAX_ENTRIES: Final = 100
"""Entries of one folder, or of the mailbox, that one owner may have."""
MAX_NAME: Final = 255
MAX_VALUE: Final = 64 * 1024
"""Octets."""
MAX_BYTES: Final = 1024 * 1024
"""Octets of all values of a mailbox: they are notes, and count for no quota."""

_LOCK: Final = "SELECT 1 FROM mailboxes WHERE tenant_id = $1 AND id = $2 AND NOT erased FOR NO KEY UPDATE"
_READ: Final = """
SELECT entry, value FROM annotations
WHERE tenant_id = $1 AND mailbox_id = $2 AND folder_id IS NOT DISTINCT FROM $3 AND owner = ANY ($4::text[])
ORDER BY entry LIMIT $5
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


class Annotations:
    """Of all mailboxes of a deployment."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, ref: MailboxRef, folder_id: FolderKey | None, owner: str) -> Mapping[str, bytes]:
        """What `owner` sees of a folder, or of the mailbox (None), by name: at most `MAX_ENTRIES` of each kind."""
        async with self._database.acquire() as conn:
            rows = await conn.fetch(_READ, ref.tenant_id, ref.mailbox_id, folder_id, [SHARED, owner], 2 * MAX_ENTRIES)
        return {row["entry"]: row["value"] for row in rows}

    async def write(
        self, ref: MailboxRef, folder_id: FolderKey | None, values: Sequence[tuple[Entry, bytes | None]]
    ) -> None:
        """Set entries, or remove those whose value is None: all of them or none.

        Raises `folder_not_found`, and LimitExceeded when there would be too many.
        """
        last = dict(values)
        async with self._database.transaction() as conn:
            # So that two at a time cannot both be the last that fits; the folder cannot go meanwhile either.
            await conn.execute(_LOCK, ref.tenant_id, ref.mailbox_id)
            if folder_id is not None:
                await folders.by_key(conn, ref, folder_id)
            await self._replace(conn, ref, folder_id, last.items())
            if await conn.fetchval(_COUNT, ref.tenant_id, ref.mailbox_id, folder_id) > MAX_ENTRIES:
                raise LimitExceeded("annotations", MAX_ENTRIES)
            if await conn.fetchval(_WEIGH, ref.tenant_id, ref.mailbox_id) > MAX_BYTES:
                raise LimitExceeded("annotations", MAX_BYTES)

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
