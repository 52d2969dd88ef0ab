//! A node's signature over how a command ended (SPEC P2): what is signed, and whether it holds.
//!
//! The specification asks for command, state and the SHA-256 of the result. Whatever else an end
//! says is a claim as well, and passes through a gateway that could write another one: the reason
//! (`gpu-busy` for `interrupted`), the details, and what a cut result was cut from. So all of it is
//! bound, and the node too, for a key may come to be that of two nodes. Long fields go in as their
//! hash, so that the statement can be shown without them.

use ed25519_dalek::SigningKey;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::canonical;
use crate::dsse::{self, PublicKey, Purpose, SIGNATURE_BYTES};
use crate::event::{CommandSettled, NodeCertified, Truncated};
use crate::frame::Update;
use crate::id::{CommandId, NodeId};

/// What is signed, with purpose `command-update`: canonical MessagePack of this. Fields stand in
/// the order of their wire names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Statement<'a> {
    command_id: CommandId,
    #[serde(skip_serializing_if = "Option::is_none")]
    details_sha256: Option<Sha256Bytes>,
    node_id: NodeId,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_sha256: Option<Sha256Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_truncated: Option<&'a Truncated>,
    state: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
struct Sha256Bytes(#[serde(with = "serde_bytes")] [u8; 32]);

impl Sha256Bytes {
    fn of(bytes: Option<&Vec<u8>>) -> Option<Self> {
        bytes.map(|bytes| Self(Sha256::digest(bytes).into()))
    }
}

/// Why an end is not proved to be the node's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unproved {
    /// The node has no certificate, so it has no key.
    #[error("the node has no certificate that it could be held against")]
    NoCertificate,
    /// The signature is another's, for something else, or not a signature.
    #[error("it is not the signature of the node's certificate over this word")]
    NotSigned,
}

impl<'a> Statement<'a> {
    /// What is to be signed of a terminal update; nothing of any other.
    pub fn of_update(node_id: NodeId, update: &'a Update) -> Option<Self> {
        update.state.is_terminal().then(|| Self {
            command_id: update.command_id,
            details_sha256: Sha256Bytes::of(update.details.as_ref()),
            node_id,
            reason: update.reason.as_deref(),
            result_sha256: Sha256Bytes::of(update.result.as_ref()),
            result_truncated: update.result_truncated.as_ref(),
            state: update.state.as_str(),
        })
    }

    /// What was to be signed of an end that the log holds.
    pub fn of_end(command_id: CommandId, end: &'a CommandSettled) -> Self {
        Self {
            command_id,
            details_sha256: Sha256Bytes::of(end.details.as_ref()),
            node_id: end.node_id,
            reason: end.reason.as_deref(),
            result_sha256: Sha256Bytes::of(end.result.as_ref()),
            result_truncated: end.result_truncated.as_ref(),
            state: end.state.as_str(),
        }
    }

    /// The bytes that are signed, before the encoding that every signature has ([`dsse`]).
    pub fn encode(&self) -> Result<Vec<u8>, canonical::Error> {
        canonical::encode(self)
    }

    /// Whether `signature` is that of the key in `certificate` over this.
    pub fn verify(
        &self,
        certificate: Option<&NodeCertified>,
        signature: &[u8],
    ) -> Result<(), Unproved> {
        let certificate = certificate.ok_or(Unproved::NoCertificate)?;
        let key = PublicKey::from_bytes(&certificate.public_key);
        let (Ok(key), Ok(payload)) = (key, self.encode()) else {
            return Err(Unproved::NotSigned);
        };
        let holds = key.verifies(Purpose::CommandUpdate, &payload, signature);
        holds.then_some(()).ok_or(Unproved::NotSigned)
    }
}

/// The node's signature over a terminal update; nothing over any other.
pub fn sign(
    key: &SigningKey,
    node: NodeId,
    update: &Update,
) -> Result<Option<[u8; SIGNATURE_BYTES]>, canonical::Error> {
    let Some(statement) = Statement::of_update(node, update) else {
        return Ok(None);
    };
    let payload = statement.encode()?;
    Ok(Some(dsse::sign(key, Purpose::CommandUpdate, &payload)))
}
