-- API keys of every level, and who is behind them (FR-KEY-1, FR-KEY-4, FR-KEY-5; security-privacy A3.5–A3.8).

-- Lineage is kept by public id: it outlives the keys and people that it names, as the audit does.
ALTER TABLE api_keys
  ADD COLUMN partner_id bigint REFERENCES partners (id),
  ADD COLUMN created_by_key text COLLATE "C",
  ADD COLUMN created_by_person text COLLATE "C",
  ADD COLUMN created_by_role text COLLATE "C" CHECK (created_by_role IN ('owner', 'admin', 'member')),
  ADD CONSTRAINT api_keys_partner_level CHECK ((partner_id IS NOT NULL) = (level = 'partner')),
  ADD CONSTRAINT api_keys_person_role CHECK ((created_by_person IS NULL) = (created_by_role IS NULL));
CREATE INDEX api_keys_list ON api_keys (created_at DESC, public_id DESC);
CREATE INDEX api_keys_partner ON api_keys (partner_id) WHERE partner_id IS NOT NULL;
CREATE INDEX api_keys_person ON api_keys (tenant_id, created_by_person) WHERE created_by_person IS NOT NULL;
