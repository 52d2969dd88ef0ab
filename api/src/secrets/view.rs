//! A secret as callers see it.

use ledger_projections::secrets::Described;
use ledger_protocol::id::{NodeId, TenantId};
use serde::Serialize;

use crate::commands::view::Time;

/// Everything about a secret but its value; a field that has nothing to say is absent.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SecretView<'a> {
    tenant_id: TenantId,
    name: &'a str,
    version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    kinds: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_ids: Option<&'a [NodeId]>,
    /// Which master key encrypts it.
    key_id: String,
    put_at: Time,
    put_by: &'a str,
}

impl<'a> SecretView<'a> {
    /// The secret as the read tables have it.
    pub(super) fn of(secret: &'a Described) -> Self {
        Self {
            tenant_id: secret.tenant,
            name: &secret.name,
            version: secret.version,
            kinds: secret.kinds.as_deref(),
            node_ids: secret.nodes.as_deref(),
            key_id: hex::encode(secret.key_id),
            put_at: Time(secret.put_at),
            put_by: &secret.put_by,
        }
    }
}
