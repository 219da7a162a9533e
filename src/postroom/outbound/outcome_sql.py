"""The statements that record what became of deliveries. Each names the tenants; the mailboxes' rows are locked before.

"+ 0": no index that begins with the tenant or the mailbox is to be taken where a row's own key is known, whatever a
plan that was made while the tables were small thinks of it.
"""

from __future__ import annotations

from typing import Final

# $1 tenants, $2 mailboxes, $3 deliveries. Claims, which change nothing but the claim's own columns, wait meanwhile.
LOCK: Final = """
SELECT d.tenant_id, d.mailbox_id, d.id, d.message_id, d.recipient, d.field, d.route, d.status, d.tries, d.attempts,
  d.claim_token, d.lease_until, d.data_started_at, d.dsn_notify, d.smtp_code, d.bounce_type, d.remote_mx,
  d.held_by_operator, d.parked_at
FROM deliveries d WHERE d.id = ANY ($3::bigint[])
  AND (d.tenant_id, d.mailbox_id, d.id) IN (SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]))
ORDER BY d.id FOR NO KEY UPDATE
"""

# $1 tenants, $2 mailboxes, $3 messages, $4 deliveries of them that are changed. What deciding needs of a message and of
# its other deliveries, and what `message.sent` says of it.
MESSAGES: Final = """
SELECT m.id, m.public_id, m.status, m.thread_seq, o.operation, o.envelope_from, o.provider, o.provider_message_id,
  o.wire_key, o.accepted_at, b.tenant_public_id, b.identity_public_id, i.is_system, i.is_person, i.is_relay,
  t.mode = 'test' AS is_test,
  coalesce(th.lock_owner = m.public_id, false) AS holds_thread, th.public_id AS thread_id, m.direction,
  coalesce(o.sent_from, m.from_address) AS from_address, o.sent_from IS NOT NULL AS via_fallback,
  m.from_name, m.subject, m.sent_at, m.received_at, o.kind, m.in_reply_to, m.facts,
  EXISTS (SELECT FROM events e
          WHERE e.tenant_id = m.tenant_id AND e.message_id = m.id AND e.type = 'message.sent') AS sent,
  (SELECT p.flags FROM placements p WHERE p.tenant_id = m.tenant_id AND p.message_id = m.id
   ORDER BY p.saved_at, p.folder_id, p.uid LIMIT 1) AS flags,
  (SELECT array_agg(ARRAY[r.kind, r.address, r.name] ORDER BY r.position) FROM recipients r
   WHERE r.tenant_id = m.tenant_id AND r.message_id = m.id AND r.kind IN ('to', 'cc') AND r.address <> '') AS people,
  x.statuses, coalesce(x.answered, false) AS answered, coalesce(x.waits, false) AS waits,
  EXISTS (SELECT FROM deliveries d JOIN bounce_tasks n ON n.tenant_id = d.tenant_id AND n.delivery_id = d.id
          WHERE d.tenant_id + 0 = m.tenant_id AND d.message_id = m.id
          AND (n.next_attempt_at IS NOT NULL OR n.parked_at IS NOT NULL)) AS notices_open
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS k (tenant_id, mailbox_id, id)
CROSS JOIN LATERAL (
  SELECT * FROM messages m WHERE m.tenant_id = k.tenant_id AND m.mailbox_id + 0 = k.mailbox_id AND m.id = k.id LIMIT 1
) m
CROSS JOIN LATERAL (
  SELECT * FROM outbound_messages o WHERE o.tenant_id + 0 = m.tenant_id AND o.message_id = m.id LIMIT 1
) o
CROSS JOIN LATERAL (
  SELECT b.tenant_public_id, b.identity_public_id FROM mailboxes b
  WHERE b.tenant_id + 0 = m.tenant_id AND b.id = m.mailbox_id LIMIT 1
) b
CROSS JOIN LATERAL (
  SELECT i.is_system, i.kind = 'person' AS is_person, i.kind = 'relay' AS is_relay FROM identities i
  WHERE i.tenant_id + 0 = m.tenant_id AND i.public_id = b.identity_public_id LIMIT 1
) i
CROSS JOIN LATERAL (SELECT t.mode FROM tenants t WHERE t.id = m.tenant_id LIMIT 1) t
CROSS JOIN LATERAL (
  SELECT th.public_id, th.lock_owner FROM threads th
  WHERE th.tenant_id = m.tenant_id AND th.mailbox_id = m.mailbox_id AND th.seq = m.thread_seq LIMIT 1
) th
LEFT JOIN LATERAL (
  SELECT array_agg(s.status) AS statuses, bool_or(s.answered) AS answered, bool_or(s.waits) AS waits
  FROM (
    SELECT d.status, bool_or(d.smtp_code IS NOT NULL AND d.remote_mx IS NOT NULL) AS answered,
      bool_or(d.status = 'queued' OR (d.status = 'deferred' AND d.route <> 'simulator')) AS waits
    FROM deliveries d WHERE d.tenant_id + 0 = m.tenant_id AND d.message_id = m.id AND d.id <> ALL ($4::bigint[])
    GROUP BY d.status
  ) s
) x ON true
"""

# $1 now, then a row of arrays for each delivery, then one for each message.
WRITE: Final = """
WITH n AS MATERIALIZED (
  SELECT n.*, $1::timestamptz AS now
  FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::integer[], $8::text[],
      $9::text[], $10::text[], $11::text[], $12::boolean[], $13::timestamptz[], $14::boolean[], $15::integer[],
      $16::text[])
    AS n (tenant_id, mailbox_id, id, status, reason, code, enhanced, text, bounce, remote_mx, counts, next_at, restart,
      duration, error)
), changed AS (
  UPDATE deliveries d SET status = n.status, reason = n.reason, smtp_code = n.code, enhanced_code = n.enhanced,
    smtp_response = n.text, bounce_type = n.bounce, remote_mx = coalesce(n.remote_mx, d.remote_mx),
    tries = CASE WHEN n.restart THEN 0 ELSE d.tries + n.counts::integer END,
    -- Kept of claims that did not count, for the length of the next wait; a long pause is no reason to give up.
    attempts = CASE WHEN n.counts OR n.restart THEN 0 ELSE least(d.attempts, 20) END,
    next_attempt_at = n.next_at, lease_until = NULL, claim_token = NULL, parked_at = NULL, last_error = NULL,
    data_started_at = CASE WHEN n.status = 'uncertain' THEN d.data_started_at END,
    last_attempt_at = CASE WHEN n.counts THEN n.now ELSE d.last_attempt_at END,
    held_by_operator = d.held_by_operator AND n.next_at IS NOT NULL,
    finished_at = CASE WHEN n.status IN ('queued', 'deferred', 'submitted', 'uncertain') THEN NULL ELSE n.now END,
    updated_at = CASE WHEN n.status = 'uncertain' THEN coalesce(d.data_started_at, n.now) ELSE n.now END
  FROM n WHERE d.tenant_id + 0 = n.tenant_id AND d.mailbox_id + 0 = n.mailbox_id AND d.id = n.id
), logged AS (
  INSERT INTO delivery_attempts (tenant_id, delivery_id, attempt, remote_mx, status_code, status_text, error,
    duration_ms, created_at)
  SELECT n.tenant_id, n.id, 1 + coalesce((SELECT max(p.attempt) FROM delivery_attempts p
                                          WHERE p.tenant_id = n.tenant_id AND p.delivery_id = n.id), 0),
    n.remote_mx, n.code, n.text, n.error, n.duration, n.now
  FROM n WHERE n.counts
)
UPDATE outbound_messages o SET provider = coalesce(o.provider, k.provider),
  provider_message_id = coalesce(o.provider_message_id, k.provider_id),
  wire_key = CASE WHEN k.forget THEN NULL ELSE o.wire_key END
FROM unnest($17::bigint[], $18::bigint[], $19::text[], $20::text[], $21::boolean[])
  AS k (tenant_id, id, provider, provider_id, forget)
WHERE o.tenant_id + 0 = k.tenant_id AND o.message_id = k.id AND (k.forget OR k.provider_id IS NOT NULL)
"""

# Claims whose results do not apply any more: tenants, mailboxes, deliveries.
UNCLAIM: Final = """
UPDATE deliveries d SET lease_until = NULL, claim_token = NULL, next_attempt_at = NULL
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS k (tenant_id, mailbox_id, id)
WHERE d.tenant_id + 0 = k.tenant_id AND d.mailbox_id + 0 = k.mailbox_id AND d.id = k.id
"""

# Tenants, mailboxes, threads, owners of the locks.
RELEASE_THREADS: Final = """
UPDATE threads t SET lock_owner = NULL, lock_until = NULL
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[]) AS k (tenant_id, mailbox_id, seq, owner)
WHERE t.tenant_id = k.tenant_id AND t.mailbox_id = k.mailbox_id AND t.seq = k.seq AND t.lock_owner = k.owner
"""

# $1 now; tenants, deliveries, actions, ids of notices. Should a delivery that an operator retried fail again, the task
# that is done is used anew; of a delay is told once.
BOUNCE_TASKS: Final = """
INSERT INTO bounce_tasks AS b (tenant_id, delivery_id, action, message, next_attempt_at)
SELECT n.tenant_id, n.id, n.action, n.message, $1
FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[]) AS n (tenant_id, id, action, message)
ON CONFLICT (tenant_id, delivery_id, action) DO UPDATE
  SET message = EXCLUDED.message, next_attempt_at = $1, attempts = 0
WHERE b.next_attempt_at IS NULL AND b.parked_at IS NULL AND b.action <> 'delayed'
"""

# Tenant, deliveries.
LOCK_WIRES: Final = """
SELECT o.message_id FROM outbound_messages o WHERE o.tenant_id = $1
  AND o.message_id IN (SELECT d.message_id FROM deliveries d WHERE d.tenant_id = $1 AND d.id = ANY ($2::bigint[]))
ORDER BY o.message_id FOR NO KEY UPDATE
"""

# The bytes that go out are kept while something waits to be sent, or a notice that quotes them to be written.
FORGET_WIRES: Final = """
UPDATE outbound_messages o SET wire_key = NULL
FROM (SELECT tenant_id, message_id, wire_key FROM outbound_messages
      WHERE tenant_id = $1 AND message_id = ANY ($2::bigint[]) AND wire_key IS NOT NULL) old
WHERE o.tenant_id = old.tenant_id AND o.message_id = old.message_id
  AND NOT EXISTS (SELECT FROM deliveries d WHERE d.tenant_id = o.tenant_id AND d.message_id = o.message_id
                  AND (d.status = 'queued' OR (d.status = 'deferred' AND d.route <> 'simulator')))
  AND NOT EXISTS (SELECT FROM deliveries d
                  JOIN bounce_tasks b ON b.tenant_id = d.tenant_id AND b.delivery_id = d.id
                  WHERE d.tenant_id = o.tenant_id AND d.message_id = o.message_id
                  AND (b.next_attempt_at IS NOT NULL OR b.parked_at IS NOT NULL))
RETURNING old.wire_key
"""
