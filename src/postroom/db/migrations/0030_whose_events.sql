-- Whom events concern, and until when (events-webhooks-errors §1, §6).

-- Of events of no tenant a partner is told of one kind: an endpoint of its own was disabled.
ALTER TABLE events ADD CONSTRAINT events_of_partner CHECK (partner_id IS NULL OR type = 'webhook.disabled');
CREATE INDEX events_partner ON events (partner_id, id) WHERE tenant_id IS NULL AND partner_id IS NOT NULL;

-- They go when their tenant says. A BRIN index is of no use for it once new rows take the places of old ones.
DROP INDEX events_age;
CREATE INDEX events_age ON events (tenant_id, occurred_at);
DROP INDEX webhook_deliveries_age;
CREATE INDEX webhook_deliveries_age ON webhook_deliveries (tenant_id, created_at);

-- The last key of an event that was given out when the endpoint was made: it is told of none up to it.
ALTER TABLE webhook_endpoints ADD COLUMN after_event bigint NOT NULL DEFAULT 0;
