"""Statements of `queries`, put together from constant pieces; values are always parameters.

Filters that are not asked for are left out rather than switched off by a parameter, so that every plan can use an
index.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from postroom.mailbox.models import MailboxRef


class Order(StrEnum):
    NEWEST_FIRST = " ORDER BY m.received_at DESC, m.id DESC"
    OLDEST_FIRST = " ORDER BY m.received_at, m.id"


NEWEST_FIRST: Final = Order.NEWEST_FIRST
OLDEST_FIRST: Final = Order.OLDEST_FIRST

# $1 tenant, $2 mailbox; `?` is the next parameter.

MESSAGES_ALL: Final = ""
MESSAGES_BEFORE: Final = " AND (m.received_at, m.id) < ($3, $4::bigint) AND m.received_at > $5"
MESSAGES_AFTER: Final = " AND (m.received_at, m.id) > ($3, $4::bigint)"
MESSAGE_ID: Final = " AND m.public_id = ?"
MESSAGE_THREAD: Final = (
    " AND m.thread_seq = (SELECT t.seq FROM threads t WHERE t.tenant_id = $1 AND t.mailbox_id = $2 AND t.public_id = ?)"
)
MESSAGE_DIRECTION: Final = " AND m.direction = ?"
MESSAGE_STATUS: Final = " AND m.status = ?"
MESSAGE_LABEL: Final = " AND ?::text = ANY (p.flags)"
MESSAGE_FOLDER: Final = (
    " AND m.id IN (SELECT f.message_id FROM placements f"
    " WHERE f.tenant_id = $1 AND f.mailbox_id = $2 AND f.folder_id = ?)"
)
MESSAGE_RECEIVED: Final = " AND m.direction = 'inbound' AND m.status = 'received'"
MESSAGE_FROM: Final = " AND m.from_address = ?"
MESSAGE_FROM_DOMAIN: Final = " AND right(m.from_address, length(?)) = ?"
MESSAGE_SUBJECT: Final = " AND strpos(lower(m.subject), lower(?)) > 0"
# In a thread that held something of ours before, and nobody doubts that it belongs there (C9).
MESSAGE_IS_REPLY: Final = (
    " AND NOT 'thread_join_unverified' = ANY (m.facts) AND EXISTS (SELECT FROM messages o"
    " WHERE o.tenant_id = $1 AND o.mailbox_id = $2 AND o.thread_seq = m.thread_seq"
    " AND o.direction = 'outbound' AND o.id < m.id)"
)

MESSAGE_VERIFIES: Final = (
    " AND EXISTS (SELECT FROM verifications v"
    " WHERE v.tenant_id = m.tenant_id AND v.message_id = m.id AND v.expires_at > ?"
    " AND (v.consumed_at IS NULL OR v.consumed_at > ?::timestamptz - interval '1 hour'))"
)

THREADS_ALL: Final = ""
THREADS_BEFORE: Final = " AND (t.last_at, t.seq) < ($3, $4::bigint) AND t.last_at > $5"
THREAD_ID: Final = " AND t.public_id = ?"
THREAD_ARCHIVED: Final = " AND t.archived = ?"
THREAD_UNREAD: Final = " AND t.unread_count > 0"
THREAD_READ: Final = " AND t.unread_count = 0"
THREAD_DIRECTION: Final = " AND n.direction = ?"
# As a value rather than EXISTS, which the planner may turn into a join over all messages of the mailbox.
THREAD_LABEL: Final = """ AND (
    SELECT true FROM messages m
    JOIN LATERAL (
      SELECT p.flags FROM placements p WHERE p.tenant_id = m.tenant_id AND p.message_id = m.id
      ORDER BY p.saved_at, p.folder_id, p.uid LIMIT 1
    ) p ON true
    WHERE m.tenant_id = t.tenant_id AND m.mailbox_id = t.mailbox_id AND m.thread_seq = t.seq
      AND ?::text = ANY (p.flags) LIMIT 1)"""

_MESSAGES: Final = """
SELECT m.id, m.public_id, t.public_id AS thread_id, b.identity_public_id AS identity_id, m.direction, m.status,
       m.from_address, m.from_name, m.delivered_to, m.is_bcc, m.is_primary_recipient, m.subject, m.snippet, m.sent_at,
       m.received_at, m.kind, m.verdict, m.facts, m.rfc_message_id, m.in_reply_to, m.reference_ids, m.blob_key,
       m.raw_size, m.raw_prefix_len, m.flags, m.auth::text AS auth,
       coalesce(w.language, m.language) AS language, coalesce(w.gleaned, false) AS gleaned,
       CASE WHEN ?::bool THEN coalesce(x.extracted_text, x.text) END AS extracted_text,
       CASE WHEN ?::bool THEN x.text END AS text,
       CASE WHEN ?::bool THEN x.html END AS html
FROM (
  SELECT m.*, p.flags FROM messages m
  LEFT JOIN LATERAL (
    SELECT p.flags FROM placements p WHERE p.tenant_id = m.tenant_id AND p.message_id = m.id
    ORDER BY p.saved_at, p.folder_id, p.uid LIMIT 1
  ) p ON true
  WHERE m.tenant_id = $1 AND m.mailbox_id = $2"""
_MESSAGES_END: Final = """
) m
JOIN mailboxes b ON b.tenant_id = m.tenant_id AND b.id = m.mailbox_id
JOIN threads t ON t.tenant_id = m.tenant_id AND t.mailbox_id = m.mailbox_id AND t.seq = m.thread_seq
LEFT JOIN message_texts x ON x.tenant_id = m.tenant_id AND x.message_id = m.id
LEFT JOIN LATERAL (
  SELECT w.language, w.gleaned FROM message_words w WHERE w.tenant_id = m.tenant_id AND w.message_id = m.id LIMIT 1
) w ON true
"""

_THREADS: Final = """
SELECT t.seq, t.public_id, t.subject, t.participants_json, t.message_count, t.unread_count, t.first_at, t.last_at,
       t.last_inbound_at, t.last_outbound_at, t.reply_from_address, t.archived, t.direction AS last_direction,
       t.snippet, l.flags
FROM (
  SELECT t.*, n.direction, n.snippet FROM threads t
  JOIN LATERAL (
    SELECT m.direction, m.snippet FROM messages m
    WHERE m.tenant_id = t.tenant_id AND m.mailbox_id = t.mailbox_id AND m.thread_seq = t.seq
    ORDER BY m.received_at DESC, m.id DESC LIMIT 1
  ) n ON true
  WHERE t.tenant_id = $1 AND t.mailbox_id = $2 AND t.message_count > 0"""
_THREADS_END: Final = """
) t
LEFT JOIN LATERAL (
  SELECT array_agg(DISTINCT f.flag) AS flags FROM messages m
  JOIN LATERAL (
    SELECT p.flags FROM placements p WHERE p.tenant_id = m.tenant_id AND p.message_id = m.id
    ORDER BY p.saved_at, p.folder_id, p.uid LIMIT 1
  ) p ON true
  CROSS JOIN LATERAL unnest(p.flags) AS f (flag)
  WHERE m.tenant_id = t.tenant_id AND m.mailbox_id = t.mailbox_id AND m.thread_seq = t.seq
) l ON true
ORDER BY t.last_at DESC, t.seq DESC
"""
_THREADS_LIMIT: Final = " ORDER BY t.last_at DESC, t.seq DESC LIMIT ?"

RECIPIENTS: Final = """
SELECT message_id, kind, address, name FROM recipients
WHERE tenant_id = $1 AND message_id = ANY ($2::bigint[]) ORDER BY message_id, kind, position
"""

ATTACHMENTS: Final = """
SELECT message_id, public_id, part_path, filename, content_type, size, disposition, content_id, sniffed_type, risk
FROM attachments
WHERE tenant_id = $1 AND message_id = ANY ($2::bigint[]) ORDER BY message_id, position
"""

# In the order of A5: the oldest placement first.
PLACES: Final = """
SELECT p.message_id, f.public_id AS folder_id, f.name AS folder, p.uid, p.flags FROM placements p
JOIN folders f ON f.tenant_id = p.tenant_id AND f.id = p.folder_id
WHERE p.tenant_id = $1 AND p.message_id = ANY ($2::bigint[]) ORDER BY p.message_id, p.saved_at, p.folder_id, p.uid
"""

REFS: Final = """
SELECT message_id, kind, value, source FROM refs
WHERE tenant_id = $1 AND message_id = ANY ($2::bigint[]) ORDER BY message_id, kind, value, source
"""

NEW_TEXTS: Final = """
SELECT message_id, left(coalesce(extracted_text, text), $3) AS text FROM message_texts
WHERE tenant_id = $1 AND message_id = ANY ($2::bigint[])
"""

ATTACHMENT: Final = """
SELECT m.blob_key, m.raw_size, m.raw_prefix_len, m.part_tree, a.public_id, a.part_path, a.filename, a.content_type,
       a.size, a.disposition, a.content_id, a.sniffed_type, a.risk, a.blob_key AS file_key
FROM messages m
LEFT JOIN attachments a ON a.tenant_id = m.tenant_id AND a.message_id = m.id AND a.public_id = $4
WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.public_id = $3
"""


class Query:
    """Conditions and their values, in step."""

    __slots__ = ("_conditions", "values")

    def __init__(self, ref: MailboxRef, *bounds: object) -> None:
        self.values: list[object] = [ref.tenant_id, ref.mailbox_id, *bounds]
        self._conditions: list[str] = []

    def text(self, condition: str) -> None:
        """A condition without a value of its own."""
        self._conditions.append(condition)

    def where(self, condition: str, value: object) -> None:
        """A condition on `value`; none when it is None."""
        if value is not None:
            self._conditions.append(self._numbered(condition, value))

    def messages(self, order: Order, limit: int, texts: Sequence[bool]) -> str:
        """The statement for messages; `texts`: extracted, whole, HTML."""
        head = _MESSAGES
        for wanted in texts:
            self.values.append(wanted)
            head = head.replace("?", f"${len(self.values)}", 1)
        return "".join((head, *self._conditions, order, self._numbered(" LIMIT ?", limit), _MESSAGES_END, order))

    def threads(self, limit: int) -> str:
        return "".join((_THREADS, *self._conditions, self._numbered(_THREADS_LIMIT, limit), _THREADS_END))

    def _numbered(self, condition: str, value: object) -> str:
        self.values.append(value)
        return condition.replace("?", f"${len(self.values)}")
