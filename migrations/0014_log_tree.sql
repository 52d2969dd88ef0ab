-- The log as a Merkle tree, for others to verify (SPEC U1). A fold of `events`, kept so that no
-- reader hashes the whole log: leaf n of the tree is the body of position n + 1.

-- Tiles of hashes (C2SP tlog-tiles), each at the widest that it has been. A tile only ever grows,
-- and the hashes that it has never change: who writes otherwise is refused.
CREATE TABLE log_tiles (
    level  smallint NOT NULL CHECK (level BETWEEN 0 AND 7),  -- 0: of leaves; above: of full tiles
    index  bigint NOT NULL CHECK (index >= 0),               -- how many of its level are left of it
    hashes bytea NOT NULL CHECK (octet_length(hashes) BETWEEN 32 AND 8192
                                 AND octet_length(hashes) % 32 = 0),
    PRIMARY KEY (level, index)
);
-- No hash can be compressed.
ALTER TABLE log_tiles ALTER COLUMN hashes SET STORAGE EXTERNAL;

-- What was signed and may be known to anybody, as a signed note. What its signer must not forget is
-- not here but beside its key, for this database may be put back to an older state.
CREATE TABLE checkpoints (
    size      bigint PRIMARY KEY CHECK (size > 0),           -- of the tree, in leaves
    note      text NOT NULL,
    signed_at timestamptz NOT NULL                           -- when it was published, to be exact
);
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON checkpoints
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

GRANT SELECT, INSERT, UPDATE ON log_tiles TO command_ledger_service;
GRANT SELECT, INSERT ON checkpoints TO command_ledger_service;
