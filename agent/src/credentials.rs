//! Who a node is: its key, its certificate, and the authority that made it (SPEC P7).

use std::fmt;
use std::time::Duration;

use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::DecodePrivateKey as _;
use ledger_protocol::daemon::Pins;
use ledger_protocol::frame::{JOIN_PATH, JoinRequest, JoinResponse, RENEW_PATH, RenewRequest};
use ledger_protocol::id::NodeId;
use ledger_protocol::kind::Role;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::error::Error;
use crate::gateway_address::GatewayAddress;
use crate::limits::{JOIN_ANSWER_BYTES_MAX, JOIN_SECONDS_MAX};
use crate::state_dir::StateDir;
use crate::tls;

const KEY_FILE: &str = "key.pem";
const IDENTITY_FILE: &str = "identity.json";
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// Everything that a session needs to be opened as a node.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The node.
    pub node_id: NodeId,
    /// The role that it was registered with.
    pub role: Role,
    /// The certificate authority, PEM.
    pub ca_certificate: String,
    /// The node's certificate, PEM.
    pub certificate: String,
    /// The node's private key, PEM.
    pub key: String,
    /// The roots that it trusts; none for a node that joined where nothing is signed (SPEC P1).
    pub pins: Option<Pins>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("node_id", &self.node_id)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

/// What is kept on disk beside the key; in one file, so that a crash leaves all of it or nothing.
#[derive(Serialize, Deserialize)]
// A field that is not known may be one whose name was damaged, and pins must not get lost like that.
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kept {
    node_id: NodeId,
    role: Role,
    certificate: String,
    ca_certificate: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trust: Option<Pins>,
}

impl Kept {
    fn parse(dir: &StateDir, bytes: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(bytes).map_err(|_| unreadable(dir, IDENTITY_FILE))
    }

    fn encode(&self, dir: &StateDir) -> Result<Vec<u8>, Error> {
        serde_json::to_vec_pretty(self).map_err(|_| unreadable(dir, IDENTITY_FILE))
    }
}

fn unreadable(dir: &StateDir, name: &str) -> Error {
    Error::Unreadable {
        path: dir.path().join(name),
    }
}

impl Credentials {
    /// A new Ed25519 private key, PEM.
    pub fn generate_key() -> Result<String, Error> {
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(|source| Error::Key { source })?;
        Ok(key.serialize_pem())
    }

    /// Trades a join token for a certificate. The gateway must be one that `ca_certificate`
    /// (PEM) vouches for.
    pub async fn join(
        gateway: &GatewayAddress,
        ca_certificate: &str,
        token: &str,
        key: String,
        clock: &Clock,
    ) -> Result<Self, Error> {
        let request = JoinRequest {
            csr: request_for(&key)?,
            token: token.to_owned(),
        };
        let config = tls::client_config(ca_certificate, None, clock)?;
        let answer = post(gateway, config, JOIN_PATH, &request).await?;
        // A node that was once given a broken bundle would not know that it should have one.
        let trust = answer.trust.map(|trust| trust.begin()).transpose();
        let trust = trust.map_err(|source| Error::JoinUnbelievable {
            gateway: gateway.to_string(),
            source,
        })?;
        let joined = Self {
            pins: trust.as_ref().map(Pins::of),
            node_id: answer.node_id,
            role: answer.role,
            ca_certificate: answer.ca_certificate,
            certificate: answer.certificate,
            key,
        };
        // A certificate that does not fit the key is found out now and not at the first session.
        joined.client_config(clock)?;
        Ok(joined)
    }

    /// Trades the certificate for one that lasts longer. The key stays, and so does the authority
    /// that the node trusts.
    pub(crate) async fn renew(
        &self,
        gateway: &GatewayAddress,
        clock: &Clock,
    ) -> Result<Self, Error> {
        let request = RenewRequest {
            csr: request_for(&self.key)?,
        };
        let config = self.client_config(clock)?;
        let answer = post(gateway, config, RENEW_PATH, &request).await?;
        if answer.node_id != self.node_id {
            return Err(Error::JoinUnreadable {
                gateway: gateway.to_string(),
            });
        }
        let renewed = Self {
            certificate: answer.certificate,
            ..self.clone()
        };
        renewed.client_config(clock)?;
        Ok(renewed)
    }

    /// Puts this certificate in the place of the one that the folder holds, and leaves what else is
    /// kept there as it is. A crash at any moment leaves one of the two.
    pub(crate) fn keep_certificate(&self, dir: &StateDir) -> Result<(), Error> {
        dir.change(IDENTITY_FILE, FILE_BYTES_MAX, |kept| {
            let mut kept = Kept::parse(dir, &kept.ok_or(Error::NotJoined)?)?;
            kept.certificate.clone_from(&self.certificate);
            kept.encode(dir)
        })
    }

    /// What the folder holds; `None` when the node never joined.
    pub fn load(dir: &StateDir) -> Result<Option<Self>, Error> {
        let Some(kept) = dir.read(IDENTITY_FILE, FILE_BYTES_MAX)? else {
            return Ok(None);
        };
        let kept = Kept::parse(dir, &kept)?;
        let key = Self::load_key(dir)?.ok_or_else(|| unreadable(dir, KEY_FILE))?;
        Ok(Some(Self {
            node_id: kept.node_id,
            role: kept.role,
            ca_certificate: kept.ca_certificate,
            certificate: kept.certificate,
            key,
            pins: kept.trust,
        }))
    }

    /// The key that the folder holds: a join that failed half-way is tried again with it.
    pub(crate) fn load_key(dir: &StateDir) -> Result<Option<String>, Error> {
        let Some(key) = dir.read(KEY_FILE, FILE_BYTES_MAX)? else {
            return Ok(None);
        };
        let key = String::from_utf8(key).map_err(|_| Error::Unreadable {
            path: dir.path().join(KEY_FILE),
        })?;
        Ok(Some(key))
    }

    pub(crate) fn keep_key(dir: &StateDir, key: &str) -> Result<(), Error> {
        dir.write(KEY_FILE, key.as_bytes())
    }

    pub(crate) fn keep(&self, dir: &StateDir) -> Result<(), Error> {
        let kept = Kept {
            node_id: self.node_id,
            role: self.role,
            certificate: self.certificate.clone(),
            ca_certificate: self.ca_certificate.clone(),
            trust: self.pins.clone(),
        };
        dir.write(IDENTITY_FILE, &kept.encode(dir)?)
    }

    /// Pins roots in the place of those that were pinned before.
    pub(crate) fn pin(dir: &StateDir, pins: Pins) -> Result<(), Error> {
        dir.change(IDENTITY_FILE, FILE_BYTES_MAX, |kept| {
            let mut kept = Kept::parse(dir, &kept.ok_or(Error::NotJoined)?)?;
            kept.trust = Some(pins);
            kept.encode(dir)
        })
    }

    /// The key of the certificate, with which the node signs how commands ended (SPEC P2).
    pub(crate) fn signing_key(&self) -> Result<SigningKey, Error> {
        SigningKey::from_pkcs8_pem(&self.key).map_err(|source| Error::SigningKey { source })
    }

    pub(crate) fn client_config(&self, clock: &Clock) -> Result<rustls::ClientConfig, Error> {
        let identity = Some((self.certificate.as_str(), self.key.as_str()));
        tls::client_config(&self.ca_certificate, identity, clock)
    }
}

/// A certificate request for the key, PEM.
fn request_for(key: &str) -> Result<String, Error> {
    KeyPair::from_pem(key)
        .and_then(|key| CertificateParams::default().serialize_request(&key))
        .and_then(|request| request.pem())
        .map_err(|source| Error::Key { source })
}

async fn post(
    gateway: &GatewayAddress,
    config: rustls::ClientConfig,
    path: &str,
    request: &impl Serialize,
) -> Result<JoinResponse, Error> {
    let failed = |source| Error::Join {
        gateway: gateway.to_string(),
        source,
    };
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(config)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(Duration::from_secs(JOIN_SECONDS_MAX))
        .build()
        .map_err(failed)?;
    let url = gateway.url("https", path);
    let sent = client.post(url).json(request).send();
    let mut response = sent.await.map_err(|error| failed(error.without_url()))?;
    let status = response.status();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > JOIN_ANSWER_BYTES_MAX {
            return Err(Error::JoinUnreadable {
                gateway: gateway.to_string(),
            });
        }
        body.extend_from_slice(&chunk);
    }
    if !status.is_success() {
        return Err(Error::JoinRefused {
            gateway: gateway.to_string(),
            status: status.as_u16(),
            message: refusal_message(&body),
        });
    }
    serde_json::from_slice(&body).map_err(|_| Error::JoinUnreadable {
        gateway: gateway.to_string(),
    })
}

/// What a refusal says, when it is written like the errors of the HTTP API.
fn refusal_message(body: &[u8]) -> String {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let message = body["error"]["message"]
        .as_str()
        .unwrap_or("without a reason");
    message
        .chars()
        .filter(|letter| !letter.is_control())
        .take(crate::limits::SAID_CHARS_MAX)
        .collect()
}
