-- Folders of mailboxes that were granted to somebody, which that person has subscribed to over IMAP (RFC 3501 §6.3.6):
-- `folders.subscribed` is the mailbox's own. A subscription goes with the grant, and with the folder.
CREATE TABLE shared_subscriptions (
  tenant_id bigint NOT NULL,
  mailbox_id bigint NOT NULL,
  person_id bigint NOT NULL,
  folder_id bigint NOT NULL,
  PRIMARY KEY (tenant_id, mailbox_id, person_id, folder_id),
  FOREIGN KEY (tenant_id, mailbox_id, person_id) REFERENCES mailbox_grants (tenant_id, mailbox_id, person_id)
    ON DELETE CASCADE,
  FOREIGN KEY (tenant_id, folder_id) REFERENCES folders (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX shared_subscriptions_folder ON shared_subscriptions (tenant_id, folder_id);
