-- The answer to a join may be lost on its way, and a daemon may die before it has kept it. Then the
-- same token is shown again, with the same key, and must work again (SPEC P7).
ALTER TABLE join_tokens
    ADD COLUMN used_by bytea                      -- Ed25519 key that the certificate is for
        CHECK (octet_length(used_by) = 32);
