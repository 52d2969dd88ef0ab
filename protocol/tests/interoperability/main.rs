//! What somebody who writes a daemon in another language relies on: `docs/protocol.md` and
//! `protocol/vectors/`. The vectors are decisions and bytes; here each is put to the machines that
//! decide for real. No test run writes a vector.

#[cfg(test)]
mod admission;
#[cfg(test)]
mod attestation;
#[cfg(test)]
mod document;
#[cfg(test)]
mod recovery;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod rejoin;
#[cfg(test)]
mod secret;
#[cfg(test)]
mod session;
#[cfg(test)]
mod tlog;
#[cfg(test)]
mod trust;
#[cfg(test)]
mod vectors;
