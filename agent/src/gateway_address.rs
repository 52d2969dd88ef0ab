//! Where a gateway is.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::ServerName;
use tokio_tungstenite::tungstenite::http::Uri;

use crate::error::Error;

const DEFAULT_PORT: u16 = 443;

/// The address of a gateway, from `https://host:port` or `wss://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayAddress {
    host: String,
    port: u16,
}

impl GatewayAddress {
    /// What a TCP connection goes to.
    pub(crate) fn tcp(&self) -> (&str, u16) {
        (self.host.trim_matches(['[', ']']), self.port)
    }

    /// The name that its certificate must have.
    pub(crate) fn server_name(&self) -> Result<ServerName<'static>, Error> {
        let (host, _) = self.tcp();
        ServerName::try_from(host.to_owned()).map_err(|_| Error::GatewayAddress {
            given: self.to_string(),
        })
    }

    /// The address of a request.
    pub(crate) fn url(&self, scheme: &str, path: &str) -> String {
        format!("{scheme}://{self}{path}")
    }
}

impl FromStr for GatewayAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || Error::GatewayAddress {
            given: text.to_owned(),
        };
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let scheme_fits = matches!(uri.scheme_str(), Some("https" | "wss"));
        let path_fits = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let host = uri.host().unwrap_or_default();
        // Nothing but a port may stand beside the host: a password would end up in logs.
        let port = match authority.strip_prefix(host) {
            Some("") => Some(DEFAULT_PORT),
            Some(port) => port.strip_prefix(':').and_then(|port| port.parse().ok()),
            None => None,
        };
        let port = port.filter(|_| scheme_fits && path_fits && !host.is_empty());
        let address = Self {
            host: host.to_owned(),
            port: port.ok_or_else(invalid)?,
        };
        address.server_name().map(|_| address)
    }
}

impl fmt::Display for GatewayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d1_addresses_of_gateways_are_read() {
        for (text, tcp) in [
            ("https://gateway.example:8443", ("gateway.example", 8443)),
            ("wss://gateway.example/", ("gateway.example", 443)),
            ("https://127.0.0.1:9", ("127.0.0.1", 9)),
            ("wss://[::1]:9", ("::1", 9)),
        ] {
            let address: GatewayAddress = text.parse().unwrap();
            assert_eq!(address.tcp(), tcp);
        }
    }

    #[test]
    fn d1_text_that_is_no_gateway_is_refused_with_what_would_work() {
        for text in [
            "",
            "gateway:8443",
            "http://gateway:8443",
            "https://",
            "https://gateway:8443/v1/session",
            "https://gateway:8443?x=1",
            "https://gate way",
            "https://gateway:99999",
            "https://me:secret@gateway:8443",
        ] {
            let error = text.parse::<GatewayAddress>().unwrap_err();
            assert!(error.to_string().contains("https://host:port"), "{text}");
        }
    }
}
