-- Text under a wrong label, risks of attached messages and packed files are read otherwise than by version 3.
DROP INDEX messages_stale;
CREATE INDEX messages_stale ON messages (parser_version, tenant_id, id) WHERE parser_version < 4;
