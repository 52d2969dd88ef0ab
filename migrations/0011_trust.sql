-- What nodes are to trust, and how far each of them is (SPEC P1). No folds of the log: bundles are
-- published by whoever has the roots, before anything is appended.
CREATE TABLE trust_bundles (
    version    bigint PRIMARY KEY CHECK (version > 0), -- 1, 2, 3 …; each signed by a root of the one before
    bundle     bytea NOT NULL,                         -- as it was signed, canonical MessagePack
    signatures bytea NOT NULL                          -- the roots' signatures, canonical MessagePack
);

-- Which version a node believes, by its own word. Written by gateways, for people to look at.
CREATE TABLE node_trust (
    node    uuid PRIMARY KEY,
    version bigint NOT NULL CHECK (version >= 0)       -- 0: none
);

-- The service's signature over the desired state, canonical MessagePack (SPEC P5); NULL: none.
ALTER TABLE node_specs ADD COLUMN signed bytea;

-- Published once and never changed: nodes have seen them.
GRANT SELECT, INSERT ON trust_bundles TO command_ledger_service;
GRANT SELECT, INSERT, UPDATE ON node_trust TO command_ledger_service;
