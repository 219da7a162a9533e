-- Attempts that failed, of an endpoint: few, where those that succeeded are many.
CREATE INDEX webhook_deliveries_missed ON webhook_deliveries (endpoint_id, created_at) WHERE status <> 'succeeded';

-- What is wrong now, for whoever runs the deployment: of ids and numbers only. `misses`: how often in a row it was looked
-- and found well again.
CREATE TABLE alerts (
  kind text COLLATE "C" NOT NULL,
  about text COLLATE "C" NOT NULL,    -- an id or a word; empty where there is but one
  severity text NOT NULL CHECK (severity IN ('page', 'ticket')),
  fired_at timestamptz(3) NOT NULL,
  misses integer NOT NULL DEFAULT 0,
  PRIMARY KEY (kind, about)
);

-- What alerts look for each minute: few rows of many.
CREATE INDEX webhook_endpoints_failing ON webhook_endpoints (id) WHERE enabled AND consecutive_failures >= 10;
CREATE INDEX webhook_endpoints_given_up ON webhook_endpoints (id) WHERE disabled_reason = 'failing';
CREATE INDEX webhook_tasks_sealed ON webhook_tasks (id) WHERE last_error = 'secret_unavailable';
CREATE INDEX webhook_deliveries_blocked ON webhook_deliveries (created_at) WHERE error = 'ssrf_blocked';
