-- A join token may restrict the identity that it is traded for (SPEC D11, P7).
ALTER TABLE join_tokens
    ADD COLUMN allowed_kinds text[]               -- of the certificate; NULL: every kind
        CHECK (cardinality(allowed_kinds) BETWEEN 1 AND 100);
