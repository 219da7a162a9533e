"""The statements of the batched writer, as many at any batch size (quality.md: at most 12)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

# One round trip. Sequential scans are off because a plan made while the tables were small would stay in the
# statement cache.
BEGIN: Final = """
BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off;
SET LOCAL jit = off; SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL lock_timeout = '5s'
"""

# For mailboxes that are waited for, before anything else is held.
LOCK_WAITING: Final = """
SELECT m.tenant_id, m.id FROM unnest($1::bigint[], $2::bigint[]) AS k (tenant_id, id)
JOIN mailboxes m ON m.tenant_id = k.tenant_id AND m.id = k.id
ORDER BY m.id FOR NO KEY UPDATE OF m
"""

# Locks and reads, in one round trip (0001_initial.sql).
READ: Final = """
SELECT boxes, folders, hits
FROM ingest_read($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""

# Which of the senders wrote one of the newest 1,000 messages of a thread whose list of participants is full.
WROTE_BEFORE: Final = """
SELECT k.mailbox_id, k.seq, k.sender FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[])
       AS k (tenant_id, mailbox_id, seq, sender)
WHERE EXISTS (
  SELECT FROM (
    SELECT m.from_address FROM messages m
    WHERE m.tenant_id = k.tenant_id AND m.mailbox_id = k.mailbox_id AND m.thread_seq = k.seq
    ORDER BY m.received_at DESC, m.id DESC LIMIT 1000
  ) newest WHERE newest.from_address = k.sender
)
"""

MARK_CONFLICT: Final = """
UPDATE messages SET facts = array_append(facts, 'message_id_conflict')
FROM unnest($1::bigint[], $2::bigint[]) AS k (tenant_id, id)
WHERE messages.tenant_id = k.tenant_id AND messages.id = k.id AND NOT 'message_id_conflict' = ANY (messages.facts)
"""


class RowSet:
    """Rows that travel to the database as one array per column."""

    __slots__ = ("alias", "columns", "numbered")

    def __init__(self, alias: str, columns: str, *, numbered: bool = False) -> None:
        self.alias = alias
        self.columns = tuple(tuple(column.split()) for column in columns.split(","))
        self.numbered = numbered

    def source(self, first: int) -> str:
        """`unnest(…) AS alias (columns)` with parameters from `$first`; `numbered` adds the row number `n`, from 1."""
        arrays = ", ".join(f"${first + i}::{kind}[]" for i, (_, kind) in enumerate(self.columns))
        names = ", ".join(name for name, _ in self.columns)
        if self.numbered:
            return f"unnest({arrays}) WITH ORDINALITY AS {self.alias} ({names}, n)"
        return f"unnest({arrays}) AS {self.alias} ({names})"

    def arrays(self, rows: Sequence[Sequence[object]]) -> Iterable[Sequence[object]]:
        """The columns of `rows`, in the order of `source`'s parameters."""
        return zip(*rows, strict=True) if rows else [()] * len(self.columns)


NEW: Final = RowSet(
    "u",
    """
    tenant_id bigint, mailbox_id bigint, public_id text, thread_seq bigint, source text, direction text, status text,
    rfc_message_id text, in_reply_to text, reference_ids text, raw_sha256 bytea, body_sha256 bytea, blob_key text,
    raw_size bigint, raw_prefix_len int, from_address text, from_name text, delivered_to text, is_bcc bool,
    is_primary_recipient bool, subject text, subject_fold text, snippet text, sent_at timestamptz,
    received_at timestamptz, kind text, verdict text, facts text, parser_version int, envelope bytea,
    body_structure bytea, part_tree bytea, text text, html text, extracted_text text, folder_id bigint, uid bigint,
    modseq bigint, internal_date timestamptz, flags text, change_seq bigint
    """,
    numbered=True,
)
THREADS: Final = RowSet(
    "t",
    """
    tenant_id bigint, mailbox_id bigint, seq bigint, public_id text, subject text, first_at timestamptz,
    last_at timestamptz, last_inbound_at timestamptz, last_outbound_at timestamptz, message_count int, unread_count int,
    participants text, reply_from_address text, archived bool
    """,
)
RECIPIENTS: Final = RowSet("r", "n bigint, kind text, position smallint, address text, name text")
ATTACHMENTS: Final = RowSet(
    "a",
    """
    n bigint, position int, public_id text, part_path text, filename text, content_type text, size bigint,
    disposition text, content_id text
    """,
)
EVENTS: Final = RowSet("e", "n bigint, public_id text, type text, owner_id text, sequence bigint, payload bytea")
FOLDER_STATE: Final = RowSet(
    "s",
    """
    tenant_id bigint, id bigint, uid_next bigint, message_count bigint, unseen_count bigint, deleted_count bigint,
    total_bytes bigint, modseq bigint
    """,
)
MAILBOX_STATE: Final = RowSet(
    "s",
    """
    tenant_id bigint, id bigint, modseq bigint, change_seq bigint, event_seq bigint, next_thread_seq bigint,
    used_bytes bigint
    """,
)

ROW_SETS: Final = (NEW, THREADS, RECIPIENTS, ATTACHMENTS, EVENTS, FOLDER_STATE, MAILBOX_STATE)

# Everything a batch writes; `now` is $1. `new` draws the row keys under the mailbox locks, in the order of the arrays.
_WRITE: Final = """
WITH new AS MATERIALIZED (
  SELECT nextval('message_ids') AS id, u.* FROM {new}
), w_threads AS (
  INSERT INTO threads (tenant_id, mailbox_id, seq, public_id, subject, first_at, last_at, last_inbound_at,
         last_outbound_at,
                       message_count, unread_count, participants_json, reply_from_address, archived)
  SELECT tenant_id, mailbox_id, seq, public_id, subject, first_at, last_at, last_inbound_at, last_outbound_at,
         message_count, unread_count, participants::jsonb, reply_from_address, archived
  FROM {threads}
  ON CONFLICT (tenant_id, mailbox_id, seq) DO UPDATE SET
    subject = excluded.subject, last_at = excluded.last_at, last_inbound_at = excluded.last_inbound_at,
    last_outbound_at = excluded.last_outbound_at, message_count = excluded.message_count, unread_count =
           excluded.unread_count,
    participants_json = excluded.participants_json, reply_from_address = excluded.reply_from_address, archived =
    excluded.archived
), w_messages AS (
  INSERT INTO messages (tenant_id, id, public_id, mailbox_id, thread_seq, source, direction, status, rfc_message_id,
         in_reply_to,
                        reference_ids, raw_sha256, body_sha256, blob_key, raw_size, raw_prefix_len, from_address,
                               from_name,
                        delivered_to, is_bcc, is_primary_recipient, subject, subject_fold, snippet, sent_at,
                               received_at, kind,
                        verdict, facts, parser_version, envelope, body_structure, part_tree)
  SELECT tenant_id, id, public_id, mailbox_id, thread_seq, source, direction, status, rfc_message_id, in_reply_to,
         string_to_array(reference_ids, ' '), raw_sha256, body_sha256, blob_key, raw_size, raw_prefix_len, from_address,
         from_name, delivered_to, is_bcc, is_primary_recipient, subject, subject_fold, snippet, sent_at, received_at,
                kind,
         verdict, string_to_array(facts, ' '), parser_version, envelope, body_structure, part_tree
  FROM new
), w_texts AS (
  INSERT INTO message_texts (tenant_id, message_id, text, html, extracted_text)
  SELECT tenant_id, id, text, html, extracted_text FROM new
), w_placements AS (
  INSERT INTO placements (tenant_id, folder_id, uid, mailbox_id, message_id, size, modseq, internal_date, saved_at,
         flags)
  SELECT tenant_id, folder_id, uid, mailbox_id, id, raw_size, modseq, internal_date, $1, string_to_array(flags, ' ')
         FROM new
), w_recipients AS (
  INSERT INTO recipients (tenant_id, message_id, kind, position, address, name)
  SELECT new.tenant_id, new.id, r.kind, r.position, r.address, r.name FROM {recipients} JOIN new USING (n)
), w_attachments AS (
  INSERT INTO attachments (tenant_id, message_id, position, public_id, part_path, filename, content_type, size,
         disposition,
                           content_id)
  SELECT new.tenant_id, new.id, a.position, a.public_id, a.part_path, a.filename, a.content_type, a.size, a.disposition,
         a.content_id
  FROM {attachments} JOIN new USING (n)
), w_changes AS (
  INSERT INTO changes (tenant_id, mailbox_id, seq, modseq, kind, folder_id, uid, message, flags, at)
  SELECT tenant_id, mailbox_id, change_seq, modseq, 'placed', folder_id, uid, public_id, string_to_array(flags, ' '),
         $1 FROM new
), w_events AS (
  INSERT INTO events (public_id, type, tenant_id, identity_id, message_id, owner_kind, owner_id, sequence, payload,
         occurred_at)
  SELECT e.public_id, e.type, new.tenant_id, new.mailbox_id, new.id, 'mailbox', e.owner_id, e.sequence, e.payload, $1
  FROM {events} JOIN new USING (n)
), w_folders AS (
  UPDATE folders f SET uid_next = s.uid_next, message_count = s.message_count, unseen_count = s.unseen_count,
         deleted_count = s.deleted_count, total_bytes = s.total_bytes, highest_modseq = s.modseq
  FROM {folders} WHERE f.tenant_id = s.tenant_id AND f.id = s.id
), w_mailboxes AS (
  UPDATE mailboxes b SET modseq = s.modseq, change_seq = s.change_seq, event_seq = s.event_seq,
         next_thread_seq = s.next_thread_seq, used_bytes = s.used_bytes
  FROM {mailboxes} WHERE b.tenant_id = s.tenant_id AND b.id = s.id
)
INSERT INTO word_tasks (tenant_id, mailbox_id, first_id, last_id, next_attempt_at)
SELECT tenant_id, mailbox_id, min(id), max(id), $1 FROM new GROUP BY tenant_id, mailbox_id
"""


def _number_parameters() -> str:
    sources, first = {}, 2
    for name, rows in zip(
        ("new", "threads", "recipients", "attachments", "events", "folders", "mailboxes"), ROW_SETS, strict=True
    ):
        sources[name] = rows.source(first)
        first += len(rows.columns)
    return _WRITE.format(**sources)


WRITE: Final = _number_parameters()
