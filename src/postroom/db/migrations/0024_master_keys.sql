-- Which master keys this deployment's secrets were sealed under, and which processes hold which (security-privacy A6.3). Ids of keys, never
-- keys. The columns that are sealed stay bytea: the text `pm1.{kid}.{nonce}.{ciphertext}`, or what was written before it.

CREATE TABLE master_keys (
  kid text COLLATE "C" PRIMARY KEY CHECK (kid ~ '^[0-9a-f]{16}$'),
  activated_at timestamptz(3) NOT NULL, -- when it began to seal, the last time; the newest is the active one
  resealed_at timestamptz(3),           -- when nothing was left under another one
  checked_at timestamptz(3)             -- when that was looked at last
);
CREATE INDEX master_keys_newest ON master_keys (activated_at DESC, kid);

-- One row for each server process that runs: a key that one of them lacks must not seal.
CREATE TABLE master_key_holders (
  id text COLLATE "C" PRIMARY KEY,
  node text COLLATE "C" NOT NULL,
  active text COLLATE "C" NOT NULL,
  kids text[] COLLATE "C" NOT NULL,
  seen_at timestamptz(3) NOT NULL
);

ALTER TABLE signing_keys DROP CONSTRAINT signing_keys_purpose_check;
ALTER TABLE signing_keys ADD CONSTRAINT signing_keys_purpose_check
  CHECK (purpose IN ('thread', 'bounce', 'forward', 'link', 'cursor'));
