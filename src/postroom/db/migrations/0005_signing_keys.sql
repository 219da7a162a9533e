-- The deployment's own MAC keys, by purpose: one current key each, and those before it for as long as what they made is
-- honoured (data-model §9).
CREATE TABLE signing_keys (
  purpose text NOT NULL CHECK (purpose IN ('thread', 'bounce', 'forward')),
  kid text COLLATE "C" NOT NULL CHECK (kid ~ '^[0-9a-hjkmnp-tv-z]$'),
  sealed bytea NOT NULL,
  created_at timestamptz(3) NOT NULL,
  verify_until timestamptz(3),        -- null: the key that makes new ones
  PRIMARY KEY (purpose, kid)
);
CREATE UNIQUE INDEX signing_keys_current ON signing_keys (purpose) WHERE verify_until IS NULL;
