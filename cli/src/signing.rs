//! What a service signs with: its root keys, and the settings that nodes learn (SPEC P1, P4).

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use ledger::secrets::MasterKeys;
use ledger::{Clock, HeldRoot, PublishError, RootKey, Signer};
use ledger_projections::trust;
use ledger_protocol::batch::create::Policy;
use ledger_protocol::daemon::limits::UNBATCHED_PER_HOUR_MAX;
use sqlx::PgPool;

use crate::exit::{Failure, Meaning};
use crate::key_file;

/// How many destructive commands go without a batch.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Allowance {
    // Nodes count up to this, whatever their bundle says.
    /// Destructive commands that a node takes in an hour without a batch, where there are approvers;
    /// with 0 each needs one, and the most is 1024
    #[arg(long, value_name = "COMMANDS", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..=i64::try_from(UNBATCHED_PER_HOUR_MAX).unwrap_or(0)))]
    unbatched_destructive_per_hour: u32,
}

impl Allowance {
    /// The policy with this allowance.
    pub(crate) fn in_policy(self, mut policy: Policy) -> Policy {
        policy.unbatched_destructive_per_hour = self.unbatched_destructive_per_hour;
        policy
    }
}

/// What a process that takes commands in is given.
#[derive(Debug, Default)]
pub(crate) struct Signing {
    /// Who approves batches.
    pub(crate) approval: Policy,
    /// Whether somebody said who, be it nobody.
    pub(crate) approvers_named: bool,
    /// Lowest version of the trust bundle that nodes are to be told; 0 for any.
    pub(crate) trust_version_min: u64,
    /// What signs; nothing is signed without.
    pub(crate) signer: Option<Arc<Signer>>,
    /// What encrypts secrets; none are kept without (SPEC P6).
    pub(crate) master_keys: Option<Arc<MasterKeys>>,
}

/// The signer that these files' keys make: the first signs, the others are believed too. None
/// without files.
pub(crate) fn signer(files: &[PathBuf], clock: &Clock) -> Result<Option<Arc<Signer>>, Failure> {
    let mut roots: Vec<Arc<dyn RootKey>> = Vec::with_capacity(files.len());
    for file in files {
        let root = HeldRoot::new(key_file::private_key(file)?);
        roots.push(Arc::new(root));
    }
    let mut roots = roots.into_iter();
    let first = roots.next();
    Ok(first.map(|first| Arc::new(Signer::new(first, roots.collect(), clock.clone()))))
}

impl Signing {
    /// Publishes what nodes are to trust, and has a worker key certified. Commands wait for neither
    /// later.
    pub(crate) async fn begin(&self, pool: &PgPool) -> Result<(), Failure> {
        let Some(signer) = &self.signer else {
            return Ok(());
        };
        if !self.approvers_named {
            check_no_approvers(pool).await?;
        }
        let published = signer.publish(pool, &self.approval, self.trust_version_min);
        match published.await {
            Err(error @ (PublishError::Chain { .. } | PublishError::Bundle(_))) => {
                Err(error).or_usage("--command-root cannot be used")?;
            }
            Err(error @ PublishError::Leap { .. }) => {
                Err(error).or_usage("--trust-version-min cannot be used")?;
            }
            published => _ = published?,
        }
        if let Err(error) = signer.renew().await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "no command is taken in before a root has signed");
        }
        Ok(())
    }
}

/// Refuses to take the approvers off every node because an option was forgotten.
async fn check_no_approvers(pool: &PgPool) -> Result<(), Failure> {
    let newest = ledger::newest_trust_bundle(pool).await?;
    let Some(known) = newest.filter(|known| !known.approvers.is_empty()) else {
        return Ok(());
    };
    let version = known.version;
    Err(Failure::usage(format!(
        "by trust bundle {version}, which nodes believe, destructive commands need approvers; give \
         --approvers (a file with quorum 0 and no approvers takes that back)"
    )))
}

/// Refuses to take in unsigned what nodes would refuse: they never go back to that.
pub(crate) async fn check_unsigned(pool: &PgPool) -> Result<(), Failure> {
    let newest = trust::newest(&mut *pool.acquire().await?).await?;
    newest.map_or(Ok(()), |newest| {
        let version = newest.version;
        Err(Failure::usage(format!(
            "nodes believe trust bundle {version} and would refuse every command that is not signed; \
             give --command-root"
        )))
    })
}
