-- A failed message is kept until its sender has been told: what the notice says is in its rows (C3, C7).
DROP TRIGGER messages_leave ON messages;
CREATE OR REPLACE FUNCTION keep_what_leaves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.status IN ('queued', 'deferred') OR EXISTS (
    SELECT FROM deliveries d JOIN bounce_tasks b ON b.tenant_id = d.tenant_id AND b.delivery_id = d.id
    WHERE d.tenant_id = OLD.tenant_id AND d.message_id = OLD.id AND b.next_attempt_at IS NOT NULL
  ) THEN
    RAISE EXCEPTION 'a message that is still to be sent, or told of, cannot be removed' USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN OLD;
END
$$;
CREATE TRIGGER messages_leave BEFORE DELETE ON messages
  FOR EACH ROW WHEN (OLD.direction = 'outbound') EXECUTE FUNCTION keep_what_leaves();
