"""Files that a message of ours links to and does not hold (outbound §6.8): rows beside those of its attachments, whose
bytes have keys of their own, and go with the message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from postroom.db.pool import Connection
from postroom.mailbox.models import PartInfo
from postroom.mailbox.sweep import KeysOfMessages

_ULID: Final = "[0-7][0-9A-HJKMNP-TV-Z]{25}"

# A part path of nothing: it is no part of the message.
_INSERT: Final = """
INSERT INTO attachments (tenant_id, message_id, position, public_id, part_path, filename, content_type, size,
  disposition, sniffed_type, blob_key)
SELECT m.tenant_id, m.id, $3 + f.n, f.public_id, '', f.filename, f.content_type, f.size, 'attachment', f.sniffed, f.key
FROM messages m, unnest($4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::text[]) WITH ORDINALITY
  AS f (public_id, filename, content_type, size, sniffed, key, n)
WHERE m.tenant_id = $1 AND m.public_id = $2
"""
_FIND: Final = """
SELECT a.blob_key, a.filename, a.sniffed_type, a.size
FROM tenants t
JOIN identities i ON i.tenant_id = t.id AND i.public_id = $2 AND i.status IN ('active', 'paused')
JOIN messages m ON m.tenant_id = t.id AND m.mailbox_id = i.id AND m.public_id = $3
JOIN attachments a ON a.tenant_id = m.tenant_id AND a.message_id = m.id AND a.public_id = $4
WHERE t.public_id = $1 AND t.status IN ('active', 'suspended') AND a.blob_key IS NOT NULL
"""
_NAMED: Final = """
SELECT k.key FROM unnest($1::text[], $2::text[], $3::text[]) AS k (key, tenant, message)
CROSS JOIN LATERAL (SELECT t.id FROM tenants t WHERE t.public_id = k.tenant LIMIT 1) t
CROSS JOIN LATERAL (
  SELECT m.id FROM messages m WHERE m.tenant_id + 0 = t.id AND m.public_id = k.message LIMIT 1
) m
JOIN attachments a ON a.tenant_id = t.id AND a.message_id = m.id AND a.blob_key = k.key
"""

FILE_KEYS: Final = KeysOfMessages(
    re.compile(rf"t/(?P<tenant>ten_{_ULID})/i/idn_{_ULID}/out/(?P<message>msg_{_ULID})/a/att_{_ULID}"), _NAMED
)


@dataclass(frozen=True, slots=True)
class LinkedFile:
    """A file that its message links to. `sniffed_type`: what its first bytes speak of, if anything."""

    id: str
    filename: str | None
    content_type: str
    content: bytes = field(repr=False)
    sniffed_type: str | None = None

    @property
    def part(self) -> PartInfo:
        """As attachments are described, though it is no part of anything."""
        size, kind = len(self.content), self.sniffed_type
        return PartInfo("", self.filename, self.content_type, size, "attachment", None, sniffed_type=kind)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Where the bytes of a linked file are, and what to call them; `size` in octets."""

    key: str
    filename: str | None
    sniffed_type: str | None
    size: int


def file_key(tenant_id: str, identity_id: str, message_id: str, attachment_id: str) -> str:
    """Where its bytes are kept (data-model.md §15)."""
    return f"t/{tenant_id}/i/{identity_id}/out/{message_id}/a/{attachment_id}"


async def insert(
    conn: Connection, tenant: int, message_id: str, files: Sequence[LinkedFile], keys: Sequence[str], *, after: int
) -> None:
    """Add the files to a message that the transaction has stored, behind its `after` attachments."""
    columns = [(f.id, f.filename, f.content_type, len(f.content), f.sniffed_type) for f in files]
    await conn.execute(_INSERT, tenant, message_id, after, *zip(*columns, strict=True), list(keys))


async def find(conn: Connection, tenant: str, identity: str, message: str, attachment: str) -> StoredFile | None:
    """The linked file of those public ids, as long as it and all that it belongs to is there."""
    row = await conn.fetchrow(_FIND, tenant, identity, message, attachment)
    return None if row is None else StoredFile(row["blob_key"], row["filename"], row["sniffed_type"], row["size"])
