//! What the service has signed (SPEC P1, P5), held against the roots that it ever published.

use std::collections::BTreeSet;

use crate::dsse::{PublicKey, Purpose};
use crate::event::{Body, Event, Stream};
use crate::session;
use crate::trust::{BadSignature, Published, SignedBundle, TrustBundle, intent};

use super::{Checker, Rule};

/// Why the published bundles are no chain that a node could follow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("P1: trust bundle {version} {problem}")]
pub struct BrokenChain {
    /// Version of the first bundle that nodes would not believe.
    pub version: u64,
    /// What is wrong.
    pub problem: String,
}

/// The roots of bundles that follow from each other, as a node would believe them.
#[derive(Debug, Clone, Default)]
pub struct RootChain {
    roots: BTreeSet<PublicKey>,
    known: Option<TrustBundle>,
}

impl RootChain {
    /// Adds the next bundle, from the first on, unless a node would not believe it because of the
    /// one before it.
    pub fn extend(&mut self, bundle: &Published) -> Result<(), BrokenChain> {
        let Published { version, signed } = bundle;
        let broken = |problem: String| BrokenChain {
            version: *version,
            problem,
        };
        let next = self.known.as_ref().map_or_else(
            || SignedBundle::begin(signed),
            |known| signed.believe(&known.roots, known.version),
        );
        let next = next.map_err(|error| broken(format!("is not believed: {error}")))?;
        // Versions may be left out, after a restore that lost some.
        let held = next.version;
        if held != *version {
            return Err(broken(format!("stands in the place of {held}")));
        }
        self.roots.extend(next.roots.iter().copied());
        self.known = Some(next);
        Ok(())
    }

    /// All roots that there have been.
    pub fn into_roots(self) -> BTreeSet<PublicKey> {
        self.roots
    }
}

/// The roots of all these bundles, which are given from the first on; or the first bundle that a
/// node would not believe because of the one before it.
pub fn roots(bundles: &[Published]) -> Result<BTreeSet<PublicKey>, BrokenChain> {
    let mut chain = RootChain::default();
    for bundle in bundles {
        chain.extend(bundle)?;
    }
    Ok(chain.into_roots())
}

impl Checker {
    /// Holds signatures against these roots. Without any, what is signed is not looked at.
    pub fn trust(&mut self, roots: BTreeSet<PublicKey>) {
        self.roots = roots.into_iter().collect();
    }

    /// Whether what the event says to be signed is.
    pub(super) fn check_signature(&mut self, event: &Event) {
        if self.roots.is_empty() {
            return;
        }
        let (roots, known) = (&self.roots, &mut self.certified);
        let checked = match (&event.body, event.stream) {
            (Body::CommandQueued(queued), Stream::Command(id)) => {
                queued.signed.as_ref().map(|signed| {
                    let payload = intent::of_command(&session::command(id, queued));
                    let payload = payload.map_err(|_| BadSignature::Altered)?;
                    let times = (event.at, queued.not_after);
                    signed.verify_among(known, roots, times, Purpose::Command, &payload)
                })
            }
            (Body::NodeSpecSet(set), Stream::Node(node)) => set.signed.as_ref().map(|signed| {
                let payload = intent::of_spec(node, set.generation, &set.spec);
                let payload = payload.map_err(|_| BadSignature::Altered)?;
                let times = (event.at, event.at);
                signed.verify_among(known, roots, times, Purpose::DesiredState, &payload)
            }),
            (_, _) => None,
        };
        if let Some(Err(why)) = checked {
            let why = why.to_string();
            self.broken(event, Rule::Signature { why });
        }
    }
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::SigningKey;

    use super::*;
    use crate::dsse::sign;
    use crate::trust::RootSignature;

    fn key(number: u8) -> SigningKey {
        SigningKey::from_bytes(&[number; 32])
    }

    fn bundle(version: u64, roots: &[u8], signers: &[u8]) -> Published {
        let mut roots: Vec<_> = roots.iter().map(|one| PublicKey::of(&key(*one))).collect();
        roots.sort_unstable();
        let bundle = TrustBundle {
            approvers: Vec::new(),
            quorum: 0,
            roots,
            unbatched_destructive_per_hour: 0,
            version,
        };
        let bundle = bundle.encode().unwrap();
        let signatures = signers
            .iter()
            .map(|one| RootSignature {
                root: PublicKey::of(&key(*one)),
                signature: sign(&key(*one), Purpose::TrustBundle, &bundle).to_vec(),
            })
            .collect();
        let signed = SignedBundle { bundle, signatures };
        Published { version, signed }
    }

    #[test]
    fn p1_bundles_are_a_chain_from_the_first_on() {
        let (first, both) = (bundle(1, &[1], &[1]), bundle(2, &[1, 2], &[1, 2]));
        let last = bundle(3, &[2], &[2]);
        let good = [first.clone(), both.clone(), last.clone()];
        assert_eq!(roots(&good).map(|roots| roots.len()), Ok(2));
        // Versions that a restore lost are left out, from the first one on.
        let later = [bundle(4, &[1], &[1]), bundle(9, &[1, 2], &[1, 2])];
        assert_eq!(roots(&later).map(|roots| roots.len()), Ok(2));
        assert_eq!(roots(&[]).map(|roots| roots.len()), Ok(0));
        for (bad, version) in [
            (vec![first.clone(), last.clone()], 3),
            (vec![first.clone(), bundle(2, &[2], &[2])], 2),
            (vec![bundle(1, &[1], &[2])], 1),
            (vec![both, first.clone()], 1),
            (vec![first.clone(), first.clone()], 1),
            (
                vec![Published {
                    version: 2,
                    ..first
                }],
                2,
            ),
        ] {
            assert_eq!(roots(&bad).map_err(|broken| broken.version), Err(version));
        }
    }
}
