//! The node's certificate is renewed at half of its life, beside the session (SPEC P7).
//!
//! Time is the server's, so that a node whose clock is wrong renews in time; before a server has told
//! it, nothing is due. What the gateway gives is on the disk before it is shown.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ledger_protocol::time::{MICROS_PER_SECOND, Timestamp};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::time::sleep;
use tokio::{select, task};
use tracing::{error, info, warn};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use crate::clock::{Clock, random};
use crate::connect::Connector;
use crate::credentials::Credentials;
use crate::error::Error;
use crate::gateway_address::GatewayAddress;
use crate::limits::{RENEWAL_RETRY_SECONDS_MAX, RENEWAL_RETRY_SECONDS_MIN, SLEEP_SECONDS_MAX};
use crate::state_dir::StateDir;

/// What people are told of a node that was away for too long.
pub(crate) const EXPIRED: &str = "this node's certificate has expired and cannot be renewed any more: \
     start it with a new join token and an empty state directory";

/// What renews a node's certificate.
pub(crate) struct Renewal {
    pub(crate) clock: Clock,
    /// Shows the certificate to the gateway.
    pub(crate) connector: Connector,
    pub(crate) credentials: Credentials,
    pub(crate) dir: Arc<StateDir>,
    pub(crate) gateway: GatewayAddress,
}

/// When a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Validity {
    not_before: Timestamp,
    not_after: Timestamp,
}

impl Validity {
    fn of(certificate: &str) -> Result<Self, Error> {
        let der = CertificateDer::from_pem_slice(certificate.as_bytes());
        let der = der.map_err(|_| Error::Validity)?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|_| Error::Validity)?;
        let validity = parsed.validity();
        let stamp =
            |seconds: i64| Timestamp::from_micros(seconds.saturating_mul(MICROS_PER_SECOND));
        Ok(Self {
            not_before: stamp(validity.not_before.timestamp()),
            not_after: stamp(validity.not_after.timestamp()),
        })
    }

    /// When it is to be renewed: at half of its life, and up to a tenth of it later, so that what
    /// joined together does not renew together.
    fn due(self, random: u32) -> Timestamp {
        let life = self.not_after.micros_since(self.not_before).max(0);
        let jitter = i128::from(life / 10) * i128::from(random) / i128::from(u32::MAX);
        let wait = (life / 2).saturating_add(i64::try_from(jitter).unwrap_or(0));
        self.not_before.plus_micros(wait)
    }

    /// What is left of it.
    fn left(self, now: Timestamp) -> Duration {
        let left = u64::try_from(self.not_after.micros_since(now)).unwrap_or(0);
        Duration::from_micros(left)
    }
}

/// How long to wait after so many failures in a row: longer each time, jittered, and never so long
/// that the certificate would end without many more attempts.
fn retry_delay(failures: u32, left: Duration, random: u32) -> Duration {
    let min = Duration::from_secs(RENEWAL_RETRY_SECONDS_MIN);
    let max = Duration::from_secs(RENEWAL_RETRY_SECONDS_MAX);
    let max = max.min(left / 10).max(min);
    let grown = min.saturating_mul(2_u32.saturating_pow(failures)).min(max);
    grown.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

impl Renewal {
    /// Renews whenever it is due, as long as the agent lives.
    pub(crate) async fn run(mut self) -> Result<Infallible, Error> {
        let node = self.credentials.node_id;
        let mut validity = Validity::of(&self.credentials.certificate)?;
        let mut due = validity.due(random());
        let mut failures = 0_u32;
        let mut was_told = false;
        loop {
            let longest = Duration::from_secs(SLEEP_SECONDS_MAX);
            let wait = match self.clock.server() {
                None => longest,
                Some(now) if validity.left(now).is_zero() => {
                    if !was_told {
                        error!(%node, "{EXPIRED}");
                    }
                    was_told = true;
                    longest
                }
                Some(now) if now < due => {
                    let wait = u64::try_from(due.micros_since(now)).unwrap_or(0);
                    Duration::from_micros(wait).min(longest)
                }
                Some(_) => Duration::ZERO,
            };
            if !wait.is_zero() {
                select! {
                    () = sleep(wait) => {}
                    () = self.clock.jump() => {}
                }
                continue;
            }
            let renewed = self.renew().await;
            let now = self.clock.best();
            match renewed {
                Ok(new) => {
                    (validity, failures, was_told) = (new, 0, false);
                    // One that lasts only minutes is dated back by more than half of its life.
                    let half = i64::try_from(new.left(now).as_micros() / 2).unwrap_or(i64::MAX);
                    due = new.due(random()).max(now.plus_micros(half));
                    info!(%node, not_after = %new.not_after, next = %due, "certificate renewed");
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let wait = retry_delay(failures, validity.left(now), random());
                    let wait_ms = wait.as_millis();
                    let not_after = validity.not_after;
                    let error = &error as &dyn std::error::Error;
                    warn!(%node, error, %not_after, wait_ms, "the certificate could not be renewed");
                    due = now.plus_micros(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX));
                }
            }
        }
    }

    /// Gets a certificate, keeps it, and only then shows it.
    async fn renew(&mut self) -> Result<Validity, Error> {
        let renewed = self.credentials.renew(&self.gateway, &self.clock).await?;
        let validity = Validity::of(&renewed.certificate)?;
        let (kept, dir) = (renewed.clone(), self.dir.clone());
        let write = task::spawn_blocking(move || kept.keep_certificate(&dir)).await;
        write.unwrap_or(Err(Error::BrokeOff {
            work: "keeping the renewed certificate",
        }))?;
        self.connector.show(&renewed, &self.clock)?;
        self.credentials = renewed;
        Ok(validity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3_600 * MICROS_PER_SECOND;

    #[test]
    fn p7_a_certificate_is_due_at_half_of_its_life_and_not_at_once_with_others() {
        let validity = Validity {
            not_before: Timestamp::from_micros(0),
            not_after: Timestamp::from_micros(30 * DAY),
        };
        assert_eq!(validity.due(0), Timestamp::from_micros(15 * DAY));
        assert_eq!(validity.due(u32::MAX), Timestamp::from_micros(18 * DAY));
        let left = |at| validity.left(Timestamp::from_micros(at));
        assert_eq!(left(29 * DAY), Duration::from_hours(24));
        assert_eq!(left(31 * DAY), Duration::ZERO);
    }

    #[test]
    fn p7_failed_renewals_are_tried_again_within_bounds() {
        let weeks = Duration::from_hours(14 * 24);
        let waits: Vec<_> = (1..40).map(|n| retry_delay(n, weeks, u32::MAX)).collect();
        assert!(waits.is_sorted());
        assert_eq!(waits[0], Duration::from_secs(2));
        assert_eq!(waits[38], Duration::from_hours(1));
        assert_eq!(retry_delay(39, weeks, 0), Duration::from_mins(30));
        let soon = retry_delay(39, Duration::from_mins(10), u32::MAX);
        assert_eq!(soon, Duration::from_mins(1));
        assert!(retry_delay(39, Duration::ZERO, 0) >= Duration::from_millis(500));
    }
}
