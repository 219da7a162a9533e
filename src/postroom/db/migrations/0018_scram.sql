-- What SCRAM-SHA-256 verifies an application password by: StoredKey and ServerKey, sealed (decisions B11, D20). None where it was made
-- before this, and none any more once it is revoked.
ALTER TABLE app_passwords ADD COLUMN scram_sealed bytea;
