-- A gateway's process keeps a lease, and its sessions name it, so that the sessions of a process
-- that died are found and closed (SPEC D2).
ALTER TABLE nodes
    ADD COLUMN gateway_lease text;                -- that of the open session; NULL: none

CREATE INDEX nodes_gateway_lease ON nodes (gateway_lease, id) WHERE gateway_lease IS NOT NULL;
