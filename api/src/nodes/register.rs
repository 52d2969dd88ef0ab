//! `nodes.register`: a new node (SPEC A11).

use std::sync::Arc;

use ledger_protocol::event::NodeRegistered;
use ledger_protocol::kind::Role;
use ledger_protocol::limits::NAME_BYTES_MAX;

use super::view::NodeView;
use crate::Api;
use crate::auth::{Caller, Permission, Resource};
use crate::input::Input;
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let name = input.name("name", NAME_BYTES_MAX)?;
    let roles = Role::ALL.map(Role::as_str);
    let role = input
        .optional_word("role", &roles, Role::parse)?
        .unwrap_or(Role::Node);
    let labels = input.texts("labels")?;
    input.finish()?;

    caller.check_tenant(tenant)?;
    caller.require(Permission::NodesAdmin, Resource::EveryNode)?;
    let registered = NodeRegistered { labels, name, role };
    let node = api
        .ledger()
        .register_node(&caller.actor, tenant, registered)
        .await?;
    render(&NodeView::of(&node))
}
