-- How far the sweep of blobs without a row has come (edge I9). One row, made by the first run.
CREATE TABLE blob_sweep (
  singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  after_key text COLLATE "C" NOT NULL,    -- the last key that was looked at; '' between two passes
  next_pass_at timestamptz(3) NOT NULL,
  seen_at timestamptz(3) NOT NULL,        -- when it last ran: a long gap means that this is not the database it was
  removes_from timestamptz(3) NOT NULL    -- before then nothing is removed
);
