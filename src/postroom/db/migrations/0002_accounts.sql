-- Rotation of API keys with an overlap (FR-KEY-2): the previous secret stays valid until `prev_expires_at`.
ALTER TABLE api_keys
  ADD COLUMN prev_hash bytea,
  ADD COLUMN prev_expires_at timestamptz(3),
  ADD CHECK ((prev_hash IS NULL) = (prev_expires_at IS NULL));
CREATE INDEX api_keys_identity ON api_keys (tenant_id, identity_id) WHERE identity_id IS NOT NULL;

-- Addresses that were deleted with their identity: blocked for ever, as a keyed hash and never in clear (A5). Only the identity that
-- owned one may take it back, while it exists.
CREATE TABLE address_tombstones (
  address_hash bytea PRIMARY KEY,
  tenant_id bigint NOT NULL,
  identity_id bigint NOT NULL,
  reason text NOT NULL CHECK (reason IN ('deleted', 'erased')),
  created_at timestamptz(3) NOT NULL
);

-- Retiring addresses by the time at which they stop receiving (FR-ADR-3).
CREATE INDEX addresses_retiring ON addresses (retire_at) WHERE status = 'retiring';
