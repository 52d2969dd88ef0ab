-- Up to which position the copies on bare names and the wakes were sent. The stream itself is its
-- own cursor; this mark keeps a stream that is filled again from telling everybody everything
-- again. Written by the crate `nats`.
CREATE TABLE publications (
    name     text PRIMARY KEY,                      -- the stream
    position bigint NOT NULL CHECK (position >= 0)  -- the last one that was told; never goes back
);
GRANT SELECT, INSERT, UPDATE ON publications TO command_ledger_service;
