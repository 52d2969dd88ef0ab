//! Where a gateway is, by which names, and whose certificates it shows.

use std::path::Path;

use ledger_agent::GatewayAddress;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};

use crate::exit::{Failure, Meaning};

const BEGIN: &str = "-----BEGIN ";
const DASHES: &str = "-----";
const CERTIFICATE: &str = "CERTIFICATE";

/// Reads the URL of a gateway, as a daemon will.
pub(crate) fn url(text: &str) -> Result<String, String> {
    let address = text.parse::<GatewayAddress>();
    address.map_err(|_| {
        "must be https://host:port or wss://host:port, without a path or a password".to_owned()
    })?;
    Ok(text.to_owned())
}

/// Reads a name for a gateway's certificate.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let name = ServerName::try_from(text);
    name.map_err(|_| {
        "must be a DNS name or an IP address, such as gateway.example, without scheme or port"
            .to_owned()
    })?;
    Ok(text.to_owned())
}

/// Reads a file of an authority's certificates. It is shown to whoever may make a join token, so a
/// private key that lies in it by mistake must not get that far.
pub(crate) fn certificates(option: &str, path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let text =
        std::fs::read_to_string(path).or_usage(format!("{option} {shown} cannot be read"))?;
    match flaw(&text) {
        None => Ok(text),
        Some(flaw) => Err(Failure::usage(format!(
            "{option} {shown} {flaw}; it must hold certificates in PEM and nothing else, as the \
             gateway's node-ca.pem does"
        ))),
    }
}

/// What is in a text that is no certificate.
fn flaw(text: &str) -> Option<String> {
    let mut inside = false;
    let mut count = 0;
    for (index, line) in text.lines().enumerate() {
        let (number, line) = (index + 1, line.trim());
        if let Some(rest) = line.strip_prefix(BEGIN) {
            let label = rest.trim_end_matches('-');
            if label != CERTIFICATE {
                let known = ["PRIVATE KEY", "PUBLIC KEY", "CERTIFICATE REQUEST"];
                // Anything may stand there, so only what is known is repeated.
                let known = known.iter().find(|known| label.ends_with(*known));
                let what = known.map_or("PEM that is no certificate".to_owned(), |known| {
                    format!("a {}", known.to_lowercase())
                });
                return Some(format!("holds {what} (line {number})"));
            }
            inside = true;
            count += 1;
        } else if line.starts_with(DASHES) {
            inside = false;
        } else if !inside && !line.is_empty() {
            return Some(format!("holds text that is no certificate (line {number})"));
        }
    }
    if count == 0 {
        return Some("holds no certificate".to_owned());
    }
    let mut roots = RootCertStore::empty();
    let mut added = 0;
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        let usable = certificate.is_ok_and(|certificate| roots.add(certificate).is_ok());
        if usable {
            added += 1;
        } else {
            break;
        }
    }
    (added != count).then(|| "holds a certificate that is damaged".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;

    fn pem(label: &str, body: &str) -> String {
        format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
    }

    #[test]
    fn p7_what_is_no_certificate_is_no_authority() {
        for (text, told) in [
            (String::new(), "holds no certificate"),
            ("hunter2\n".to_owned(), "line 1"),
            (pem("PRIVATE KEY", "aHVudGVyMg=="), "a private key (line 1)"),
            (pem("EC PRIVATE KEY", "aHVudGVyMg=="), "a private key"),
            (pem("hunter2", "aHVudGVyMg=="), "no certificate (line 1)"),
            (pem("CERTIFICATE", "aHVudGVyMg=="), "damaged"),
            ("-----BEGIN CERTIFICATE-----\n".to_owned(), "damaged"),
        ] {
            let flaw = flaw(&text).unwrap();
            assert!(flaw.contains(told), "{text}: {flaw}");
            assert!(!flaw.contains("hunter2"), "{flaw}");
        }
    }

    #[test]
    fn p7_a_file_is_named_with_what_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let missing = certificates("--gateway-ca", &path).unwrap_err();
        assert_eq!(missing.code, Code::Usage);
        std::fs::write(&path, pem("PRIVATE KEY", "aHVudGVyMg==")).unwrap();
        let failure = certificates("--gateway-ca", &path).unwrap_err();
        assert_eq!(failure.code, Code::Usage);
        let told = failure.to_string();
        for part in ["--gateway-ca", "ca.pem holds a private key"] {
            assert!(told.contains(part), "{told}");
        }
    }

    #[test]
    fn h2_urls_and_names_of_gateways_are_read_at_the_start() {
        for text in ["https://gateway.example:7443", "wss://[::1]:7443"] {
            assert_eq!(url(text).as_deref(), Ok(text));
        }
        for text in ["", "gateway:7443", "http://gateway:7443", "https://"] {
            assert!(url(text).is_err(), "{text}");
        }
        for text in ["gateway.example", "localhost", "127.0.0.1", "::1"] {
            assert_eq!(name(text).as_deref(), Ok(text));
        }
        for text in [
            "",
            "https://gateway",
            "gateway:7443",
            "two words",
            "*.example",
        ] {
            assert!(name(text).is_err(), "{text}");
        }
    }
}
