-- Which delivery passed it on: while that one has failed, or was canceled, the same mail is passed on again. It may be
-- gone, once it has ended well (`relaying`).
ALTER TABLE forwards ADD COLUMN delivery_id bigint;
-- Not by tenant first: see decision 23 on plans without statistics.
CREATE INDEX forwards_delivery ON forwards (delivery_id);

-- What came back to rewritten senders of one author (a hash), by the hour: authors are not flooded by way of us.
CREATE TABLE forward_returns (
  tenant_id bigint NOT NULL REFERENCES tenants (id),
  author sha256_hash NOT NULL,
  hour timestamptz(3) NOT NULL,
  passed integer NOT NULL,
  PRIMARY KEY (tenant_id, author, hour)
);
CREATE INDEX forward_returns_age ON forward_returns USING brin (hour);
