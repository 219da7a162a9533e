"""Which folders of a mailbox that was granted to a person this person has subscribed to: nobody else's business, so
that there is neither modseq nor log.
"""

from __future__ import annotations

from typing import Final

import asyncpg

from postroom.base.errors import PostroomError
from postroom.db import Database
from postroom.mailbox.models import FolderKey, MailboxRef

_READ: Final = """
SELECT folder_id FROM shared_subscriptions WHERE tenant_id = $1 AND mailbox_id = $2 AND person_id = $3
"""
# No row for a folder of another mailbox.
_ADD: Final = """
INSERT INTO shared_subscriptions (tenant_id, mailbox_id, person_id, folder_id)
SELECT $1, $2, $3, f.id FROM folders f WHERE f.tenant_id = $1 AND f.mailbox_id = $2 AND f.id = $4
ON CONFLICT DO NOTHING
"""
_REMOVE: Final = """
DELETE FROM shared_subscriptions WHERE tenant_id = $1 AND mailbox_id = $2 AND person_id = $3 AND folder_id = $4
"""


class Subscriptions:
    """Of all mailboxes of a deployment. People are named by their row's key."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, ref: MailboxRef, person_id: int) -> frozenset[FolderKey]:
        """The folders of the mailbox that the person has subscribed to."""
        async with self._database.acquire() as conn:
            rows = await conn.fetch(_READ, ref.tenant_id, ref.mailbox_id, person_id)
        return frozenset(FolderKey(row["folder_id"]) for row in rows)

    async def put(self, ref: MailboxRef, person_id: int, folder_id: FolderKey, subscribed: bool) -> None:
        """Subscribe, or do so no more. Raises `folder_not_found` when the mailbox is granted to the person no more."""
        try:
            async with self._database.acquire() as conn:
                await conn.execute(_ADD if subscribed else _REMOVE, ref.tenant_id, ref.mailbox_id, person_id, folder_id)
        except asyncpg.ForeignKeyViolationError:
            raise PostroomError("folder_not_found") from None
