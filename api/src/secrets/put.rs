//! `secrets.put`: a value for a name, in the place of the one before (SPEC P6).

use std::collections::BTreeSet;
use std::sync::Arc;

use ledger::secrets::PutSecret;
use ledger_projections::nodes;
use ledger_protocol::id::NodeId;
use serde_json::Value;

use super::checked;
use super::view::SecretView;
use crate::Api;
use crate::auth::{Caller, Permission, Resource};
use crate::error::Error;
use crate::input::Input;
use crate::limits::{SECRET_KINDS_MAX, SECRET_NODES_MAX};
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let name = checked("name", input.text("name")?)?;
    let value = input.secret("value")?;
    let kinds = input.optional_list("kinds", 1..=SECRET_KINDS_MAX)?;
    let nodes = input.optional_list("nodeIds", 1..=SECRET_NODES_MAX)?;
    input.finish()?;
    let registry = api.ledger().registry();
    let kinds = each_once("kinds", "a kind that is registered", kinds, |kind| {
        registry.get(kind).map(|known| known.name.to_string())
    })?;
    let nodes = each_once("nodeIds", "the id of a node", nodes, |node| {
        node.parse::<NodeId>().ok()
    })?;

    caller.check_tenant(tenant)?;
    caller.require(Permission::SecretsAdmin, Resource::Everything)?;
    if let Some(nodes) = &nodes {
        let mut connection = api.connection().await?;
        let stranger = nodes::not_in_tenant(&mut connection, tenant, nodes).await?;
        if let Some(stranger) = stranger {
            return Err(Error::not_found(format!("node {stranger}")));
        }
    }
    let put = PutSecret {
        tenant,
        name,
        value,
        kinds,
        nodes,
    };
    let described = api.ledger().put_secret(&caller.actor, put).await?;
    render(&SecretView::of(&described))
}

/// A list as a set, sorted. What is wrong with an item is said by its place: an item may be a value that
/// somebody gave in the wrong field, and is not repeated.
fn each_once<T: Ord>(
    field: &'static str,
    wanted: &str,
    given: Option<Vec<Value>>,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<Vec<T>>, Error> {
    let Some(given) = given else {
        return Ok(None);
    };
    let mut items = BTreeSet::new();
    for (place, item) in (1..).zip(&given) {
        let item = item.as_str().and_then(&read);
        let item = item
            .ok_or_else(|| Error::invalid(field, format!("must have {wanted} as item {place}")))?;
        if !items.insert(item) {
            let problem = format!("has item {place} twice");
            return Err(Error::invalid(field, problem));
        }
    }
    Ok(Some(items.into_iter().collect()))
}
