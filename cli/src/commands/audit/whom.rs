//! Whom an auditor trusts: the log's key, and any number of witnesses.

use std::num::NonZero;
use std::path::Path;

use clap::Args;
use ledger_protocol::tlog::{Policy, VerifierKey};

use crate::exit::{Failure, Meaning};
use crate::key_file::read;
use crate::limits::KEY_FILE_BYTES_MAX;

/// Whose word counts.
#[derive(Debug, Args)]
pub(super) struct Whom {
    /// The log's verifier key, `<name>+<key ID>+<base64>`, or a file with it
    #[arg(long, value_name = "KEY")]
    key: String,
    /// A witness's verifier key, or a file with it; may be given more than once
    #[arg(long, value_name = "KEY")]
    witness: Vec<String>,
    /// How many of the witnesses must have cosigned the last checkpoint; all unless given
    #[arg(long, value_name = "N", requires = "witness")]
    witness_quorum: Option<NonZero<usize>>,
}

impl Whom {
    /// The log's key.
    pub(super) fn log(&self) -> Result<VerifierKey, Failure> {
        key("--key", &self.key)
    }

    /// The witnesses' keys, and how many of them must have cosigned.
    pub(super) fn witnesses(&self) -> Result<(Vec<VerifierKey>, usize), Failure> {
        let witnesses = self.witness.iter().map(|text| key("--witness", text));
        let witnesses: Vec<VerifierKey> = witnesses.collect::<Result<_, _>>()?;
        let quorum = self.witness_quorum.map_or(witnesses.len(), NonZero::get);
        Ok((witnesses, quorum))
    }

    /// The policy that they make; the log's name is its origin.
    pub(super) fn policy(&self) -> Result<Policy, Failure> {
        let (log, (witnesses, quorum)) = (self.log()?, self.witnesses()?);
        let origin = log.name().as_str().to_owned();
        let policy = Policy::new(&origin, vec![log], witnesses, quorum);
        policy.or_usage("--key and --witness say nothing about a log")
    }
}

/// A verifier key, or the one in a file.
pub(super) fn key(option: &str, text: &str) -> Result<VerifierKey, Failure> {
    let parsed = text.trim().parse::<VerifierKey>();
    let error = match parsed {
        Ok(key) => return Ok(key),
        Err(error) => error,
    };
    let path = Path::new(text);
    if !path.exists() {
        return Err(Failure::usage(format!(
            "{option} is no verifier key ({error}), and no file has this name"
        )));
    }
    let kept = read(path, KEY_FILE_BYTES_MAX)?;
    let key = kept.trim().parse::<VerifierKey>();
    key.or_usage(format!("{} holds no verifier key", path.display()))
}
