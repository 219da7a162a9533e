-- The events of one tenant in their order, for lists and for whoever resumes a stream, however many others there are.
CREATE INDEX events_tenant ON events (tenant_id, id);
