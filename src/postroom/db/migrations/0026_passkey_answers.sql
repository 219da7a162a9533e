-- Challenges to sign in with a passkey are no rows any more: each carries how long it counts and a MAC, so that strangers, who may ask
-- for as many as they like, fill nothing. A row is what somebody with a right passkey took, until it would be over.
DELETE FROM passkey_challenges WHERE person_id IS NULL;
ALTER TABLE passkey_challenges DROP COLUMN slot;
ALTER TABLE passkey_challenges ALTER COLUMN person_id SET NOT NULL, ALTER COLUMN epoch SET NOT NULL;

CREATE TABLE passkey_answers (
  hash bytea PRIMARY KEY CHECK (octet_length(hash) = 32), -- SHA-256 of the challenge
  expires_at timestamptz(3) NOT NULL
);
CREATE INDEX passkey_answers_expiry ON passkey_answers (expires_at);
