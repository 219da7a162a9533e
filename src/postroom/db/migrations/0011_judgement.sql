-- What is known of who sent a message and what is in it: the results of SPF, DKIM, DMARC and ARC, what makes it automated,
-- its language, how its attachments were found, the references and codes in its text (inbound.md §10, §15-§17, §20, §25).
ALTER TABLE messages
  ADD COLUMN language text COLLATE "C",
  ADD COLUMN auth jsonb,       -- null: nothing was evaluated
  ADD COLUMN automated jsonb;  -- null: nothing makes it so
ALTER TABLE attachments
  ADD COLUMN sniffed_type text COLLATE "C",
  ADD COLUMN risk text COLLATE "C"
    CHECK (risk IN ('executable', 'macro', 'archive_bomb', 'encrypted_archive', 'type_mismatch', 'encrypted_document'));

-- Typed values of a message's text, in one form each, that whole words or prefixes of them would not find.
CREATE TABLE refs (
  tenant_id bigint NOT NULL,
  message_id bigint NOT NULL,
  kind text COLLATE "C" NOT NULL,
  value text COLLATE "C" NOT NULL CHECK (length(value) <= 64),
  source text COLLATE "C" NOT NULL, -- subject, body, or the attachment and page
  mailbox_id bigint NOT NULL,
  PRIMARY KEY (tenant_id, message_id, kind, value, source),
  FOREIGN KEY (tenant_id, message_id) REFERENCES messages (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX refs_value ON refs (tenant_id, mailbox_id, value, kind);

-- Codes and links that confirm a sign-up: of authenticated mail only, for a day.
CREATE TABLE verifications (
  tenant_id bigint NOT NULL,
  message_id bigint NOT NULL,
  kind text COLLATE "C" NOT NULL CHECK (kind IN ('code', 'link')),
  value text NOT NULL,
  sender_domain text COLLATE "C" NOT NULL,
  mailbox_id bigint NOT NULL,
  expires_at timestamptz(3) NOT NULL,
  consumed_at timestamptz(3),
  PRIMARY KEY (tenant_id, message_id, kind),
  FOREIGN KEY (tenant_id, message_id) REFERENCES messages (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX verifications_expiry ON verifications (expires_at);

-- Types of their own: a node of the release before goes on writing with those that it knows.
CREATE TYPE ingest_judged_message AS (
  tenant_id bigint, mailbox_id bigint, public_id text, thread_seq bigint, source text, direction text, status text,
  rfc_message_id text, in_reply_to text, reference_ids text, raw_sha256 bytea, body_sha256 bytea, blob_key text,
  raw_size bigint, raw_prefix_len int, from_address text, from_name text, delivered_to text, is_bcc bool,
  is_primary_recipient bool, subject text, subject_fold text, snippet text, sent_at timestamptz,
  received_at timestamptz, kind text, verdict text, facts text, parser_version int, envelope bytea,
  body_structure bytea, part_tree bytea, text text, html text, extracted_text text, folder_id bigint, uid bigint,
  modseq bigint, internal_date timestamptz, flags text, change_seq bigint,
  language text, auth text, automated text
);
CREATE TYPE ingest_inspected_attachment AS (
  n bigint, position int, public_id text, part_path text, filename text, content_type text, size bigint,
  disposition text, content_id text, sniffed_type text, risk text
);
CREATE TYPE ingest_ref AS (n bigint, kind text, value text, source text);
CREATE TYPE ingest_verification AS (n bigint, kind text, value text, sender_domain text, expires_at timestamptz);

-- The parser reads more of what is there: trees and envelopes of earlier versions are made anew.
DROP INDEX messages_stale;
CREATE INDEX messages_stale ON messages (parser_version, tenant_id, id) WHERE parser_version < 3;

-- Who wrote a message, and whether that is known, decides with its Message-ID whether another is the same (B3). A node of
-- the release before passes over what it does not know.
CREATE OR REPLACE FUNCTION ingest_read(
  box_tenants bigint[], box_ids bigint[],
  folder_tenants bigint[], folder_boxes bigint[], folder_ids bigint[],
  raw_tenants bigint[], raw_boxes bigint[], raw_hashes bytea[],
  id_tenants bigint[], id_boxes bigint[], rfc_ids text[],
  OUT boxes json, OUT folders json, OUT hits json
) LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  SELECT json_agg(b) INTO boxes FROM (
    SELECT m.tenant_id, m.id, m.modseq, m.change_seq, m.event_seq, m.next_thread_seq, m.used_bytes, m.quota_bytes,
           m.erased, m.identity_public_id, m.tenant_public_id
    FROM unnest(box_tenants, box_ids) AS k (tenant_id, id)
    JOIN mailboxes m ON m.tenant_id = k.tenant_id AND m.id = k.id
    ORDER BY m.id FOR NO KEY UPDATE OF m SKIP LOCKED
  ) b;

  SELECT json_agg(f) INTO folders FROM (
    SELECT f.mailbox_id, f.id, f.special_use, f.uid_validity, f.uid_next, f.message_count, f.unseen_count,
           f.deleted_count, f.total_bytes,
           (SELECT array_agg(a.address) FROM addresses a
            WHERE a.tenant_id = k.tenant_id AND a.identity_id = k.mailbox_id) AS own
    FROM unnest(folder_tenants, folder_boxes, folder_ids) AS k (tenant_id, mailbox_id, folder_id)
    JOIN LATERAL (
      SELECT * FROM folders f WHERE f.tenant_id = k.tenant_id AND f.mailbox_id = k.mailbox_id
         AND CASE WHEN k.folder_id IS NULL THEN f.special_use = 'inbox' ELSE f.id = k.folder_id END
    ) f ON true
  ) f;

  -- "+ 0": no index that begins with the tenant is to be taken, while the planner knows too little to tell them apart.
  SELECT json_agg(h) INTO hits FROM (
    SELECT m.mailbox_id, m.id, m.public_id, encode(m.raw_sha256, 'hex') AS raw_sha256,
           encode(m.body_sha256, 'hex') AS body_sha256, m.rfc_message_id, m.source, m.subject,
           m.from_address, m.verdict, t.seq, t.public_id AS thread_id, t.subject AS thread_subject, t.first_at, t.last_at, t.last_inbound_at,
           t.last_outbound_at, t.message_count, t.unread_count, t.participants_json, t.reply_from_address, t.archived
    FROM (
      SELECT m.* FROM unnest(raw_tenants, raw_boxes, raw_hashes) AS k (tenant_id, mailbox_id, sha)
      JOIN LATERAL (
        SELECT m.tenant_id, m.mailbox_id, m.id, m.public_id, m.raw_sha256, m.body_sha256, m.rfc_message_id, m.source,
               m.subject, m.from_address, m.verdict, m.thread_seq
        FROM messages m
        WHERE m.tenant_id + 0 = k.tenant_id AND m.mailbox_id = k.mailbox_id AND m.raw_sha256 = k.sha AND m.source = 'mx'
        LIMIT 1
      ) m ON true
      UNION ALL
      SELECT m.* FROM unnest(id_tenants, id_boxes, rfc_ids) AS k (tenant_id, mailbox_id, rfc_id)
      JOIN LATERAL (
        SELECT m.tenant_id, m.mailbox_id, m.id, m.public_id, m.raw_sha256, m.body_sha256, m.rfc_message_id, m.source,
               m.subject, m.from_address, m.verdict, m.thread_seq
        FROM messages m
        WHERE m.tenant_id + 0 = k.tenant_id AND m.mailbox_id = k.mailbox_id AND m.rfc_message_id = k.rfc_id
        ORDER BY m.id DESC LIMIT 5
      ) m ON true
    ) m
    JOIN LATERAL (
      SELECT * FROM threads t WHERE t.tenant_id = m.tenant_id AND t.mailbox_id = m.mailbox_id AND t.seq = m.thread_seq
    ) t ON true
  ) h;
END
$$;
