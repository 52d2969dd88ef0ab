//! What a node's certificate says: which node it is, and which kinds it may run (SPEC D11).

use ledger_protocol::id::NodeId;
use ledger_protocol::node::Presented;
use ledger_protocol::session::Peer;
use ledger_protocol::time::{MICROS_PER_SECOND, Timestamp};
use rcgen::CustomExtension;
use x509_parser::asn1_rs::{FromDer, Oid, Sequence, ToDer, Utf8String, oid};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use crate::Error;

/// What stands before the node's id in the certificate's URI.
const SPIFFE: &str = "spiffe://command-ledger/node/";

/// Object identifier of the extension that lists the allowed kinds, below IANA's enterprise
/// number for documentation (RFC 5612): it is read by nobody but us.
pub const ALLOWED_KINDS_OID: &[u64] = &[1, 3, 6, 1, 4, 1, 32473, 1, 1];

const ALLOWED_KINDS: Oid<'static> = oid!(1.3.6.1.4.1.32473.1.1);

/// A client certificate of our authority that names no node.
#[derive(Debug, thiserror::Error)]
#[error("the certificate {problem}")]
pub(crate) struct Unreadable {
    problem: &'static str,
}

pub(super) fn uri(node: NodeId) -> String {
    format!("{SPIFFE}{node}")
}

/// A SEQUENCE OF UTF8String with the kinds. Not critical, since TLS stacks refuse a critical
/// extension that they do not know.
pub(super) fn allowed_kinds(kinds: &[String]) -> Result<CustomExtension, Error> {
    let kinds: Vec<_> = kinds
        .iter()
        .map(|kind| Utf8String::from(kind.as_str()))
        .collect();
    let content = kinds.to_der_vec().map_err(|_| Error::AllowedKinds)?;
    Ok(CustomExtension::from_oid_content(
        ALLOWED_KINDS_OID,
        content,
    ))
}

/// Reads a certificate that TLS has verified already.
pub(crate) fn peer(der: &[u8]) -> Result<Peer, Unreadable> {
    let problem = |problem| Unreadable { problem };
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| problem("cannot be read"))?;
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| problem("has unreadable names"))?
        .ok_or(problem("names no node"))?;
    let [GeneralName::URI(uri)] = names.value.general_names.as_slice() else {
        return Err(problem("must have exactly one name, the node's URI"));
    };
    let node_id = uri
        .strip_prefix(SPIFFE)
        .and_then(|id| id.parse().ok())
        .ok_or(problem("names no node of Command Ledger"))?;
    let extension = certificate
        .get_extension_unique(&ALLOWED_KINDS)
        .map_err(|_| problem("lists its allowed kinds twice"))?;
    let allowed_kinds = match extension {
        None => None,
        Some(extension) => {
            let kinds = read_kinds(extension.value);
            Some(kinds.ok_or(problem("has an unreadable list of allowed kinds"))?)
        }
    };
    let validity = certificate.validity();
    let stamp = |seconds: i64| Timestamp::from_micros(seconds.saturating_mul(MICROS_PER_SECOND));
    Ok(Peer {
        allowed_kinds,
        certificate: Some(Presented {
            fingerprint: super::fingerprint(der),
            not_after: stamp(validity.not_after.timestamp()),
            not_before: stamp(validity.not_before.timestamp()),
            public_key: certificate.public_key().subject_public_key.data.to_vec(),
        }),
        node_id,
    })
}

fn read_kinds(content: &[u8]) -> Option<Vec<String>> {
    let (rest, sequence) = Sequence::from_der(content).ok()?;
    let kinds = sequence.der_sequence_of::<Utf8String<'_>, _>().ok()?;
    rest.is_empty()
        .then(|| kinds.into_iter().map(|kind| kind.string()).collect())
}
