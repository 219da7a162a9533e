-- A change of a delivery says which one, and what has become of it (C2): once per transition, not once per message.
ALTER TABLE changes ADD COLUMN delivery bigint, ADD COLUMN delivery_status text COLLATE "C";
-- How much came in today (mail-server C9): rows lie in the order in which they came.
CREATE INDEX messages_age ON messages USING brin (received_at);
