//! The gateway's own certificate.

use ledger_protocol::time::Timestamp;
use rcgen::{
    CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::Error;
use crate::limits;

/// A server certificate with its key, for one start of a gateway.
#[derive(Debug)]
pub struct ServerCertificate {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
}

pub(super) fn issue(
    issuer: &Issuer<'static, KeyPair>,
    names: &[String],
    now: Timestamp,
) -> Result<ServerCertificate, Error> {
    let key = KeyPair::generate_for(&PKCS_ED25519)?;
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = super::name("Command Ledger gateway");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    super::date(
        &mut params,
        now,
        limits::BACKDATED_SECONDS,
        limits::SERVER_CERTIFICATE_SECONDS,
    );
    let certificate = params.signed_by(&key, issuer)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    Ok(ServerCertificate {
        certificate: certificate.der().clone(),
        key,
    })
}
