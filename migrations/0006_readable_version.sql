-- The service reads up to where a schema was migrated, so that it says at its start that it needs a
-- newer one instead of failing later, one statement at a time. The table is the migrator's own.
GRANT SELECT ON _sqlx_migrations TO command_ledger_service;
