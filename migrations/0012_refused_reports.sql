-- What nodes reported and the ledger did not take, for people to see (SPEC P2, L11): forged or unsigned
-- ends, reports on commands that it does not know. Beside the log, because nothing follows from it.
-- The newest few of each node; the same one again counts up.
CREATE TABLE refused_reports (
    node     uuid NOT NULL,
    command  uuid NOT NULL,                 -- as the report named it; it may not exist
    state    text NOT NULL,                 -- what the report said
    code     text NOT NULL,                 -- as `UpdateAck` has it
    gateway  text NOT NULL,                 -- the actor that brought the newest one
    problem  text NOT NULL,                 -- for people
    reports  bigint NOT NULL,               -- how often it came
    first_at timestamptz NOT NULL,
    last_at  timestamptz NOT NULL,
    PRIMARY KEY (node, command, state, code)
);
CREATE INDEX refused_reports_newest ON refused_reports (node, last_at DESC);

GRANT SELECT, INSERT, UPDATE, DELETE ON refused_reports TO command_ledger_service;
