-- Batches of commands under approval (SPEC P3): folds of their events, and the scopes whose Merkle
-- roots stand in the log.

CREATE TABLE batches (
    id       uuid PRIMARY KEY,
    tenant   uuid NOT NULL,
    key      text NOT NULL CONSTRAINT batches_key_once UNIQUE,   -- idempotency key
    approved boolean NOT NULL,                                   -- the quorum was reached
    snapshot bytea NOT NULL                                      -- the fold, canonical MessagePack
);
CREATE INDEX batches_tenant ON batches (tenant, id);

-- What a batch allows, each with the proof that it does. Frozen with the batch.
CREATE TABLE batch_leaves (
    batch    uuid NOT NULL,
    place    integer NOT NULL,              -- in the scope, from 0
    hash     bytea NOT NULL,                -- of the leaf, RFC 6962
    leaf     bytea NOT NULL,                -- canonical MessagePack
    path     bytea NOT NULL,                -- the hashes from its sibling upwards
    PRIMARY KEY (batch, place),
    CONSTRAINT batch_leaves_once UNIQUE (batch, hash)
);

-- The batch that holds the command; none once it is released.
ALTER TABLE commands_live ADD COLUMN held_by uuid;
CREATE INDEX commands_live_held ON commands_live (held_by, id) WHERE held_by IS NOT NULL;

GRANT SELECT, INSERT, UPDATE ON batches TO command_ledger_service;
GRANT SELECT, INSERT ON batch_leaves TO command_ledger_service;
