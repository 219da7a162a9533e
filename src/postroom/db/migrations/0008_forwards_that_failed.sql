-- Which delivery passed it on: while that one has failed, or was canceled, the same mail is passed on again. It may be
-- gone, once it has ended well (`relaying`).
ALTER TABLE forwards ADD COLUMN delivery_id bigint;
-- Not by tenant first: see decision 23 on plans without statistics.
CREATE INDEX forwards_delivery ON forwards (delivery_id);
