//! Secrets of tokens, drawn from the operating system.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRng;
use rand::rngs::SysRng;

use crate::error::Error;

/// Random bytes that nobody can foresee.
pub(crate) fn random<const BYTES: usize>() -> Result<[u8; BYTES], Error> {
    let mut bytes = [0; BYTES];
    SysRng.try_fill_bytes(&mut bytes).map_err(Error::internal)?;
    Ok(bytes)
}

/// A new secret: 32 random bytes as base64url.
pub(crate) fn new() -> Result<String, Error> {
    Ok(URL_SAFE_NO_PAD.encode(random::<32>()?))
}

#[cfg(test)]
mod tests {
    use ledger_projections::join_tokens::SECRET_LETTERS;

    #[test]
    fn a13_a_secret_has_256_bits_and_no_twin() {
        let (one, other) = (super::new().unwrap(), super::new().unwrap());
        assert_eq!(one.len(), SECRET_LETTERS);
        assert_ne!(one, other);
    }
}
