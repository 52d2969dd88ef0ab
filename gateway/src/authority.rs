//! The certificate authority: it names the gateway to nodes, and nodes to the gateway.
//!
//! Everything is Ed25519. Time and serial numbers are given by the caller; keys come from the
//! operating system, as they must.

use std::fmt;
use std::path::Path;

use ledger_protocol::id::NodeId;
use ledger_protocol::time::{MICROS_PER_SECOND, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, SerialNumber,
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::Error;
use crate::limits;

mod files;
mod identity;
mod node;
mod server;

pub use identity::ALLOWED_KINDS_OID;
pub(crate) use identity::{Unreadable, peer};
pub(crate) use node::{InvalidRequest, requested_key};
pub use node::{NodeCertificate, NodeCertificateTerms};
pub use server::ServerCertificate;

/// A certificate authority, with its key.
pub struct CertificateAuthority {
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("fingerprint", &fingerprint(&self.certificate))
            .finish_non_exhaustive()
    }
}

impl CertificateAuthority {
    /// A new authority, valid for ten years from `now`.
    pub fn generate(now: Timestamp) -> Result<Self, Error> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = name("Command Ledger node authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        date(
            &mut params,
            now,
            limits::BACKDATED_SECONDS,
            limits::AUTHORITY_SECONDS,
        );
        let certificate = params.self_signed(&key)?;
        Ok(Self {
            certificate: certificate.der().clone(),
            certificate_pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        })
    }

    /// The authority with this certificate and key.
    pub fn load(certificate_pem: &str, key_pem: &str) -> Result<Self, Error> {
        let key = KeyPair::from_pem(key_pem)?;
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(Error::AuthorityPem)?;
        let (_, parsed) =
            x509_parser::parse_x509_certificate(&certificate).map_err(|_| Error::NotAnAuthority)?;
        let own_key = &parsed.public_key().subject_public_key.data;
        if !parsed.is_ca() || key.public_key_raw() != own_key.as_ref() {
            return Err(Error::NotAnAuthority);
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key)?;
        let certificate_pem = certificate_pem.to_owned();
        Ok(Self {
            certificate,
            certificate_pem,
            issuer,
        })
    }

    /// The authority that is kept in this folder; made there if there is none.
    pub fn load_or_generate(folder: &Path, now: Timestamp) -> Result<Self, Error> {
        if let Some(authority) = files::load(folder)? {
            return Ok(authority);
        }
        let authority = Self::generate(now)?;
        authority.save(folder)?;
        Ok(authority)
    }

    /// Keeps the authority in this folder, the key readable by its owner only. An authority that
    /// is there already is never overwritten.
    pub fn save(&self, folder: &Path) -> Result<(), Error> {
        files::save(self, folder)
    }

    /// The certificate, as PEM: what nodes trust.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The certificate, as DER.
    pub fn certificate_der(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The key, as PEM. Whoever has it can name any node.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// A certificate for the gateway itself, under these DNS names and addresses.
    pub fn issue_server(
        &self,
        names: &[String],
        now: Timestamp,
    ) -> Result<ServerCertificate, Error> {
        server::issue(&self.issuer, names, now)
    }

    /// A certificate for a node, from the key of its certificate request (PEM). Names and
    /// extensions of the request are not looked at.
    pub fn issue_node(
        &self,
        node: NodeId,
        csr_pem: &str,
        terms: &NodeCertificateTerms,
    ) -> Result<NodeCertificate, Error> {
        node::issue(&self.issuer, node, csr_pem, terms)
    }
}

fn name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

/// Dates a certificate; X.509 counts whole seconds.
fn date(params: &mut CertificateParams, now: Timestamp, backdated_seconds: u32, seconds: u32) {
    let second = now.as_micros().div_euclid(MICROS_PER_SECOND);
    let at = |second: i64| {
        OffsetDateTime::from_unix_timestamp(second).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    };
    params.not_before = at(second.saturating_sub(backdated_seconds.into()));
    params.not_after = at(second.saturating_add(seconds.into()));
}

fn serial(random: [u8; 10]) -> SerialNumber {
    // The first bit stays clear, because a serial number is positive.
    let mut bytes = random;
    bytes[0] &= 0x7f;
    SerialNumber::from_slice(&bytes)
}

/// SHA-256 of a certificate, in hex.
fn fingerprint(certificate: &[u8]) -> String {
    hex::encode(Sha256::digest(certificate))
}
