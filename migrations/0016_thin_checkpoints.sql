-- Two checkpoints a second are more than anybody needs for ever: of those that are older than an hour, one
-- for each 4,096 events stays, the largest of them. The newest stays in any case. What was signed stays
-- proved: the tree of a checkpoint that is gone is the beginning of every later one.
CREATE FUNCTION thin_checkpoints(after_size bigint, rows_max integer,
                                 OUT rows_seen bigint, OUT seen_to bigint, OUT rows_deleted bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = public, pg_temp
    -- What the trigger below asks for; it ends with this function.
    SET command_ledger.thinning = 'on' AS $$
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
-- The service's role may not delete, but may have this done.
REVOKE ALL ON FUNCTION thin_checkpoints FROM PUBLIC;
GRANT EXECUTE ON FUNCTION thin_checkpoints TO command_ledger_service;

CREATE FUNCTION refuse_all_but_thinning() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('command_ledger.thinning', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'checkpoints are append-only: % is refused', TG_OP
        USING ERRCODE = 'insufficient_privilege';
END
$$;
DROP TRIGGER append_only ON checkpoints;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON checkpoints
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_all_but_thinning();
