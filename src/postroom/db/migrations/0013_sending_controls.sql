-- What stops or changes sending beside its own outcome: pauses, the fallback to the platform domain, the tenant's policy,
-- the deployment's switches; and links in place of large attachments.

ALTER TABLE tenants
  ADD COLUMN sending_paused_at timestamptz(3),
  ADD COLUMN sending_pause_reason text CHECK (sending_pause_reason IN ('abuse_threshold', 'abuse_burst')),
  ADD COLUMN policy_json jsonb NOT NULL DEFAULT '{}',
  ADD CONSTRAINT tenants_pause_has_reason CHECK ((sending_paused_at IS NULL) = (sending_pause_reason IS NULL));

-- The platform domain is everybody's: what a tenant sends from it stops with the tenant (G12).
ALTER TABLE domains
  ADD COLUMN sending_paused_at timestamptz(3),
  ADD CONSTRAINT domains_platform_sends CHECK (kind <> 'platform' OR sending_paused_at IS NULL);

-- Written from the platform address until it was quiet for long (FR-DOM-6).
ALTER TABLE threads ADD COLUMN fallback_pinned boolean NOT NULL DEFAULT false;
CREATE INDEX threads_pinned ON threads (last_at) WHERE fallback_pinned;

-- The address that it left from, where that is not the one it was written from.
ALTER TABLE outbound_messages ADD COLUMN sent_from text COLLATE "C";

-- Switches of the deployment; one that is missing is as it is by default (J33).
CREATE TABLE ops_switches (
  name text COLLATE "C" PRIMARY KEY CHECK (name IN ('read_only')),
  state text NOT NULL CHECK (state IN ('on', 'off')),
  set_by text NOT NULL CHECK (set_by IN ('auto', 'platform')),
  reason text NOT NULL CHECK (length(reason) BETWEEN 1 AND 200),
  set_at timestamptz(3) NOT NULL
);

ALTER TABLE signing_keys DROP CONSTRAINT signing_keys_purpose_check;
ALTER TABLE signing_keys ADD CONSTRAINT signing_keys_purpose_check
  CHECK (purpose IN ('thread', 'bounce', 'forward', 'link'));

-- Of a file that is no part of its message, but linked in it: where its bytes are (outbound §6.8).
ALTER TABLE attachments ADD COLUMN blob_key text COLLATE "C";
