//! What a node is sent of the trust bundles (SPEC P1): those above the version that it believes,
//! the oldest first, for each is believed because of the one before it.

use crate::frame::{Frame, Trust};
use crate::limits::TRUST_BUNDLES_PER_FRAME_MAX;
use crate::trust::{Published, SignedBundle};

/// How far a node is, as far as this session knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Told {
    /// The version that the node says it believes; 0 for none.
    pub(super) believed: u64,
    /// The newest version that it believes or was sent here.
    pub(super) sent: u64,
}

impl Told {
    /// The node says what it believes. Answers whether that is news.
    pub(super) fn believes(&mut self, version: u64) -> bool {
        let news = self.believed != version;
        self.believed = version;
        self.sent = self.sent.max(version);
        news
    }

    /// The node asks for all above what it believes, whatever it was sent.
    pub(super) fn asks(&mut self) {
        self.sent = self.believed;
    }

    /// Those of the bundles that the node was not sent yet, in as many pieces as frames take.
    pub(super) fn pieces(&mut self, bundles: &[Published]) -> Vec<Vec<SignedBundle>> {
        let mut new: Vec<_> = bundles
            .iter()
            .filter(|bundle| bundle.version > self.sent)
            .collect();
        new.sort_unstable_by_key(|bundle| bundle.version);
        if let Some(newest) = new.last() {
            self.sent = newest.version;
        }
        let piece = |piece: &[&Published]| piece.iter().map(|one| one.signed.clone()).collect();
        new.chunks(TRUST_BUNDLES_PER_FRAME_MAX).map(piece).collect()
    }
}

/// The frame that brings a piece.
pub(super) fn frame(bundles: Vec<SignedBundle>) -> Frame {
    Frame::Trust(Trust { bundles })
}
