//! How an agent trusts its gateway, and shows who it is (SPEC D1, P7).

use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tracing::warn;

use crate::clock::Clock;
use crate::error::Error;

/// A configuration that trusts this certificate authority and no other, and that shows the
/// certificate of `identity` (certificate and key, PEM) if there is one.
pub(crate) fn client_config(
    ca_certificate: &str,
    identity: Option<(&str, &str)>,
    clock: &Clock,
) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    trust(&mut roots, ca_certificate, "the certificate authority")?;
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let inner = inner.build().map_err(|_| Error::Pem {
        what: "the certificate authority",
    })?;
    let verifier = Verifier {
        inner,
        clock: clock.clone(),
        has_joined: identity.is_some(),
    };
    let config = ClientConfig::builder_with_details(provider, Arc::new(NodeTime(clock.clone())))
        .with_safe_default_protocol_versions()
        .map_err(|source| Error::Tls {
            what: "the TLS versions",
            source,
        })?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let Some((certificate, key)) = identity else {
        return Ok(config.with_no_client_auth());
    };
    let chain = certificates(certificate, "the node's certificate")?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| Error::Pem {
        what: "the node's key",
    })?;
    config
        .with_client_auth_cert(chain, key)
        .map_err(|source| Error::Tls {
            what: "the node's certificate and key",
            source,
        })
}

/// Adds the certificates of a PEM text to those that are trusted.
pub(crate) fn trust(roots: &mut RootCertStore, pem: &str, what: &'static str) -> Result<(), Error> {
    for certificate in certificates(pem, what)? {
        let added = roots.add(certificate);
        added.map_err(|source| Error::Tls { what, source })?;
    }
    Ok(())
}

fn certificates(pem: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    found
        .ok()
        .filter(|found| !found.is_empty())
        .ok_or(Error::Pem { what })
}

/// The server's time where it is known, else the node's.
#[derive(Debug)]
struct NodeTime(Clock);

impl TimeProvider for NodeTime {
    fn current_time(&self) -> Option<UnixTime> {
        let since = Duration::from_millis(self.0.best().unix_millis());
        Some(UnixTime::since_unix_epoch(since))
    }
}

/// Verifies like any client, except for a clock that is wrong: a node whose clock starts at 1970, or
/// has jumped ahead, must still reach the gateway that tells it the time (SPEC D10). A certificate
/// that seems not to be valid yet is verified as of its first moment. One that seems to have expired
/// is verified as of its last by a node that has joined, until a server has told the time; from then
/// on, and by a join, it is refused.
#[derive(Debug)]
struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    clock: Clock,
    has_joined: bool,
}

/// Certificates of a chain that may each begin later than the one before.
const CHAIN_MAX: usize = 4;

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let mut at = now;
        for _ in 0..CHAIN_MAX {
            let verified = self.inner.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                at,
            );
            match verified {
                Err(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
                    not_before,
                    ..
                })) if not_before > at => {
                    warn!("this node's clock is behind the gateway's certificate");
                    at = not_before;
                }
                Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
                    not_after,
                    ..
                })) if not_after < at && self.has_joined && !self.clock.knows_server() => {
                    warn!("this node's clock is ahead of the end of the gateway's certificate");
                    at = not_after;
                }
                verified => return verified,
            }
        }
        Err(CertificateError::NotValidYet.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use ledger_protocol::time::Timestamp;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;

    #[test]
    fn d10_a_node_whose_clock_is_ahead_reaches_its_gateway_until_it_knows_better() {
        let key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = authority.self_signed(&key).unwrap();
        let issuer = Issuer::new(authority, key);
        let mut server = CertificateParams::new(vec!["gateway.example".to_owned()]).unwrap();
        server.not_after = rcgen::date_time_ymd(2030, 1, 1);
        let server = server
            .signed_by(&KeyPair::generate().unwrap(), &issuer)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(root.der().clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let mut verifier = Verifier {
            inner: inner.build().unwrap(),
            clock: Clock::system(),
            has_joined: true,
        };
        let name = ServerName::try_from("gateway.example").unwrap();
        let year_2055 = UnixTime::since_unix_epoch(Duration::from_hours(85 * 365 * 24));
        let accepts = |verifier: &Verifier| {
            let answer = verifier.verify_server_cert(server.der(), &[], &name, &[], year_2055);
            answer.is_ok()
        };
        assert!(accepts(&verifier));
        verifier.has_joined = false;
        assert!(
            !accepts(&verifier),
            "a join trusts no certificate that seems to have expired"
        );
        verifier.has_joined = true;
        verifier.clock.learn(Timestamp::from_micros(0));
        assert!(!accepts(&verifier), "the time is known");
    }
}
