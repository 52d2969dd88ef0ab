-- The values that commands name and never hold (SPEC P6). Beside the log, because a value that is in the
-- log can never be taken back. The master key that opens them is in no database.
CREATE TABLE secrets (
    tenant  uuid NOT NULL,
    name    text COLLATE "C" NOT NULL,                 -- as a command's payload has it in `secretRef`
    version bigint NOT NULL CHECK (version > 0),       -- 1, 2, 3 …, with each value that was put
    key_id  bytea NOT NULL CHECK (octet_length(key_id) = 8), -- which master key; says nothing of it
    sealed  bytea NOT NULL CHECK (octet_length(sealed) > 40),
            -- 24 random bytes, then the value under XChaCha20-Poly1305, bound to the tenant, the name, the
            -- version and to whom it may be given
    kinds   text[] CHECK (cardinality(kinds) > 0),     -- only for commands of these; NULL: of every kind
    nodes   uuid[] CHECK (cardinality(nodes) > 0),     -- only for these nodes; NULL: for all of the tenant
    put_at  timestamptz NOT NULL,
    put_by  text NOT NULL,                             -- the actor who put this version
    PRIMARY KEY (tenant, name)
);
-- What a master key that is to go has still to hand over.
CREATE INDEX secrets_by_key ON secrets (key_id, tenant, name);

-- Questions of nodes for secrets, and the answers, sealed to a key that the node made for the question.
-- The gateway adds the one, the keeper the other; neither can stand in for the other, nor for the node.
CREATE TABLE secret_exchanges (
    command      uuid NOT NULL,                        -- as the node named it; it may not exist
    node         uuid NOT NULL,
    one_time_key bytea NOT NULL CHECK (octet_length(one_time_key) = 32),
    place        smallint NOT NULL CHECK (place BETWEEN 1 AND 8),
                 -- the how many-th question of this node for this command; there is no ninth
    secret_ref   text NOT NULL,
    node_sig     bytea,                                -- NULL: it was not signed, and will be refused
    asked_at     timestamptz NOT NULL,
    answer       bytea,                                -- the frame `Secret`, canonical MessagePack
    answered_at  timestamptz,
    PRIMARY KEY (node, command, one_time_key),
    UNIQUE (node, command, place),
    CHECK ((answer IS NULL) = (answered_at IS NULL))
);
CREATE INDEX secret_exchanges_waiting ON secret_exchanges (asked_at, one_time_key)
    WHERE answer IS NULL;
CREATE INDEX secret_exchanges_oldest ON secret_exchanges (asked_at);

GRANT SELECT, INSERT, UPDATE, DELETE ON secrets TO command_ledger_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON secret_exchanges TO command_ledger_service;
