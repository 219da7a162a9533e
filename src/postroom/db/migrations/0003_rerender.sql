-- Messages whose ENVELOPE and BODYSTRUCTURE an earlier parser made (B21): empty unless the parser's version has risen or a node of
-- an older release still writes, so that looking for work costs nothing and ingest never touches it.
-- A release that raises the version makes it anew with the new number: DROP INDEX messages_stale; CREATE INDEX ... < n.
CREATE INDEX messages_stale ON messages (parser_version, tenant_id, id) WHERE parser_version < 2;
