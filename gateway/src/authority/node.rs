//! A node's certificate, from its certificate request.

use ledger_protocol::event::NodeCertified;
use ledger_protocol::id::NodeId;
use ledger_protocol::time::{MICROS_PER_SECOND, Timestamp};
use rcgen::{
    CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose, SanType,
    SubjectPublicKeyInfo,
};
use rustls::pki_types::{CertificateSigningRequestDer, pem::PemObject};
use time::OffsetDateTime;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::OID_SIG_ED25519;
use x509_parser::prelude::FromDer;

use super::identity;
use crate::Error;

/// What goes into a node's certificate apart from its name and key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCertificateTerms {
    /// The kinds that the identity may run; all when absent (SPEC D11).
    pub allowed_kinds: Option<Vec<String>>,
    /// How far it is dated back, in seconds.
    pub backdated_seconds: u32,
    /// The time now.
    pub now: Timestamp,
    /// Random bits of the serial number.
    pub serial: [u8; 10],
    /// How long it is valid from now, in seconds.
    pub valid_seconds: u32,
}

/// A certificate that was issued to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCertificate {
    /// The certificate, as PEM.
    pub pem: String,
    /// What the ledger records of it.
    pub certified: NodeCertified,
}

/// A certificate request that is not fit for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("csr {problem}")]
pub struct InvalidRequest {
    problem: &'static str,
}

pub(super) fn issue(
    issuer: &Issuer<'static, KeyPair>,
    node: NodeId,
    csr_pem: &str,
    terms: &NodeCertificateTerms,
) -> Result<NodeCertificate, Error> {
    let (key, public_key) = read_request(csr_pem)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = super::name(&node.to_string());
    let uri = identity::uri(node).as_str().try_into()?;
    params.subject_alt_names = vec![SanType::URI(uri)];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    params.serial_number = Some(super::serial(terms.serial));
    if let Some(kinds) = &terms.allowed_kinds {
        params.custom_extensions = vec![identity::allowed_kinds(kinds)?];
    }
    super::date(
        &mut params,
        terms.now,
        terms.backdated_seconds,
        terms.valid_seconds,
    );
    let certificate = params.signed_by(&key, issuer)?;
    let stamp = |at: OffsetDateTime| {
        Timestamp::from_micros(at.unix_timestamp().saturating_mul(MICROS_PER_SECOND))
    };
    Ok(NodeCertificate {
        pem: certificate.pem(),
        certified: NodeCertified {
            allowed_kinds: terms.allowed_kinds.clone(),
            fingerprint: super::fingerprint(certificate.der()),
            not_after: stamp(params.not_after),
            not_before: stamp(params.not_before),
            public_key,
            renews: None,
        },
    })
}

/// The Ed25519 key that a request is for.
pub(crate) fn requested_key(csr_pem: &str) -> Result<Vec<u8>, InvalidRequest> {
    read_request(csr_pem).map(|(_, public_key)| public_key)
}

/// The key of a request that proves possession of it.
fn read_request(csr_pem: &str) -> Result<(SubjectPublicKeyInfo, Vec<u8>), InvalidRequest> {
    let invalid = |problem| InvalidRequest { problem };
    if csr_pem.matches("-----BEGIN").count() != 1 {
        return Err(invalid("must be one PEM block `CERTIFICATE REQUEST`"));
    }
    let der = CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes())
        .map_err(|_| invalid("must be one PEM block `CERTIFICATE REQUEST`"))?;
    let (rest, request) = X509CertificationRequest::from_der(&der)
        .map_err(|_| invalid("must be a PKCS #10 certificate request"))?;
    if !rest.is_empty() {
        return Err(invalid("has bytes after the certificate request"));
    }
    let key = &request.certification_request_info.subject_pki;
    let public_key = key.subject_public_key.data.to_vec();
    if key.algorithm.algorithm != OID_SIG_ED25519 || public_key.len() != 32 {
        return Err(invalid("must be for an Ed25519 key"));
    }
    request
        .verify_signature()
        .map_err(|_| invalid("must be signed by the key that it names"))?;
    let key = SubjectPublicKeyInfo::from_der(key.raw)
        .map_err(|_| invalid("must be for an Ed25519 key"))?;
    Ok((key, public_key))
}

#[cfg(test)]
mod tests {
    use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ED25519};

    use super::super::CertificateAuthority;
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_764_490_000_123_456);

    fn terms(allowed_kinds: Option<Vec<String>>) -> NodeCertificateTerms {
        NodeCertificateTerms {
            allowed_kinds,
            backdated_seconds: 300,
            now: NOW,
            serial: [0xff; 10],
            valid_seconds: 86_400,
        }
    }

    fn request(key: &KeyPair) -> String {
        let params = CertificateParams::new(vec!["evil.example".to_owned()]).unwrap();
        params.serialize_request(key).unwrap().pem().unwrap()
    }

    fn der(pem: &str) -> Vec<u8> {
        rustls::pki_types::CertificateDer::from_pem_slice(pem.as_bytes())
            .unwrap()
            .to_vec()
    }

    #[test]
    fn p7_a_node_certificate_names_its_node_and_nothing_that_was_asked_for() {
        let authority = CertificateAuthority::generate(NOW).unwrap();
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let node = NodeId::new(NOW, [3; 10]);
        let issued = authority
            .issue_node(node, &request(&key), &terms(None))
            .unwrap();
        let der = der(&issued.pem);
        let peer = identity::peer(&der).unwrap();
        assert_eq!((peer.node_id, peer.allowed_kinds), (node, None));
        assert_eq!(issued.certified.public_key, key.public_key_raw());
        assert_eq!(
            issued.certified.fingerprint,
            super::super::fingerprint(&der)
        );
        let valid = issued
            .certified
            .not_after
            .micros_since(issued.certified.not_before);
        assert_eq!(valid, (86_400 + 300) * MICROS_PER_SECOND);
        let text = String::from_utf8_lossy(&der);
        assert!(!text.contains("evil.example"));
    }

    #[test]
    fn d11_a_restricted_certificate_lists_its_kinds() {
        let authority = CertificateAuthority::generate(NOW).unwrap();
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let node = NodeId::new(NOW, [3; 10]);
        for kinds in [
            vec![],
            vec!["diag.nvml".to_owned(), "inventory.refresh".to_owned()],
        ] {
            let terms = terms(Some(kinds.clone()));
            let issued = authority.issue_node(node, &request(&key), &terms).unwrap();
            let peer = identity::peer(&der(&issued.pem)).unwrap();
            assert_eq!(peer.allowed_kinds, Some(kinds));
            assert!(!peer.accepts("node.reboot"));
        }
    }

    #[test]
    fn d11_a_certificate_that_names_no_node_is_refused() {
        let authority = CertificateAuthority::generate(NOW).unwrap();
        let server = authority
            .issue_server(&["localhost".to_owned()], NOW)
            .unwrap();
        assert!(identity::peer(&server.certificate).is_err());
        assert!(identity::peer(authority.certificate_der()).is_err());
        assert!(identity::peer(b"garbage").is_err());
    }

    #[test]
    fn p7_requests_that_are_not_fit_are_refused_with_the_problem() {
        let authority = CertificateAuthority::generate(NOW).unwrap();
        let node = NodeId::new(NOW, [3; 10]);
        let good = request(&KeyPair::generate_for(&PKCS_ED25519).unwrap());
        let p256 = request(&KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap());
        // The signature ends the request, and base 64 ends the PEM body.
        let flipped = {
            let at = good
                .rfind("\n-----END")
                .or(good.rfind("\r\n-----END"))
                .unwrap()
                - 12;
            let mut letters = good.clone().into_bytes();
            letters[at] = if letters[at] == b'A' { b'B' } else { b'A' };
            String::from_utf8(letters).unwrap()
        };
        for (csr, problem) in [
            ("", "PEM block"),
            (
                "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
                "PKCS #10",
            ),
            (format!("{good}{good}").as_str(), "one PEM block"),
            (p256.as_str(), "Ed25519"),
            (flipped.as_str(), "signed"),
            (authority.certificate_pem(), "PEM block"),
        ] {
            let error = authority.issue_node(node, csr, &terms(None)).unwrap_err();
            let Error::Request(invalid) = error else {
                panic!("{error:?}")
            };
            assert!(invalid.to_string().contains(problem), "{csr}: {invalid}");
        }
    }
}
