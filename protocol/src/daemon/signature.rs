//! What a signature is asked to be, where there is trust (SPEC P1, P5). Without pins and without a
//! bundle there is nobody to believe, and nothing is asked.

use super::Daemon;
use super::trust::Distrust;
use crate::dsse::Purpose;
use crate::frame::Command;
use crate::time::Timestamp;
use crate::trust::{BadSignature, Signed, intent};

impl Daemon {
    /// Whether the service has signed a command that may be accepted until `until`, by the node's
    /// own writing of what is at hand.
    pub(super) fn verify_command(
        &self,
        command: &Command,
        server_now: Timestamp,
        until: Timestamp,
    ) -> Result<(), Distrust> {
        if self.has_no_trust() {
            return Ok(());
        }
        let payload = intent::of_command(command).ok();
        let signed = command.signed.as_deref();
        let times = (server_now, until);
        self.verify(signed, times, Purpose::Command, payload.as_deref())
    }

    fn has_no_trust(&self) -> bool {
        self.identity.pins.is_none() && self.bundle().is_none()
    }

    pub(super) fn verify(
        &self,
        signed: Option<&Signed>,
        times: (Timestamp, Timestamp),
        purpose: Purpose,
        payload: Option<&[u8]>,
    ) -> Result<(), Distrust> {
        if self.has_no_trust() {
            return Ok(());
        }
        let signed = signed.ok_or(BadSignature::Missing)?;
        let bundle = self.bundle().ok_or(Distrust::NoBundle)?;
        let payload = payload.ok_or(Distrust::NoPayload)?;
        Ok(signed.verify(&bundle.roots, times, purpose, payload)?)
    }
}
