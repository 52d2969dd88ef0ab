//! Publishing what nodes are to trust (SPEC P1): a new bundle whenever the content differs from
//! that of the newest.

use ledger_projections::trust::{self, Ahead};
use ledger_protocol::batch::create::Policy;
use ledger_protocol::canonical;
use ledger_protocol::dsse::{PublicKey, Purpose};
use ledger_protocol::limits::TRUST_BUNDLE_BYTES_MAX;
use ledger_protocol::trust::{Published, RootSignature, SignedBundle, TrustBundle, Unbelievable};
use sqlx::PgPool;

use super::{Signer, SignerError, ask};
use crate::limits::{PUBLISH_ATTEMPTS_MAX, TRUST_VERSIONS_LEFT_OUT_MAX};

/// Why nothing was published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Nodes would not believe the next bundle.
    #[error(
        "none of the root keys given is one of trust bundle {version}, which nodes believe, so \
         they would not believe the next one; give one of these along with the new: {}",
        roots.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Chain {
        /// Version of the newest bundle.
        version: u64,
        /// Its roots.
        roots: Vec<PublicKey>,
    },
    /// The settings make no bundle.
    #[error("what nodes are to trust makes no bundle")]
    Bundle(#[source] Unbelievable),
    /// The newest bundle in the database is none.
    #[error(
        "row {version} of trust_bundles cannot be used: put it back from a copy as the database's \
         owner"
    )]
    Unreadable {
        /// The row's version.
        version: u64,
        /// What is wrong with it.
        #[source]
        source: Unbelievable,
    },
    /// The newest row in the database holds another version's bundle.
    #[error(
        "row {version} of trust_bundles holds trust bundle {held}: put it back from a copy as the \
         database's owner"
    )]
    Misplaced {
        /// The row's version.
        version: u64,
        /// The bundle's.
        held: u64,
    },
    /// So many versions are not left out.
    #[error(
        "trust bundle {asked} would leave out more than {TRUST_VERSIONS_LEFT_OUT_MAX} versions after \
         {newest}, the newest; a node that claims more is not to be believed"
    )]
    Leap {
        /// The version that was asked for.
        asked: u64,
        /// The newest version; 0 for none.
        newest: u64,
    },
    /// With all its signatures it is too large to be sent.
    #[error("the trust bundle has {bytes} bytes; the limit is {TRUST_BUNDLE_BYTES_MAX}")]
    TooLarge {
        /// Its size, in bytes.
        bytes: usize,
    },
    /// A root did not sign.
    #[error("the trust bundle is not signed")]
    Signer(#[from] SignerError),
    /// The table could not be read or written.
    #[error("the trust bundles cannot be used")]
    Projection(#[from] ledger_projections::Error),
    /// Others published different ones meanwhile, again and again.
    #[error(
        "others publish other trust bundles at the same time; is their configuration the same?"
    )]
    Contended,
}

impl From<sqlx::Error> for PublishError {
    fn from(error: sqlx::Error) -> Self {
        Self::Projection(error.into())
    }
}

/// The newest bundle, as it is published.
pub async fn newest_trust_bundle(pool: &PgPool) -> Result<Option<TrustBundle>, PublishError> {
    let mut connection = pool.acquire().await?;
    let Some(Published { version, signed }) = trust::newest(&mut connection).await? else {
        return Ok(None);
    };
    let bundle = TrustBundle::decode(&signed.bundle)
        .map_err(|source| PublishError::Unreadable { version, source })?;
    let held = bundle.version;
    if held != version {
        return Err(PublishError::Misplaced { version, held });
    }
    Ok(Some(bundle))
}

/// Says what nodes will hold for allowed from now on: whoever replaces the bundle of another service
/// by mistake sees it here.
fn tell_changes(known: &TrustBundle, next: &TrustBundle) {
    if known.differs_in(next).iter().all(|field| *field == "roots") {
        return;
    }
    let names = |of: &TrustBundle, but_of: &TrustBundle| {
        let new = of.approvers.iter().filter(|one| {
            let mut others = but_of.approvers.iter();
            !others.any(|other| other.name == one.name)
        });
        new.map(|one| one.name.clone()).collect::<Vec<_>>()
    };
    let with_other_keys: Vec<_> = next
        .approvers
        .iter()
        .filter(|one| {
            let mut others = known.approvers.iter();
            others.any(|other| other.name == one.name && other.key != one.key)
        })
        .map(|one| &one.name)
        .collect();
    tracing::warn!(
        version = next.version,
        added = ?names(next, known),
        removed = ?names(known, next),
        ?with_other_keys,
        quorum_before = known.quorum,
        quorum = next.quorum,
        unbatched_before = known.unbatched_destructive_per_hour,
        unbatched = next.unbatched_destructive_per_hour,
        "this trust bundle changes what nodes ask for before they destroy anything"
    );
}

/// Says that nodes pass over what is published, as they do after a restore that lost bundles.
pub(super) fn tell_ahead(newest: u64, ahead: Ahead) {
    let Ahead { nodes, highest } = ahead;
    let next = highest.saturating_add(1);
    tracing::warn!(
        newest,
        nodes,
        highest,
        "nodes say that they believe trust bundles that this database does not have, and pass over \
         what is published: if it was restored, start `serve` with --trust-version-min {next}"
    );
}

impl Signer {
    /// Publishes what nodes are to trust unless the newest bundle says the same, under a version of
    /// at least `version_min`: one below it is published again under that, for nodes that have seen
    /// what a restore lost. Answers with the newest version. Of several at once, one publishes: a
    /// version can be taken once.
    pub async fn publish(
        &self,
        pool: &PgPool,
        policy: &Policy,
        version_min: u64,
    ) -> Result<u64, PublishError> {
        let mut next = self.content(policy);
        for _ in 0..PUBLISH_ATTEMPTS_MAX {
            // A root may take its time; nobody's connection waits for it.
            let known = newest_trust_bundle(pool).await?;
            let newest = known.as_ref().map_or(0, |known| known.version);
            if let Some(known) = &known {
                if known.means(&next) && newest >= version_min {
                    return Ok(newest);
                }
                if !known.roots.iter().any(|root| next.roots.contains(root)) {
                    let (version, roots) = (newest, known.roots.clone());
                    return Err(PublishError::Chain { version, roots });
                }
            }
            if version_min.saturating_sub(newest) > TRUST_VERSIONS_LEFT_OUT_MAX {
                let asked = version_min;
                return Err(PublishError::Leap { asked, newest });
            }
            next.version = newest.saturating_add(1).max(version_min);
            next.check_bounds().map_err(PublishError::Bundle)?;
            let bundle = Published {
                version: next.version,
                signed: self.sign_bundle(&next).await?,
            };
            let mut connection = pool.acquire().await?;
            // Asked before there is one of this version, of which no node can have heard from here.
            let ahead = trust::ahead(&mut connection, bundle.version - 1).await?;
            if trust::publish(&mut connection, &bundle).await? {
                tracing::info!(version = bundle.version, "a trust bundle is published");
                if let Some(known) = &known {
                    tell_changes(known, &next);
                }
                if let Some(ahead) = ahead {
                    tell_ahead(bundle.version, ahead);
                }
                return Ok(bundle.version);
            }
        }
        Err(PublishError::Contended)
    }

    /// The same for the same settings, in whatever order they are given.
    pub(super) fn content(&self, policy: &Policy) -> TrustBundle {
        let mut roots: Vec<_> = self.roots.iter().map(|root| root.public_key()).collect();
        roots.sort_unstable();
        let allowance = policy.unbatched_destructive_per_hour;
        TrustBundle {
            approvers: policy.approvers.clone(),
            quorum: policy.quorum,
            roots,
            unbatched_destructive_per_hour: allowance,
            version: 0,
        }
    }

    async fn sign_bundle(&self, next: &TrustBundle) -> Result<SignedBundle, PublishError> {
        let bundle = next.encode().map_err(SignerError::Encode)?;
        let mut signatures = Vec::with_capacity(self.roots.len());
        for root in &self.roots {
            signatures.push(RootSignature {
                root: root.public_key(),
                signature: ask(root.as_ref(), Purpose::TrustBundle, &bundle).await?,
            });
        }
        let signed = SignedBundle { bundle, signatures };
        let bytes = canonical::encode(&signed).map_err(SignerError::Encode)?;
        let bytes = bytes.len();
        if bytes > TRUST_BUNDLE_BYTES_MAX {
            return Err(PublishError::TooLarge { bytes });
        }
        Ok(signed)
    }
}
