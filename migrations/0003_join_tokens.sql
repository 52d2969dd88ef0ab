-- What a new daemon shows, once, to get its certificate (SPEC A11, P7). The secret itself is shown
-- once and stored nowhere.
CREATE TABLE join_tokens (
    id            uuid PRIMARY KEY,               -- the token's text before the dot, join_…
    tenant        uuid NOT NULL,
    node          uuid NOT NULL,                  -- whom the certificate will name
    secret_sha256 bytea NOT NULL CHECK (octet_length(secret_sha256) = 32),
                                                  -- of the text after the dot, as ASCII
    created_at    timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,           -- refused from then on
    used_at       timestamptz                     -- traded for a certificate; it works once
);

GRANT SELECT, INSERT, UPDATE ON join_tokens TO command_ledger_service;
