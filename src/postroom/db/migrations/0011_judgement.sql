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
