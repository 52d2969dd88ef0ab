//! What can go wrong in the gateway itself; what goes wrong in one session ends that session.

use std::io;
use std::path::PathBuf;

use crate::authority::InvalidRequest;

/// A failure of the gateway.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the certificate authority.
    #[error("file {} of the certificate authority cannot be used", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// The authority's certificate is not PEM.
    #[error("certificate of the authority is not readable as PEM")]
    AuthorityPem(#[source] rustls::pki_types::pem::Error),
    /// The certificate is none of an authority, or the key is not its own.
    #[error("certificate is not that of an authority with this key")]
    NotAnAuthority,
    /// A certificate could not be made.
    #[error("certificate could not be made")]
    Certificate(#[from] rcgen::Error),
    /// A list of allowed kinds that does not fit a certificate.
    #[error("list of allowed kinds does not fit a certificate")]
    AllowedKinds,
    /// A certificate request that is not fit for a node.
    #[error(transparent)]
    Request(#[from] InvalidRequest),
    /// TLS could not be set up.
    #[error("TLS could not be set up")]
    Tls(#[from] rustls::Error),
    /// Client certificates could not be set up.
    #[error("verification of client certificates could not be set up")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// The task that dispatches commands has ended before its time.
    #[error("the dispatcher ended before its time")]
    Dispatcher,
    /// The listener's address is unknown.
    #[error("listener cannot be used")]
    Listener(#[source] io::Error),
}
