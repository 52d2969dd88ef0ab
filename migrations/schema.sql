-- The schema as the migrations make it, for reading: nothing runs this file. A test compares it
-- with the migrations; `make snapshots` writes it again.

CREATE FUNCTION public.extend_log() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $$
DECLARE
    span  constant bigint := 10000000;
    first bigint;
    part  text;
BEGIN
    -- Two replicas may be here at once; the second then finds the partition made.
    PERFORM pg_advisory_xact_lock(hashtext('command-ledger: extend_log'));
    SELECT coalesce(max(position), 0) / span * span INTO first FROM events WHERE shard = 0;
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

CREATE FUNCTION public.refuse_all_but_thinning() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('command_ledger.thinning', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'checkpoints are append-only: % is refused', TG_OP
        USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE FUNCTION public.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'the log is append-only: % on % is refused', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE FUNCTION public.thin_checkpoints(after_size bigint, rows_max integer, OUT rows_seen bigint, OUT seen_to bigint, OUT rows_deleted bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    SET "command_ledger.thinning" TO 'on'
    AS $$
BEGIN
    -- The oldest first. The last one that is seen is kept, and is the first of the next call.
    WITH seen AS MATERIALIZED (
        SELECT size, (size - 1) / 4096 AS part, split_part(note, chr(10), 1) AS origin
        FROM checkpoints
        WHERE size > after_size AND signed_at < now() - interval '1 hour'
        ORDER BY size LIMIT rows_max
    ), ranked AS (
        SELECT size, lead(size) OVER (PARTITION BY origin, part ORDER BY size) AS larger FROM seen
    ), gone AS (
        DELETE FROM checkpoints WHERE size IN (SELECT size FROM ranked WHERE larger IS NOT NULL)
        RETURNING size
    )
    SELECT (SELECT count(*) FROM seen), coalesce((SELECT max(size) FROM seen) - 1, after_size),
           (SELECT count(*) FROM gone)
    INTO rows_seen, seen_to, rows_deleted;
END
$$;

CREATE TABLE public.api_tokens (
    id uuid NOT NULL,
    tenant uuid NOT NULL,
    identity text NOT NULL,
    secret_sha256 bytea NOT NULL,
    grants jsonb NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    CONSTRAINT api_tokens_grants_check CHECK ((jsonb_typeof(grants) = 'array'::text)),
    CONSTRAINT api_tokens_identity_check CHECK (((octet_length(identity) >= 1) AND (octet_length(identity) <= 200))),
    CONSTRAINT api_tokens_secret_sha256_check CHECK ((octet_length(secret_sha256) = 32))
);

CREATE TABLE public.archivings (
    through bigint NOT NULL,
    archive text NOT NULL,
    checkpoint text NOT NULL,
    archived_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT archivings_through_check CHECK ((through > 0))
);

CREATE TABLE public.batch_leaves (
    batch uuid NOT NULL,
    place integer NOT NULL,
    hash bytea NOT NULL,
    leaf bytea NOT NULL,
    path bytea NOT NULL
);

CREATE TABLE public.batches (
    id uuid NOT NULL,
    tenant uuid NOT NULL,
    key text NOT NULL,
    approved boolean NOT NULL,
    snapshot bytea NOT NULL
);

CREATE TABLE public.checkpoints (
    size bigint NOT NULL,
    note text NOT NULL,
    signed_at timestamp with time zone NOT NULL,
    CONSTRAINT checkpoints_size_check CHECK ((size > 0))
);

CREATE TABLE public.command_keys (
    node uuid NOT NULL,
    key text NOT NULL,
    command uuid NOT NULL
);

CREATE TABLE public.commands_live (
    id uuid NOT NULL,
    node uuid NOT NULL,
    seq bigint NOT NULL,
    lane text NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    in_flight boolean NOT NULL,
    due_at bigint NOT NULL,
    not_after bigint NOT NULL,
    min_generation bigint NOT NULL,
    snapshot bytea NOT NULL,
    held_by uuid
)
WITH (fillfactor='70');

CREATE TABLE public.commands_settled (
    id uuid NOT NULL,
    node uuid NOT NULL,
    seq bigint NOT NULL,
    state text NOT NULL,
    snapshot bytea NOT NULL
);

CREATE TABLE public.events (
    shard smallint NOT NULL,
    "position" bigint NOT NULL,
    stream uuid NOT NULL,
    body bytea NOT NULL,
    CONSTRAINT events_body_check CHECK ((octet_length(body) <= 65535)),
    CONSTRAINT events_position_check CHECK (("position" > 0))
)
PARTITION BY RANGE ("position");

CREATE TABLE public.events_000000 (
    shard smallint CONSTRAINT events_shard_not_null NOT NULL,
    "position" bigint CONSTRAINT events_position_not_null NOT NULL,
    stream uuid CONSTRAINT events_stream_not_null NOT NULL,
    body bytea CONSTRAINT events_body_not_null NOT NULL,
    CONSTRAINT events_body_check CHECK ((octet_length(body) <= 65535)),
    CONSTRAINT events_position_check CHECK (("position" > 0))
);

CREATE TABLE public.events_000001 (
    shard smallint CONSTRAINT events_shard_not_null NOT NULL,
    "position" bigint CONSTRAINT events_position_not_null NOT NULL,
    stream uuid CONSTRAINT events_stream_not_null NOT NULL,
    body bytea CONSTRAINT events_body_not_null NOT NULL,
    CONSTRAINT events_body_check CHECK ((octet_length(body) <= 65535)),
    CONSTRAINT events_position_check CHECK (("position" > 0))
);

CREATE TABLE public.events_000002 (
    shard smallint CONSTRAINT events_shard_not_null NOT NULL,
    "position" bigint CONSTRAINT events_position_not_null NOT NULL,
    stream uuid CONSTRAINT events_stream_not_null NOT NULL,
    body bytea CONSTRAINT events_body_not_null NOT NULL,
    CONSTRAINT events_body_check CHECK ((octet_length(body) <= 65535)),
    CONSTRAINT events_position_check CHECK (("position" > 0))
);

CREATE TABLE public.forgettings (
    ended_before bigint NOT NULL,
    forgotten_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE public.join_tokens (
    id uuid NOT NULL,
    tenant uuid NOT NULL,
    node uuid NOT NULL,
    secret_sha256 bytea NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    used_at timestamp with time zone,
    allowed_kinds text[],
    used_by bytea,
    CONSTRAINT join_tokens_allowed_kinds_check CHECK (((cardinality(allowed_kinds) >= 1) AND (cardinality(allowed_kinds) <= 100))),
    CONSTRAINT join_tokens_secret_sha256_check CHECK ((octet_length(secret_sha256) = 32)),
    CONSTRAINT join_tokens_used_by_check CHECK ((octet_length(used_by) = 32))
);

CREATE TABLE public.leases (
    name text NOT NULL,
    holder text NOT NULL,
    term bigint NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

CREATE TABLE public.log_tiles (
    level smallint NOT NULL,
    index bigint NOT NULL,
    hashes bytea NOT NULL,
    CONSTRAINT log_tiles_hashes_check CHECK ((((octet_length(hashes) >= 32) AND (octet_length(hashes) <= 8192)) AND ((octet_length(hashes) % 32) = 0))),
    CONSTRAINT log_tiles_index_check CHECK ((index >= 0)),
    CONSTRAINT log_tiles_level_check CHECK (((level >= 0) AND (level <= 7)))
);
ALTER TABLE ONLY public.log_tiles ALTER COLUMN hashes SET STORAGE EXTERNAL;

CREATE TABLE public.node_specs (
    node uuid NOT NULL,
    generation bigint NOT NULL,
    spec bytea NOT NULL,
    signed bytea
);

CREATE TABLE public.node_trust (
    node uuid NOT NULL,
    version bigint NOT NULL,
    CONSTRAINT node_trust_version_check CHECK ((version >= 0))
);

CREATE TABLE public.nodes (
    id uuid NOT NULL,
    tenant uuid NOT NULL,
    deleted boolean NOT NULL,
    applied_generation bigint NOT NULL,
    allowed_kinds text[],
    snapshot bytea NOT NULL,
    gateway_lease text
)
WITH (fillfactor='50');

CREATE TABLE public.publications (
    name text NOT NULL,
    "position" bigint NOT NULL,
    CONSTRAINT publications_position_check CHECK (("position" >= 0))
);

CREATE TABLE public.refused_reports (
    node uuid NOT NULL,
    command uuid NOT NULL,
    state text NOT NULL,
    code text NOT NULL,
    gateway text NOT NULL,
    problem text NOT NULL,
    reports bigint NOT NULL,
    first_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone NOT NULL
);

CREATE TABLE public.secret_exchanges (
    command uuid NOT NULL,
    node uuid NOT NULL,
    one_time_key bytea NOT NULL,
    place smallint NOT NULL,
    secret_ref text NOT NULL,
    node_sig bytea,
    asked_at timestamp with time zone NOT NULL,
    answer bytea,
    answered_at timestamp with time zone,
    CONSTRAINT secret_exchanges_check CHECK (((answer IS NULL) = (answered_at IS NULL))),
    CONSTRAINT secret_exchanges_one_time_key_check CHECK ((octet_length(one_time_key) = 32)),
    CONSTRAINT secret_exchanges_place_check CHECK (((place >= 1) AND (place <= 8)))
);

CREATE TABLE public.secrets (
    tenant uuid NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    key_id bytea NOT NULL,
    sealed bytea NOT NULL,
    kinds text[],
    nodes uuid[],
    put_at timestamp with time zone NOT NULL,
    put_by text NOT NULL,
    CONSTRAINT secrets_key_id_check CHECK ((octet_length(key_id) = 8)),
    CONSTRAINT secrets_kinds_check CHECK ((cardinality(kinds) > 0)),
    CONSTRAINT secrets_nodes_check CHECK ((cardinality(nodes) > 0)),
    CONSTRAINT secrets_sealed_check CHECK ((octet_length(sealed) > 40)),
    CONSTRAINT secrets_version_check CHECK ((version > 0))
);

CREATE TABLE public.tenants (
    id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT tenants_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 200)))
);

CREATE TABLE public.trust_bundles (
    version bigint NOT NULL,
    bundle bytea NOT NULL,
    signatures bytea NOT NULL,
    CONSTRAINT trust_bundles_version_check CHECK ((version > 0))
);

ALTER TABLE ONLY public.events ATTACH PARTITION public.events_000000 FOR VALUES FROM ('0') TO ('10000000');

ALTER TABLE ONLY public.events ATTACH PARTITION public.events_000001 FOR VALUES FROM ('10000000') TO ('20000000');

ALTER TABLE ONLY public.events ATTACH PARTITION public.events_000002 FOR VALUES FROM ('20000000') TO ('30000000');

ALTER TABLE ONLY public.api_tokens
    ADD CONSTRAINT api_tokens_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.archivings
    ADD CONSTRAINT archivings_pkey PRIMARY KEY (through);

ALTER TABLE ONLY public.batch_leaves
    ADD CONSTRAINT batch_leaves_once UNIQUE (batch, hash);

ALTER TABLE ONLY public.batch_leaves
    ADD CONSTRAINT batch_leaves_pkey PRIMARY KEY (batch, place);

ALTER TABLE ONLY public.batches
    ADD CONSTRAINT batches_key_once UNIQUE (key);

ALTER TABLE ONLY public.batches
    ADD CONSTRAINT batches_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (size);

ALTER TABLE ONLY public.command_keys
    ADD CONSTRAINT command_keys_once PRIMARY KEY (node, key);

ALTER TABLE ONLY public.commands_live
    ADD CONSTRAINT commands_live_node_seq_key UNIQUE (node, seq);

ALTER TABLE ONLY public.commands_live
    ADD CONSTRAINT commands_live_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.commands_settled
    ADD CONSTRAINT commands_settled_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (shard, "position");

ALTER TABLE ONLY public.events_000000
    ADD CONSTRAINT events_000000_pkey PRIMARY KEY (shard, "position");

ALTER TABLE ONLY public.events_000001
    ADD CONSTRAINT events_000001_pkey PRIMARY KEY (shard, "position");

ALTER TABLE ONLY public.events_000002
    ADD CONSTRAINT events_000002_pkey PRIMARY KEY (shard, "position");

ALTER TABLE ONLY public.forgettings
    ADD CONSTRAINT forgettings_pkey PRIMARY KEY (ended_before);

ALTER TABLE ONLY public.join_tokens
    ADD CONSTRAINT join_tokens_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.log_tiles
    ADD CONSTRAINT log_tiles_pkey PRIMARY KEY (level, index);

ALTER TABLE ONLY public.node_specs
    ADD CONSTRAINT node_specs_pkey PRIMARY KEY (node);

ALTER TABLE ONLY public.node_trust
    ADD CONSTRAINT node_trust_pkey PRIMARY KEY (node);

ALTER TABLE ONLY public.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.publications
    ADD CONSTRAINT publications_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.refused_reports
    ADD CONSTRAINT refused_reports_pkey PRIMARY KEY (node, command, state, code);

ALTER TABLE ONLY public.secret_exchanges
    ADD CONSTRAINT secret_exchanges_node_command_place_key UNIQUE (node, command, place);

ALTER TABLE ONLY public.secret_exchanges
    ADD CONSTRAINT secret_exchanges_pkey PRIMARY KEY (node, command, one_time_key);

ALTER TABLE ONLY public.secrets
    ADD CONSTRAINT secrets_pkey PRIMARY KEY (tenant, name);

ALTER TABLE ONLY public.tenants
    ADD CONSTRAINT tenants_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.trust_bundles
    ADD CONSTRAINT trust_bundles_pkey PRIMARY KEY (version);

CREATE INDEX api_tokens_tenant ON public.api_tokens USING btree (tenant, id);

CREATE INDEX batches_tenant ON public.batches USING btree (tenant, id);

CREATE INDEX commands_live_deadline ON public.commands_live USING btree (not_after, id);

CREATE INDEX commands_live_held ON public.commands_live USING btree (held_by, id) WHERE (held_by IS NOT NULL);

CREATE INDEX commands_live_in_flight ON public.commands_live USING btree (node, lane) WHERE in_flight;

CREATE INDEX commands_live_pending ON public.commands_live USING btree (node, lane, seq) WHERE (NOT in_flight);

CREATE UNIQUE INDEX commands_settled_node ON public.commands_settled USING btree (node, seq);

CREATE INDEX commands_settled_state ON public.commands_settled USING btree (node, state, seq);

CREATE INDEX events_stream ON ONLY public.events USING btree (stream, "position");

CREATE INDEX events_000000_stream_position_idx ON public.events_000000 USING btree (stream, "position");

CREATE INDEX events_000001_stream_position_idx ON public.events_000001 USING btree (stream, "position");

CREATE INDEX events_000002_stream_position_idx ON public.events_000002 USING btree (stream, "position");

CREATE INDEX nodes_gateway_lease ON public.nodes USING btree (gateway_lease, id) WHERE (gateway_lease IS NOT NULL);

CREATE INDEX nodes_tenant ON public.nodes USING btree (tenant, id);

CREATE INDEX refused_reports_newest ON public.refused_reports USING btree (node, last_at DESC);

CREATE INDEX secret_exchanges_oldest ON public.secret_exchanges USING btree (asked_at);

CREATE INDEX secret_exchanges_waiting ON public.secret_exchanges USING btree (asked_at, one_time_key) WHERE (answer IS NULL);

CREATE INDEX secrets_by_key ON public.secrets USING btree (key_id, tenant, name);

ALTER INDEX public.events_pkey ATTACH PARTITION public.events_000000_pkey;

ALTER INDEX public.events_stream ATTACH PARTITION public.events_000000_stream_position_idx;

ALTER INDEX public.events_pkey ATTACH PARTITION public.events_000001_pkey;

ALTER INDEX public.events_stream ATTACH PARTITION public.events_000001_stream_position_idx;

ALTER INDEX public.events_pkey ATTACH PARTITION public.events_000002_pkey;

ALTER INDEX public.events_stream ATTACH PARTITION public.events_000002_stream_position_idx;

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.archivings FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.checkpoints FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_all_but_thinning();

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.events FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.events_000000 FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.events_000001 FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.events_000002 FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.forgettings FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();

ALTER TABLE ONLY public.api_tokens
    ADD CONSTRAINT api_tokens_tenant_fkey FOREIGN KEY (tenant) REFERENCES public.tenants(id);

GRANT USAGE ON SCHEMA public TO command_ledger_service;

REVOKE ALL ON FUNCTION public.extend_log() FROM PUBLIC;
GRANT ALL ON FUNCTION public.extend_log() TO command_ledger_service;

REVOKE ALL ON FUNCTION public.thin_checkpoints(after_size bigint, rows_max integer, OUT rows_seen bigint, OUT seen_to bigint, OUT rows_deleted bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION public.thin_checkpoints(after_size bigint, rows_max integer, OUT rows_seen bigint, OUT seen_to bigint, OUT rows_deleted bigint) TO command_ledger_service;

GRANT SELECT,INSERT,UPDATE ON TABLE public.api_tokens TO command_ledger_service;

GRANT SELECT ON TABLE public.archivings TO command_ledger_service;

GRANT SELECT,INSERT ON TABLE public.batch_leaves TO command_ledger_service;

GRANT SELECT,INSERT,UPDATE ON TABLE public.batches TO command_ledger_service;

GRANT SELECT,INSERT ON TABLE public.checkpoints TO command_ledger_service;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.command_keys TO command_ledger_service;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.commands_live TO command_ledger_service;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.commands_settled TO command_ledger_service;

GRANT SELECT,INSERT ON TABLE public.events TO command_ledger_service;

GRANT SELECT ON TABLE public.forgettings TO command_ledger_service;

GRANT SELECT,INSERT,UPDATE ON TABLE public.join_tokens TO command_ledger_service;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.leases TO command_ledger_service;

GRANT SELECT,INSERT,UPDATE ON TABLE public.log_tiles TO command_ledger_service;

GRANT SELECT,INSERT,UPDATE ON TABLE public.node_specs TO command_ledger_service;

GRANT SELECT,INSERT,UPDATE ON TABLE public.node_trust TO command_ledger_service;

GRANT SELECT,INSERT,UPDATE ON TABLE public.nodes TO command_ledger_service;

GRANT SELECT,INSERT,UPDATE ON TABLE public.publications TO command_ledger_service;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.refused_reports TO command_ledger_service;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.secret_exchanges TO command_ledger_service;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.secrets TO command_ledger_service;

GRANT SELECT,INSERT ON TABLE public.tenants TO command_ledger_service;

GRANT SELECT,INSERT ON TABLE public.trust_bundles TO command_ledger_service;
