-- What `postroom import` has put into a mailbox, written with the messages themselves: an import that was interrupted
-- goes on, and one that is repeated adds nothing. `key` is a digest of where it came from and where it went. `uid` is
-- that of the source, where the message got the same in `folder_id`. No foreign key to the folder: it may go.
CREATE TABLE imported (
  tenant_id bigint NOT NULL,
  mailbox_id bigint NOT NULL,
  key bytea NOT NULL CHECK (octet_length(key) = 16),
  folder_id bigint,
  uid bigint,
  PRIMARY KEY (tenant_id, mailbox_id, key),
  FOREIGN KEY (tenant_id, mailbox_id) REFERENCES mailboxes (tenant_id, id)
);
CREATE INDEX imported_uids ON imported (tenant_id, folder_id, uid) WHERE folder_id IS NOT NULL;

-- UIDVALIDITYs that folders took over from another server. A folder of that name does not take the same again: in
-- between its UIDs may have been given to other messages (D4).
CREATE TABLE adopted_uid_validities (
  tenant_id bigint NOT NULL,
  mailbox_id bigint NOT NULL,
  name text COLLATE "C" NOT NULL,
  uid_validity uid_validity NOT NULL,
  PRIMARY KEY (tenant_id, mailbox_id, name, uid_validity),
  FOREIGN KEY (tenant_id, mailbox_id) REFERENCES mailboxes (tenant_id, id)
);
