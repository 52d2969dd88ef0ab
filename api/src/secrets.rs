//! `secrets.*`: the values that commands name and never hold (SPEC P6). No method gives a value back.

use ledger_protocol::secret::check_name;

use crate::error::Error;

pub(crate) mod delete;
pub(crate) mod list;
pub(crate) mod put;
mod view;

/// Refuses a name that no secret can have, without repeating it: it may be a value in the wrong field.
fn checked(field: &'static str, name: String) -> Result<String, Error> {
    match check_name(&name) {
        Ok(()) => Ok(name),
        Err(invalid) => Err(Error::invalid(field, invalid.to_string())),
    }
}
