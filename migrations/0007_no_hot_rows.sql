-- Rows that every append rewrites grow without bound while anybody's transaction stays open, because
-- none of their old versions may be removed, and each append then reads them all: a caller who thinks
-- for half a minute would slow everybody (SPEC L4). The last position is the newest row of the log;
-- a node's newest seq is that of its newest command.

-- What a journal lifted it to is in the snapshot (SPEC L11).
ALTER TABLE nodes DROP COLUMN seq;

-- Makes the partitions that the next appends need. The service may not create tables, so it runs
-- with the rights of its owner.
CREATE OR REPLACE FUNCTION extend_log() RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = public, pg_temp AS $$
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

DROP TABLE heads;
