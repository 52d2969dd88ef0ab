//! What an operator may set.

use std::time::Duration;

use crate::limits;

/// How and where to publish.
#[derive(Clone)]
pub struct NatsOptions {
    /// `nats://TOKEN@HOST:PORT`, `nats://USER:PASSWORD@HOST:PORT` or `tls://…`.
    pub url: String,
    /// Name of this process, by which the publisher's lease knows it; no other process may have it.
    pub holder: String,
    /// `ce-source` of every event: a URI reference that tells this ledger from others.
    pub source: String,
    /// Copies that a NATS cluster keeps of the stream, 1 to 5; 1 unless set.
    pub replicas: usize,
    /// How long the stream keeps an event; for ever when zero, the default. A consumer that fell
    /// further behind reads from the ledger.
    pub max_age: Duration,
    /// How much the stream may hold before its oldest events go, in bytes; no limit when `None`,
    /// the default.
    pub bytes_max: Option<u64>,
    /// How long after the publisher's death another one takes over, at the latest; 15 s unless set.
    pub lease: Duration,
}

impl NatsOptions {
    /// A stream without limits, kept once.
    pub fn new(
        url: impl Into<String>,
        holder: impl Into<String>,
        source: impl Into<String>,
    ) -> Self {
        Self {
            url: url.into(),
            holder: holder.into(),
            source: source.into(),
            replicas: 1,
            max_age: Duration::ZERO,
            bytes_max: None,
            lease: Duration::from_secs(limits::LEASE_SECONDS),
        }
    }
}

impl std::fmt::Debug for NatsOptions {
    /// Without the URL, which may hold a token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsOptions")
            .field("holder", &self.holder)
            .field("source", &self.source)
            .field("replicas", &self.replicas)
            .field("max_age", &self.max_age)
            .field("bytes_max", &self.bytes_max)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}
