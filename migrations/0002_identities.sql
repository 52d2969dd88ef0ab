-- Who may call the API (SPEC A13). Not event-sourced: an identity is what an actor's name in an
-- event refers to, never part of the state that a replay compares.

-- Owners of nodes and commands.
CREATE TABLE tenants (
    id         uuid PRIMARY KEY,                  -- UUIDv7, outside written tenant_…
    name       text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    created_at timestamptz NOT NULL
);

-- API tokens. The secret itself is shown once and stored nowhere.
CREATE TABLE api_tokens (
    id            uuid PRIMARY KEY,               -- the token's text before the dot, token_…
    tenant        uuid NOT NULL REFERENCES tenants (id),
    identity      text NOT NULL CHECK (octet_length(identity) BETWEEN 1 AND 200),
                                                  -- actor api:<identity>; tokens may share it
    secret_sha256 bytea NOT NULL CHECK (octet_length(secret_sha256) = 32),
                                                  -- of the text after the dot, as ASCII
    grants        jsonb NOT NULL CHECK (jsonb_typeof(grants) = 'array'),
                                                  -- of {permission, resource, kinds?}
    created_at    timestamptz NOT NULL,
    expires_at    timestamptz,                    -- refused from then on; NULL: never
    revoked_at    timestamptz                     -- refused since then
);
-- A tenant's tokens, a page at a time.
CREATE INDEX api_tokens_tenant ON api_tokens (tenant, id);

GRANT SELECT, INSERT ON tenants TO command_ledger_service;
GRANT SELECT, INSERT, UPDATE ON api_tokens TO command_ledger_service;
