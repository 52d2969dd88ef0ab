//! `commandBatches.approve`: bring an approver's signature (SPEC P3).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledger_protocol::dsse::{PUBLIC_KEY_BYTES, PublicKey, SIGNATURE_BYTES};
use ledger_protocol::id::BatchId;

use super::view::BatchView;
use crate::Api;
use crate::auth::{Caller, Permission, Resource};
use crate::error::Error;
use crate::input::Input;
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let batch: BatchId = input.id("batchId")?;
    let key = base64(&mut input, "publicKey", PUBLIC_KEY_BYTES)?;
    let signature = base64(&mut input, "signature", SIGNATURE_BYTES)?;
    input.finish()?;
    let key = PublicKey::from_bytes(&key);
    let key = key.map_err(|invalid| Error::invalid("publicKey", invalid.to_string()))?;
    caller.check_tenant(tenant)?;
    caller.require(Permission::BatchesApprove, Resource::Everything)?;
    let ledger = api.ledger();
    let batch = ledger
        .approve_batch(&caller.actor, tenant, batch, key, signature)
        .await?;
    if !batch.holds() {
        ledger
            .release_approved(&caller.actor, Some(batch.id))
            .await?;
    }
    render(&BatchView::of(&batch, ledger.now()))
}

fn base64(input: &mut Input, field: &'static str, bytes: usize) -> Result<Vec<u8>, Error> {
    let chars = bytes.div_ceil(3) * 4;
    let text = input.printable(field, chars..=chars)?;
    let decoded = STANDARD.decode(text).ok();
    let decoded = decoded.filter(|decoded| decoded.len() == bytes);
    let problem = || Error::invalid(field, format!("must be {bytes} bytes in base64"));
    decoded.ok_or_else(problem)
}
