"""The statements of the batched writer, as many at any batch size (quality.md: at most 12)."""

from __future__ import annotations

from typing import Final

SETTINGS: Final = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "lock_timeout": "5s",
}
"""Of a session, or a transaction, that appends. Sequential scans and the joins that read whole tables are off because a
plan made while the tables were small would stay in the statement cache."""

# One round trip.
BEGIN: Final = "BEGIN; " + "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in SETTINGS.items())

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

# Threads by their numbers, for messages of which more than headers is known.
THREADS_BY_NUMBER: Final = """
SELECT json_agg(n) FROM (
  SELECT t.mailbox_id, t.seq, t.public_id AS thread_id, t.subject AS thread_subject, t.first_at, t.last_at,
         t.last_inbound_at, t.last_outbound_at, t.message_count, t.unread_count, t.participants_json,
         t.reply_from_address, t.archived
  FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS k (tenant_id, mailbox_id, seq)
  JOIN threads t ON t.tenant_id = k.tenant_id AND t.mailbox_id = k.mailbox_id AND t.seq = k.seq
) n
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
    """Rows that travel to the database as one array of a composite type, which has these columns (0001_initial.sql,
    0011_judgement.sql).

    An array for each column, 92 in all, took 0.15 ms longer for a single message and 0.5 ms for a batch of seven.
    """

    __slots__ = ("alias", "columns", "numbered", "type")

    def __init__(self, kind: str, alias: str, columns: str, *, numbered: bool = False) -> None:
        self.type = kind
        self.alias = alias
        self.columns = tuple(tuple(column.split()) for column in columns.split(","))
        self.numbered = numbered

    def source(self, parameter: int) -> str:
        """`unnest(…) AS alias`, of the parameter of that number; `numbered` adds the row number `n`, from 1."""
        if not self.numbered:
            return f"unnest(${parameter}::{self.type}[]) AS {self.alias}"
        names = ", ".join(name for name, _ in self.columns)
        return f"unnest(${parameter}::{self.type}[]) WITH ORDINALITY AS {self.alias} ({names}, n)"


NEW: Final = RowSet(
    "ingest_judged_message",
    "u",
    """
    tenant_id bigint, mailbox_id bigint, public_id text, thread_seq bigint, source text, direction text, status text,
    rfc_message_id text, in_reply_to text, reference_ids text, raw_sha256 bytea, body_sha256 bytea, blob_key text,
    raw_size bigint, raw_prefix_len int, from_address text, from_name text, delivered_to text, is_bcc bool,
    is_primary_recipient bool, subject text, subject_fold text, snippet text, sent_at timestamptz,
    received_at timestamptz, kind text, verdict text, facts text, parser_version int, envelope bytea,
    body_structure bytea, part_tree bytea, text text, html text, extracted_text text, folder_id bigint, uid bigint,
    modseq bigint, internal_date timestamptz, flags text, change_seq bigint, language text, auth text, automated text
    """,
    numbered=True,
)
THREADS: Final = RowSet(
    "ingest_thread",
    "t",
    """
    tenant_id bigint, mailbox_id bigint, seq bigint, public_id text, subject text, first_at timestamptz,
    last_at timestamptz, last_inbound_at timestamptz, last_outbound_at timestamptz, message_count int, unread_count int,
    participants text, reply_from_address text, archived bool
    """,
)
RECIPIENTS: Final = RowSet("ingest_recipient", "r", "n bigint, kind text, position smallint, address text, name text")
ATTACHMENTS: Final = RowSet(
    "ingest_inspected_attachment",
    "a",
    """
    n bigint, position int, public_id text, part_path text, filename text, content_type text, size bigint,
    disposition text, content_id text, sniffed_type text, risk text
    """,
)
VERIFICATIONS: Final = RowSet(
    "ingest_verification", "v", "n bigint, kind text, value text, sender_domain text, expires_at timestamptz"
)
EVENTS: Final = RowSet(
    "ingest_event", "e", "n bigint, public_id text, type text, owner_id text, sequence bigint, payload bytea"
)
FOLDER_STATE: Final = RowSet(
    "ingest_folder",
    "s",
    """
    tenant_id bigint, id bigint, uid_next bigint, message_count bigint, unseen_count bigint, deleted_count bigint,
    total_bytes bigint, modseq bigint
    """,
)
MAILBOX_STATE: Final = RowSet(
    "ingest_mailbox",
    "s",
    """
    tenant_id bigint, id bigint, modseq bigint, change_seq bigint, event_seq bigint, next_thread_seq bigint,
    used_bytes bigint
    """,
)

ROW_SETS: Final = (NEW, THREADS, RECIPIENTS, ATTACHMENTS, VERIFICATIONS, EVENTS, FOLDER_STATE, MAILBOX_STATE)

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
                        verdict, facts, parser_version, envelope, body_structure, part_tree, auth, automated)
  SELECT tenant_id, id, public_id, mailbox_id, thread_seq, source, direction, status, rfc_message_id, in_reply_to,
         string_to_array(reference_ids, ' '), raw_sha256, body_sha256, blob_key, raw_size, raw_prefix_len, from_address,
         from_name, delivered_to, is_bcc, is_primary_recipient, subject, subject_fold, snippet, sent_at, received_at,
                kind,
         verdict, string_to_array(facts, ' '), parser_version, envelope, body_structure, part_tree,
         auth::jsonb, automated::jsonb
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
                           content_id, sniffed_type, risk)
  SELECT new.tenant_id, new.id, a.position, a.public_id, a.part_path, a.filename, a.content_type, a.size, a.disposition,
         a.content_id, a.sniffed_type, a.risk
  FROM {attachments} JOIN new USING (n)
), w_verifications AS (
  INSERT INTO verifications (tenant_id, message_id, kind, value, sender_domain, mailbox_id, expires_at)
  SELECT new.tenant_id, new.id, v.kind, v.value, v.sender_domain, new.mailbox_id, v.expires_at
  FROM {verifications} JOIN new USING (n)
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
    names = (*("new", "threads", "recipients", "attachments", "verifications", "events", "folders", "mailboxes"),)
    sources = {name: rows.source(n) for n, (name, rows) in enumerate(zip(names, ROW_SETS, strict=True), start=2)}
    return _WRITE.format(**sources)


WRITE: Final = _number_parameters()
