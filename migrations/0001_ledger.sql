-- The log, its head, and the read tables that are folds of it. Owner of each table: README.md.

-- Roles belong to the whole cluster, so another database may be making them at this moment.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'command_ledger_service') THEN
        CREATE ROLE command_ledger_service LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;
END
$$;

-- Who migrates may also run the service with the same URL: its connections then change to the
-- service's role, so the log is append-only for it, too.
DO $$
BEGIN
    IF NOT pg_has_role(current_user, 'command_ledger_service', 'MEMBER') THEN
        EXECUTE format('GRANT command_ledger_service TO %I', current_user);
    END IF;
END
$$;

-- The last position of each shard. One row, locked by every append for its shortest part; the
-- low fillfactor lets its many versions stay in one page.
CREATE TABLE heads (
    shard    smallint PRIMARY KEY,
    position bigint NOT NULL CHECK (position >= 0)
) WITH (fillfactor = 10);
INSERT INTO heads (shard, position) VALUES (0, 0);

-- The log: canonical MessagePack as it was appended. All that is not needed to find an event is
-- in its bytes alone, so that there is nothing to disagree with them.
CREATE TABLE events (
    shard    smallint NOT NULL,
    position bigint NOT NULL CHECK (position > 0),   -- gapless, in commit order
    stream   uuid NOT NULL,                          -- the command or node that it is about
    body     bytea NOT NULL CHECK (octet_length(body) <= 65535),
    PRIMARY KEY (shard, position)
) PARTITION BY RANGE (position);
CREATE INDEX events_stream ON events (stream, position);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the log is append-only: % on % is refused', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Makes the partitions that the next appends need. The service may not create tables, so it runs
-- with the rights of its owner.
CREATE FUNCTION extend_log() RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = public, pg_temp AS $$
DECLARE
    span  constant bigint := 10000000;
    first bigint;
    part  text;
BEGIN
    -- Two replicas may be here at once; the second then finds the partition made.
    PERFORM pg_advisory_xact_lock(hashtext('command-ledger: extend_log'));
    SELECT (position / span) * span INTO first FROM heads WHERE shard = 0;
    FOR step IN 0..2 LOOP
        part := 'events_' || to_char((first / span) + step, 'FM000000');
        CONTINUE WHEN to_regclass(part) IS NOT NULL;
        EXECUTE format(
            'CREATE TABLE %I PARTITION OF events FOR VALUES FROM (%s) TO (%s)',
            part, first + step * span, first + (step + 1) * span);
        -- A statement's trigger is not inherited by partitions, which can be named directly.
        EXECUTE format(
            'CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON %I
             FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()', part);
    END LOOP;
END
$$;
SELECT extend_log();

-- Nodes, a fold of their events. `seq` moves with every command, so it stands outside the
-- snapshot. This row's lock guards the node and all its commands.
CREATE TABLE nodes (
    id                 uuid PRIMARY KEY,
    tenant             uuid NOT NULL,
    deleted            boolean NOT NULL,
    seq                bigint NOT NULL,           -- of the newest command; 0 for none
    applied_generation bigint NOT NULL,
    allowed_kinds      text[],                    -- NULL: every kind
    snapshot           bytea NOT NULL             -- the fold, canonical MessagePack
) WITH (fillfactor = 50);
CREATE INDEX nodes_tenant ON nodes (tenant, id);

-- Desired states: the newest of each node.
CREATE TABLE node_specs (
    node       uuid PRIMARY KEY,
    generation bigint NOT NULL,
    spec       bytea NOT NULL
);

-- Commands that have not ended; small whatever the history, so that dispatch and sweep are.
CREATE TABLE commands_live (
    id             uuid PRIMARY KEY,
    node           uuid NOT NULL,
    seq            bigint NOT NULL,
    lane           text NOT NULL,
    kind           text NOT NULL,
    state          text NOT NULL,
    in_flight      boolean NOT NULL,              -- with its node
    due_at         bigint NOT NULL,               -- microseconds; the largest bigint while held
    not_after      bigint NOT NULL,               -- microseconds
    min_generation bigint NOT NULL,               -- 0 for none
    snapshot       bytea NOT NULL,                -- the fold, canonical MessagePack
    UNIQUE (node, seq)
) WITH (fillfactor = 70);
CREATE INDEX commands_live_pending ON commands_live (node, lane, seq) WHERE NOT in_flight;
CREATE INDEX commands_live_in_flight ON commands_live (node, lane) WHERE in_flight;
CREATE INDEX commands_live_deadline ON commands_live (not_after, id);

-- Commands that have ended.
CREATE TABLE commands_settled (
    id       uuid PRIMARY KEY,
    node     uuid NOT NULL,
    seq      bigint NOT NULL,
    state    text NOT NULL,
    snapshot bytea NOT NULL                       -- the fold, canonical MessagePack
);
CREATE UNIQUE INDEX commands_settled_node ON commands_settled (node, seq);
CREATE INDEX commands_settled_state ON commands_settled (node, state, seq);

-- Idempotency keys: one command for each, enforced here across replicas.
CREATE TABLE command_keys (
    node    uuid NOT NULL,
    key     text NOT NULL,
    command uuid NOT NULL,
    CONSTRAINT command_keys_once PRIMARY KEY (node, key)
);

-- Singletons: who leads, under which term. The term is checked inside the writing transaction.
CREATE TABLE leases (
    name       text PRIMARY KEY,
    holder     text NOT NULL,
    term       bigint NOT NULL,
    expires_at timestamptz NOT NULL
);

GRANT USAGE ON SCHEMA public TO command_ledger_service;
GRANT SELECT, INSERT ON events TO command_ledger_service;
GRANT SELECT, UPDATE ON heads TO command_ledger_service;
GRANT SELECT, INSERT, UPDATE ON nodes, node_specs TO command_ledger_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON commands_live, commands_settled, command_keys, leases
    TO command_ledger_service;
REVOKE ALL ON FUNCTION extend_log() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION extend_log() TO command_ledger_service;
