-- Whether somebody has shown that they read the mail of a contact address, or whoever runs the deployment vouches for it. Without
-- that it is what a tenant says: it keeps nobody away from the address.
ALTER TABLE people
  ADD COLUMN contact_verified_at timestamptz(3),
  ADD CONSTRAINT people_contact_verified CHECK (contact_verified_at IS NULL OR contact_email IS NOT NULL);
-- Whom neither a key nor a person made, the command line made, or they came by the code of an invitation.
UPDATE people p SET contact_verified_at = p.created_at
WHERE p.contact_email IS NOT NULL AND (p.is_operator OR EXISTS (
  SELECT FROM audit_log a
  WHERE a.target_id = p.public_id AND a.action = 'person.create' AND a.actor_key IS NULL AND a.actor_person IS NULL));

-- Contact addresses that may not be in their one spelling (lower case, NFC, A-labels): looked at when a node starts.
CREATE INDEX people_contact_spelling ON people (id) WHERE contact_email !~ '^[ -~]*[^.]$';
