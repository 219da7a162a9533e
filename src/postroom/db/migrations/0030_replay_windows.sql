-- A window of a tenant's events, whatever happens elsewhere: what a replay reads.
CREATE INDEX events_tenant_time ON events (tenant_id, occurred_at);

-- Attempts that failed, of an endpoint: few, where those that succeeded are many.
CREATE INDEX webhook_deliveries_missed ON webhook_deliveries (endpoint_id, created_at) WHERE status <> 'succeeded';
