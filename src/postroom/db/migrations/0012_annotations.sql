-- Notes of mail clients on folders and on the mailbox as a whole (RFC 5464). `owner` is whose a private one is: the
-- public id of a person, `agent`, or '' for shared ones. `folder_id` is null for the mailbox.
CREATE TABLE annotations (
  tenant_id bigint NOT NULL,
  mailbox_id bigint NOT NULL,
  folder_id bigint,
  owner text COLLATE "C" NOT NULL,
  entry text COLLATE "C" NOT NULL CHECK (length(entry) <= 255),
  value bytea NOT NULL CHECK (length(value) <= 65536),
  FOREIGN KEY (tenant_id, mailbox_id) REFERENCES mailboxes (tenant_id, id) ON DELETE CASCADE,
  FOREIGN KEY (tenant_id, folder_id) REFERENCES folders (tenant_id, id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX annotations_entry ON annotations (tenant_id, mailbox_id, folder_id, owner, entry) NULLS NOT DISTINCT;
CREATE INDEX annotations_folder ON annotations (tenant_id, folder_id);
