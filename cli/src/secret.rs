//! Text that must not reach a log or an error: tokens, and URLs that may hold passwords.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// A token or a URL with credentials. It shows itself only where that is asked for by name.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// Takes the text in.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for whoever it authenticates to.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p6_a_secret_does_not_show_itself() {
        let secret = Secret::new("postgres://user:hunter2@db/ledger");
        assert_eq!(format!("{secret:?}"), "Secret");
        assert!(secret.reveal().contains("hunter2"));
    }
}
