//! `tokens.*`: a tenant's API tokens (SPEC A13).

pub(crate) mod create;
pub(crate) mod list;
pub(crate) mod revoke;
