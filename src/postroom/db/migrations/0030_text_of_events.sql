-- How much of a text `message.received` carries is the tenant's to say (FR-WH-4): read with the mailbox, so that it counts from the
-- moment it is written. A node of the release before passes over what it does not know.
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
           m.erased OR m.closed AS erased, m.identity_public_id, m.tenant_public_id,
           (SELECT (t.policy_json -> 'webhook_text_bytes')::integer FROM tenants t WHERE t.id = k.tenant_id) AS text_bytes
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
