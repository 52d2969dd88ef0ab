-- What an operator let go of (SPEC section 10). Old events leave with their partition, once an archive
-- outside has every one of them; old ended commands leave the read tables. Both are the owner's to
-- do: the service's role can drop nothing, and only learns here what is no longer to be found.

-- Up to where the log stands in an archive alone. A row for each time that partitions were dropped.
CREATE TABLE archivings (
    through     bigint PRIMARY KEY CHECK (through > 0),  -- the last position that is not in `events`
    archive     text NOT NULL,                           -- where the operator had it
    checkpoint  text NOT NULL,                           -- the signed note that it was held against
    archived_at timestamptz NOT NULL DEFAULT now()
);
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON archivings
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Which ended commands may be missing from `commands_settled`, and their keys from `command_keys`.
CREATE TABLE forgettings (
    ended_before bigint PRIMARY KEY,                     -- microseconds since the epoch
    forgotten_at timestamptz NOT NULL DEFAULT now()
);
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON forgettings
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

GRANT SELECT ON archivings, forgettings TO command_ledger_service;
