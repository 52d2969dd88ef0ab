//! The nodes of `up`: registered once, found again by the next start.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use ledger_protocol::id::{NodeId, TenantId};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::home::Home;
use crate::client::Client;
use crate::exit::Failure;
use crate::limits::{PAGE_ITEMS, UP_LOOK_EVERY, UP_SESSION_EACH, UP_SESSIONS_WITHIN};
use crate::service::host_name;

/// State directories that one place may leave behind.
const ASIDE_MAX: u32 = 1_000;

/// One node that is to run.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) node: NodeId,
    /// From 1.
    pub(crate) number: usize,
    /// What its agent trades for a certificate, should it have none yet.
    pub(crate) join_token: String,
    /// Epoch of its newest session before the agent starts.
    epoch: u64,
}

/// The fleet as one tenant sees it through the API.
pub(crate) struct Fleet<'a> {
    pub(crate) client: &'a Client,
    pub(crate) tenant: TenantId,
}

impl Fleet<'_> {
    /// The first `count` nodes. Those that the last start had are taken again unless they have left
    /// the fleet since; the others are registered.
    pub(crate) async fn places(
        &self,
        home: &mut Home,
        count: usize,
    ) -> Result<Vec<Place>, Failure> {
        let known = self.sessions().await?;
        let mut places = Vec::with_capacity(count);
        for number in 1..=count {
            let kept = home.state.nodes.get(number - 1).copied();
            let node = match kept.filter(|node| known.contains_key(node)) {
                Some(node) => node,
                None => self.register(home, number).await?,
            };
            let input = json!({"tenantId": self.tenant, "nodeId": node});
            let made = self.client.call("nodes", "createJoinToken", &input).await?;
            places.push(Place {
                node,
                number,
                join_token: text(&made, "token")?.to_owned(),
                epoch: known.get(&node).map_or(0, |session| session.epoch),
            });
        }
        Ok(places)
    }

    async fn register(&self, home: &mut Home, number: usize) -> Result<NodeId, Failure> {
        let host = host_name();
        let name = match number {
            1 => host,
            number => format!("{host}-{number}"),
        };
        let input = json!({"tenantId": self.tenant, "name": name});
        let made = self.client.call("nodes", "register", &input).await?;
        let node: NodeId = text(&made, "id")?.parse()?;
        // A state directory that is there belongs to a node of another ledger, or to one that left.
        put_aside(&home.node_folder(number))?;
        // Only this place: the nodes after it may still be in the fleet.
        match home.state.nodes.get_mut(number - 1) {
            Some(place) => *place = node,
            None => home.state.nodes.push(node),
        }
        home.save()?;
        Ok(node)
    }

    /// Waits until each of these nodes has a session that it did not have before.
    pub(crate) async fn connected(&self, places: &[Place]) -> Result<(), Failure> {
        let count = u32::try_from(places.len()).unwrap_or(u32::MAX);
        let within = UP_SESSIONS_WITHIN + UP_SESSION_EACH * count;
        let deadline = Instant::now() + within;
        loop {
            let known = self.sessions().await?;
            let missing = places.iter().find(|place| {
                let session = known.get(&place.node);
                !session.is_some_and(|session| session.open && session.epoch > place.epoch)
            });
            let Some(missing) = missing else {
                return Ok(());
            };
            if Instant::now() >= deadline {
                let (node, seconds) = (missing.node, within.as_secs());
                return Err(Failure::failed(format!(
                    "{node} has no session after {seconds} s; the log on stderr may say why"
                )));
            }
            sleep(UP_LOOK_EVERY).await;
        }
    }

    async fn sessions(&self) -> Result<BTreeMap<NodeId, Session>, Failure> {
        let input = json!({"tenantId": self.tenant, "limit": PAGE_ITEMS});
        let nodes = self.client.every_item("nodes", "list", input).await?;
        let session = |node: &Value| {
            let session = Session {
                epoch: node["epoch"].as_u64().unwrap_or(0),
                open: node["connected"] == true,
            };
            Ok((text(node, "id")?.parse()?, session))
        };
        nodes.iter().map(session).collect()
    }
}

struct Session {
    epoch: u64,
    open: bool,
}

fn text<'a>(answer: &'a Value, field: &str) -> Result<&'a str, Failure> {
    let text = answer[field].as_str();
    text.ok_or_else(|| Failure::failed(format!("the API's answer has no `{field}`")))
}

fn put_aside(folder: &Path) -> Result<(), Failure> {
    if !folder.exists() {
        return Ok(());
    }
    let aside = |attempt: u32| folder.with_extension(format!("old-{attempt}"));
    let free = (1..=ASIDE_MAX).map(aside).find(|path| !path.exists());
    let shown = folder.display();
    let aside = free.with_context(|| format!("{shown} is in the way; remove it"))?;
    std::fs::rename(folder, &aside).with_context(|| format!("could not put {shown} aside"))?;
    tracing::warn!("{shown} was another node's; it is now {}", aside.display());
    Ok(())
}
