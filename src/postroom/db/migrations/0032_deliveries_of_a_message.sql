-- Deliveries and what goes out are found by their message alone: by indexes that begin with the tenant the planner, which knows little
-- of tables that were just filled, read all that a tenant has.
CREATE UNIQUE INDEX outbound_messages_message ON outbound_messages (message_id);
ALTER TABLE deliveries DROP CONSTRAINT deliveries_tenant_id_message_id_recipient_key;
ALTER TABLE deliveries ADD CONSTRAINT deliveries_message_id_key UNIQUE (message_id, tenant_id, recipient);
