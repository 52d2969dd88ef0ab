//! Everything that `up` runs: how it starts, and in which order it stops.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use ledger::Clock;
use ledger::secrets::MasterKeys;
use ledger_api::auth::{Grant, NewToken, create_tenant, create_token};
use ledger_audit::Checkpointing;
use ledger_gateway::CertificateAuthority;
use ledger_nats::STREAM;
use ledger_projections::log_tree;
use ledger_protocol::batch::create::Policy;
use ledger_protocol::event::Approver;
use ledger_protocol::id::{NodeId, TenantId};
use serde_json::json;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use super::agents;
use super::fleet::Fleet;
use super::home::Home;
use super::servers::{self, PostgresAt};
use crate::client::{ApiError, ApiOptions, Client};
use crate::commands::migrate;
use crate::exit::Failure;
use crate::key_file;
use crate::lifecycle::{Endings, Phase};
use crate::limits::{
    UP_CERTIFICATE_SECONDS, UP_CHECKPOINT_WITHIN, UP_CONNECTIONS, UP_LOOK_EVERY,
    UP_STOP_EDGE_WITHIN, UP_STOP_LEDGER_WITHIN, UP_STOP_SERVERS_WITHIN, UP_STOP_SESSIONS_WITHIN,
    UP_STOP_WORKERS_WITHIN, UP_STREAM_WITHIN,
};
use crate::log::{self, LogWitnesses};
use crate::nats;
use crate::secret::Secret;
use crate::secrets_key::{self, SecretsKey};
use crate::service::{Core, Service, listen};
use crate::signing::{self, Allowance, Signing};

/// What the tenant and the identity of the admin token are called.
const TENANT: &str = "default";
const ADMIN: &str = "admin";
/// Name of the gateway in the ledger.
const GATEWAY: &str = "up";
/// What subscribers see as the source of events.
const SOURCE: &str = "/command-ledger/up";
/// People who may approve batches, and how many of them must.
const APPROVERS: [&str; 3] = ["approver-1", "approver-2", "approver-3"];
const QUORUM: u32 = 2;
/// The folder of the keys that are the service's own: that of the root that signs commands, the master
/// key that encrypts secrets, and the key that signs the log.
const SIGNING: &str = "signing";
const ROOT: &str = "root.pem";
const MASTER_KEY: &str = "secrets.key";
const LOG_KEY: &str = "log.pem";
/// What the origin of a folder's log begins with; its key follows.
const LOG_ORIGIN: &str = "command-ledger.local/";
/// The authority's certificate, beside its key.
const AUTHORITY_CERTIFICATE: &str = "node-ca.pem";

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    /// The API's port; 0 is any free one, none is the one of the last start.
    pub(crate) port: Option<u16>,
    pub(crate) postgres: Option<Secret>,
    pub(crate) nats: Option<Secret>,
    pub(crate) allowance: Allowance,
    pub(crate) secrets_key: SecretsKey,
    pub(crate) witnesses: LogWitnesses,
}

/// What runs, once everything does.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) api: String,
    pub(crate) token: Secret,
    pub(crate) tenant: TenantId,
    pub(crate) gateway: String,
    /// The certificate by which a daemon knows that gateway.
    pub(crate) gateway_ca: PathBuf,
    pub(crate) nats: Secret,
    pub(crate) postgres: Secret,
    pub(crate) nodes: Vec<(NodeId, PathBuf)>,
    /// How many approvers must approve a batch.
    pub(crate) quorum: u32,
    /// Those who may, with the files of their private keys.
    pub(crate) approvers: Vec<(String, PathBuf)>,
    /// Where the log is served.
    pub(crate) log: String,
    /// What the log is verified with.
    pub(crate) log_public_key: String,
}

/// Everything that `up` runs. What has been started is in here at any time, so that a start that is
/// given up half-way can be stopped like a whole one.
pub(crate) struct Town {
    servers: Phase,
    service: Option<Service>,
    agents: Phase,
}

impl Town {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            servers: Phase::new("the servers"),
            service: None,
            agents: Phase::new("the agents"),
        }
    }

    /// Starts everything and waits until it works.
    pub(crate) async fn start(
        &mut self,
        plan: &Plan,
        home: &mut Home,
        endings: Endings,
    ) -> Result<Ready, Failure> {
        let (postgres, nats) = self.start_servers(plan, home).await?;
        migrate::migrate(&postgres.owner).await?;
        let (approval, approvers) = people(home)?;
        let master_keys = match plan.secrets_key.read()? {
            Some(keys) => keys,
            None => own_master_key(home)?,
        };
        let signing = Signing {
            approval: plan.allowance.in_policy(approval),
            approvers_named: true,
            trust_version_min: 0,
            signer: signing::signer(&[root(home)?], &Clock::system())?,
            master_keys: Some(Arc::clone(&master_keys)),
        };
        let checkpointing = own_log(home, &plan.witnesses)?;
        let mut core = Core::start(&postgres.service, UP_CONNECTIONS, signing).await?;
        core.holder = home.lease_holder(core.ledger.new_id_random());
        let service = self.service.insert(Service::new(core));

        let api = listen_again(plan.port, home.state.api_port).await?;
        let gateway = listen_again(None, home.state.gateway_port).await?;
        let log = listen_again(None, home.state.log_port).await?;
        let (api_at, gateway_at) = (api.local_addr()?, gateway.local_addr()?);
        let log_at = log.local_addr()?;
        home.state.api_port = Some(api_at.port());
        home.state.gateway_port = Some(gateway_at.port());
        home.state.log_port = Some(log_at.port());
        home.save()?;
        let (api_url, gateway_url) = (format!("http://{api_at}"), format!("https://{gateway_at}"));

        let folder = home.folder().join("authority");
        let now = service.core.ledger.now();
        let authority = CertificateAuthority::load_or_generate(&folder, now)?;
        let surroundings = ledger_api::Options {
            gateway: Some(gateway_url.clone()),
            ca_certificate: Some(authority.certificate_pem().to_owned()),
        };
        let settings = ledger_gateway::Options {
            certificate_seconds: UP_CERTIFICATE_SECONDS,
            shutdown_within: UP_STOP_SESSIONS_WITHIN,
            ..ledger_gateway::Options::default()
        };
        service.start_api(api, surroundings, endings.clone());
        service.start_log(log, None, endings.clone());
        service.start_gateway(gateway, authority, GATEWAY, settings, endings);
        let log_public_key = checkpointing.key.verifier_key().to_string();
        service.start_checkpointer(checkpointing);
        let holder = service.core.holder.clone();
        service.start_publisher(ledger_nats::NatsOptions::new(nats.reveal(), holder, SOURCE));
        service.start_sweeper();
        service.start_keeper(&master_keys);

        let (tenant, token, client) = identify(home, service, &api_url).await?;
        let fleet = Fleet {
            client: &client,
            tenant,
        };
        let places = fleet.places(home, plan.nodes).await?;
        let ca_file = folder.join(AUTHORITY_CERTIFICATE);
        let mut nodes = Vec::with_capacity(places.len());
        for place in &places {
            let (state_dir, token) = (home.node_folder(place.number), place.join_token.clone());
            nodes.push((place.node, state_dir.clone()));
            agents::start(&self.agents, state_dir, &gateway_url, &ca_file, token);
        }
        fleet.connected(&places).await?;
        wait_for_stream(&nats).await;
        wait_for_checkpoint(service.core.ledger.pool()).await;
        Ok(Ready {
            api: api_url,
            token,
            tenant,
            gateway: gateway_url,
            gateway_ca: ca_file,
            nats,
            postgres: postgres.service,
            nodes,
            quorum: QUORUM,
            approvers,
            log: format!("http://{log_at}"),
            log_public_key,
        })
    }

    async fn start_servers(
        &self,
        plan: &Plan,
        home: &Home,
    ) -> Result<(PostgresAt, Secret), Failure> {
        let postgres = async {
            match &plan.postgres {
                Some(url) => Ok(PostgresAt {
                    owner: url.clone(),
                    service: url.clone(),
                }),
                None => servers::start_postgres(home.folder(), &self.servers).await,
            }
        };
        let nats = async {
            match &plan.nats {
                Some(url) => Ok(url.clone()),
                None => servers::start_nats(home.folder(), &self.servers).await,
            }
        };
        tokio::try_join!(postgres, nats)
    }

    /// Stops everything, within 10 s: who talks to the outside first, the servers last.
    pub(crate) async fn stop(&self) {
        if let Some(service) = &self.service {
            tokio::join!(
                service.edge.stop(UP_STOP_EDGE_WITHIN),
                self.agents.stop(UP_STOP_EDGE_WITHIN),
            );
            service.workers.stop(UP_STOP_WORKERS_WITHIN).await;
            if timeout(UP_STOP_LEDGER_WITHIN, service.core.stop())
                .await
                .is_err()
            {
                tracing::warn!("the ledger did not stop in time; its servers stop now");
            }
        }
        self.stop_servers().await;
    }

    /// Stops the servers, whoever still uses them.
    pub(crate) async fn stop_servers(&self) {
        self.servers.stop(UP_STOP_SERVERS_WITHIN).await;
    }
}

/// The file of the root that signs for this folder's service; its key is made unless it is there.
fn root(home: &Home) -> Result<PathBuf, Failure> {
    let folder = home.folder().join(SIGNING);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(ROOT);
    key_file::public_key_or_new(&path)?;
    Ok(path)
}

/// The master key of this folder, which is made unless it is there.
fn own_master_key(home: &Home) -> Result<Arc<MasterKeys>, Failure> {
    let folder = home.folder().join(SIGNING);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(MASTER_KEY);
    if !path.exists() {
        secrets_key::generate(&path)?;
    }
    secrets_key::read(&[path])
}

/// The log of this folder, whose key is made unless it is there.
fn own_log(home: &Home, witnesses: &LogWitnesses) -> Result<Checkpointing, Failure> {
    let folder = home.folder().join(SIGNING);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(LOG_KEY);
    let key = hex::encode(key_file::public_key_or_new(&path)?.as_bytes());
    let origin = format!("{LOG_ORIGIN}{}", &key[..16]);
    log::checkpointing(&path, origin.parse()?, witnesses)
}

/// The approvers of this folder; their keys are made unless they are there.
fn people(home: &Home) -> Result<(Policy, Vec<(String, PathBuf)>), Failure> {
    let folder = home.folder().join("approvers");
    std::fs::create_dir_all(&folder)?;
    let mut listed = Vec::with_capacity(APPROVERS.len());
    let mut files = Vec::with_capacity(APPROVERS.len());
    for name in APPROVERS {
        let (name, path) = (name.to_owned(), folder.join(format!("{name}.pem")));
        let key = key_file::public_key_or_new(&path)?;
        let approver = Approver {
            key,
            name: name.clone(),
        };
        listed.push(approver);
        files.push((name, path));
    }
    Ok((Policy::new(listed, QUORUM)?, files))
}

/// Listens on the port that was asked for, or on that of the last start, or else on any.
async fn listen_again(wanted: Option<u16>, last: Option<u16>) -> Result<TcpListener, Failure> {
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    if let Some(port) = wanted {
        let listening = listen(at(port)).await;
        return listening.map_err(|mut failure| {
            let advice = "choose another --port, or 0 for any that is free";
            failure.error = failure.error.context(advice);
            failure
        });
    }
    if let Some(port) = last
        && let Ok(listener) = listen(at(port)).await
    {
        return Ok(listener);
    }
    listen(at(0)).await
}

/// The tenant and the token of the last start, if they still work; else new ones.
async fn identify(
    home: &mut Home,
    service: &Service,
    api: &str,
) -> Result<(TenantId, Secret, Client), Failure> {
    if let (Some(tenant), Some(token)) = (home.state.tenant_id, home.state.token.as_deref()) {
        let token = Secret::new(token);
        let client = Client::new(&ApiOptions::new(api, &token))?;
        let input = json!({"tenantId": tenant, "limit": 1});
        match client.call("nodes", "list", &input).await {
            Ok(_) => return Ok((tenant, token, client)),
            Err(failure) if is_unknown(&failure) => {
                tracing::warn!("the token of the last start works no longer; a new one is made");
            }
            Err(failure) => return Err(failure),
        }
    }
    let (pool, now) = (service.core.ledger.pool(), service.core.ledger.now());
    let tenant = create_tenant(pool, TENANT, now).await?;
    let token = NewToken {
        tenant,
        identity: ADMIN.to_owned(),
        grants: Grant::all(),
        expires_at: None,
    };
    let (_, token) = create_token(pool, &token, now).await?;
    home.state.tenant_id = Some(tenant);
    home.state.token = Some(token.clone());
    home.save()?;
    let token = Secret::new(token);
    let client = Client::new(&ApiOptions::new(api, &token))?;
    Ok((tenant, token, client))
}

/// Whether the API does not know the token or its tenant.
fn is_unknown(failure: &Failure) -> bool {
    let error = failure.error.downcast_ref::<ApiError>();
    error.is_some_and(|error| {
        ["UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND"].contains(&error.code.as_str())
    })
}

/// Whoever reads the URLs may subscribe at once, so the stream should be there; but nothing depends
/// on NATS, so its absence only delays.
async fn wait_for_stream(url: &Secret) {
    let found = async {
        loop {
            if let Ok(connection) = nats::connect(url).await {
                while connection.jetstream.get_stream(STREAM).await.is_err() {
                    sleep(UP_LOOK_EVERY).await;
                }
                return;
            }
            sleep(UP_LOOK_EVERY).await;
        }
    };
    if timeout(UP_STREAM_WITHIN, found).await.is_err() {
        tracing::warn!("NATS has no stream {STREAM} yet; commands flow without it");
    }
}

/// Whoever reads the log's URL may ask at once, so there should be a checkpoint.
async fn wait_for_checkpoint(pool: &PgPool) {
    let found = async {
        loop {
            if let Ok(mut conn) = pool.acquire().await
                && let Ok(Some(_)) = log_tree::newest(&mut conn).await
            {
                return;
            }
            sleep(UP_LOOK_EVERY).await;
        }
    };
    if timeout(UP_CHECKPOINT_WITHIN, found).await.is_err() {
        tracing::warn!("the log has no checkpoint yet; commands flow without it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn h2_a_port_that_is_taken_is_told_with_what_would_work() {
        let taken = listen_again(None, None).await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let failure = listen_again(Some(port), None).await.unwrap_err();
        let told = failure.to_string();
        for part in ["choose another --port, or 0", &format!("127.0.0.1:{port}")] {
            assert!(told.contains(part), "{told}");
        }
        // Only one that was asked for must be that one.
        listen_again(None, Some(port)).await.unwrap();
    }
}
