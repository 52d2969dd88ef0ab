//! `batch`: commands that need the approval of others (SPEC P3).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use ledger_protocol::batch::Leaf;
use ledger_protocol::dsse::{PublicKey, Purpose, sign};
use ledger_protocol::id::BatchId;
use ledger_protocol::limits::{BATCH_EXPIRES_SECONDS_MAX, BATCH_EXPIRES_SECONDS_MIN};
use serde_json::{Value, json};

use crate::client::{Client, TenantOptions};
use crate::exit::Failure;
use crate::key_file;
use crate::output::Output;

mod payloads;
mod scope;
mod shown;

use payloads::PayloadOptions;
use shown::Shown;

/// Propose commands that need the approval of others, and approve them.
///
/// What is approved is computed here from the batch's own leaves; the private key stays on this
/// machine.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make an approver's private key, and print its public key for the list of approvers
    Keygen {
        /// File to make
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Propose commands for approval
    Propose {
        /// Why they are to run
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// A command to allow, NODE:KIND or NODE:KIND:PAYLOAD with the payload as JSON; may be
        /// repeated
        #[arg(long, value_name = "COMMAND", value_parser = scope::command,
              required_unless_present = "scope")]
        command: Vec<Leaf>,
        /// File with more of them, a JSON list of {"subject": NODE, "kind": KIND, "payload"?: …};
        /// give it to those who are to approve, too
        #[arg(long, value_name = "FILE")]
        scope: Option<PathBuf>,
        /// Key under which a retry finds the same batch
        #[arg(long, value_name = "KEY")]
        idempotency_key: String,
        /// How long it may be approved and used, from 60s to 7d [default: 1d]
        #[arg(long, value_name = "TIME", value_parser = expiry)]
        expires: Option<Duration>,
        #[command(flatten)]
        common: TenantOptions,
    },
    /// Show what a batch allows, who has approved it, and whether its leaves make its root
    Show {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        payloads: PayloadOptions,
        #[command(flatten)]
        common: TenantOptions,
    },
    /// Approve a batch: check what it allows, print it, sign it, and send the signature
    Approve {
        #[command(flatten)]
        which: Which,
        /// The approver's private key, Ed25519 in PEM
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        #[command(flatten)]
        payloads: PayloadOptions,
        #[command(flatten)]
        common: TenantOptions,
    },
    /// Check the signatures of a batch's approvals; the exit code is 1 unless they are enough
    Verify {
        #[command(flatten)]
        which: Which,
        /// File with the public key of an approver whom you trust; may be repeated [default: the
        /// approvers that the batch names]
        #[arg(long, value_name = "FILE")]
        key: Vec<PathBuf>,
        /// How many good approvals you ask for [default: as many as the batch names]
        #[arg(long, value_name = "APPROVALS", value_parser = clap::value_parser!(u64).range(1..))]
        quorum: Option<u64>,
        #[command(flatten)]
        common: TenantOptions,
    },
}

/// One batch, by its place on the line or by name.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// The batch
    #[arg(value_name = "BATCH")]
    batch: Option<BatchId>,
    /// The same by name, as scripts say it
    #[arg(long = "batch", value_name = "BATCH")]
    named: Option<BatchId>,
}

impl Which {
    fn id(&self) -> Result<BatchId, Failure> {
        let given = self.batch.or(self.named);
        given.ok_or_else(|| Failure::usage("which batch? Give its id"))
    }
}

/// Does what the verb says.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    match options.verb {
        Verb::Keygen { out } => output.line(&key_file::base64(&key_file::generate(&out)?)),
        Verb::Propose {
            reason,
            command,
            scope,
            idempotency_key,
            expires,
            common,
        } => {
            let mut leaves = command;
            if let Some(path) = scope {
                let listed = scope::read(&path)?;
                leaves.extend(listed.into_iter().map(|allowed| allowed.leaf));
            }
            let mut input = json!({
                "tenantId": common.tenant,
                "reason": reason,
                "scope": scope::grouped(&leaves),
                "idempotencyKey": idempotency_key,
            });
            if let Some(expires) = expires {
                input["expiresInSeconds"] = json!(expires.as_secs());
            }
            let batch = common.call("create", &input).await?;
            if common.json {
                return output.json(&batch);
            }
            if batch["state"] == "recorded" {
                tracing::warn!(
                    "this service has no approvers, so the batch holds nothing and is \
                     recorded for audit only"
                );
            }
            output.line(batch["id"].as_str().unwrap_or_default())
        }
        Verb::Show {
            which,
            payloads,
            common,
        } => {
            let shown = Shown::fetch(which.id()?, &common).await?;
            let known = payloads.read(shown.id, &shown.leaves)?;
            if common.json {
                return output.json(&shown.json(&known));
            }
            shown.print(&known, output)
        }
        Verb::Approve {
            which,
            key,
            payloads,
            common,
        } => {
            let key = key_file::private_key(&key)?;
            let shown = Shown::fetch(which.id()?, &common).await?;
            let known = payloads.read(shown.id, &shown.leaves)?;
            if !common.json {
                shown.print(&known, output)?;
            }
            let signature = sign(&key, Purpose::BatchApproval, &shown.statement()?);
            let input = json!({
                "tenantId": common.tenant,
                "batchId": shown.id,
                "publicKey": key_file::base64(&PublicKey::of(&key)),
                "signature": STANDARD.encode(signature),
            });
            let approved = common.call("approve", &input).await?;
            if common.json {
                return output.json(&approved);
            }
            let given = approved["approvals"].as_array().map_or(0, Vec::len);
            let (quorum, state) = (&approved["quorum"], &approved["state"]);
            let state = state.as_str().unwrap_or_default();
            output.line(&format!("\nsigned: {given} of {quorum} approvals, {state}"))
        }
        Verb::Verify {
            which,
            key,
            quorum,
            common,
        } => {
            let trusted = key.iter().map(|path| key_file::public_key(path));
            let trusted = trusted.collect::<Result<BTreeSet<_>, Failure>>()?;
            let shown = Shown::fetch(which.id()?, &common).await?;
            shown.verify(&trusted, quorum, common.json, output)
        }
    }
}

impl TenantOptions {
    async fn call(&self, method: &str, input: &Value) -> Result<Value, Failure> {
        let client = Client::new(&self.api)?;
        client.call("commandBatches", method, input).await
    }
}

/// Reads how long a batch may be approved.
fn expiry(text: &str) -> Result<Duration, String> {
    let seconds = u64::from(BATCH_EXPIRES_SECONDS_MIN)..=u64::from(BATCH_EXPIRES_SECONDS_MAX);
    let time = crate::duration::parse(text);
    time.ok()
        .filter(|time| seconds.contains(&time.as_secs()))
        .ok_or_else(|| "--expires must be 60s to 7d".to_owned())
}
