"""The one copy of a sent message (mail-server A3): a client that submits mail also puts it into Sent by itself. And
what lies beside it in the blob store."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

from postroom.db.pool import Connection
from postroom.mailbox.models import Appended, FolderKey, MailboxRef

SENT_COPY_WINDOW: Final = timedelta(minutes=10)
"""How long after a message was accepted for sending its client may still come with a copy of its own."""

_RAW_KEY: Final = re.compile(r"(?P<owner>t/[^/]+/i/[^/]+)/m/(?P<id>[^/]+)/raw[.]eml")

_LATELY: Final = """
SELECT m.public_id, t.public_id AS thread_id, p.uid, p.modseq, f.uid_validity
FROM messages m
JOIN placements p ON p.tenant_id = m.tenant_id AND p.message_id = m.id
JOIN folders f ON f.tenant_id = p.tenant_id AND f.id = p.folder_id
JOIN threads t ON t.tenant_id = m.tenant_id AND t.mailbox_id = m.mailbox_id AND t.seq = m.thread_seq
WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.rfc_message_id = $3 AND m.source = 'send'
  AND p.folder_id = $4 AND p.saved_at > $5
ORDER BY p.uid DESC LIMIT 1
"""


def ledger_key(blob_key: str) -> str:
    """Where that is kept which restores the ledger of sends beside the message whose bytes have that key (outbound
    §3.4). Not every message has it."""
    message = _RAW_KEY.fullmatch(blob_key)
    if message is None:
        raise ValueError("not the key of a message's bytes")
    return f"{message['owner']}/out/{message['id']}.json"


async def stored_copy(
    conn: Connection, ref: MailboxRef, folder: FolderKey, rfc_message_id: str, now: datetime
) -> Appended | None:
    """The message with that Message-ID that was put into the folder by being sent a moment ago; None without one."""
    row = await conn.fetchrow(_LATELY, ref.tenant_id, ref.mailbox_id, rfc_message_id, folder, now - SENT_COPY_WINDOW)
    if row is None:
        return None
    return Appended(
        row["public_id"],
        ref,
        row["thread_id"],
        folder,
        row["uid"],
        row["uid_validity"],
        row["modseq"],
        duplicate=True,
    )
