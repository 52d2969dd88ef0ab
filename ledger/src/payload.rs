//! Payloads against the JSON Schema of their kind (SPEC K1).

use std::collections::HashMap;

use jsonschema::Validator;
use ledger_protocol::canonical;
use ledger_protocol::kind::Registry;
use ledger_protocol::limits::PAYLOAD_BYTES_MAX;
use ledger_protocol::refusal::Refusal;
use serde_json::Value;

use crate::Error;

/// The compiled schemas of a registry.
#[derive(Debug)]
pub(crate) struct Schemas(HashMap<String, Validator>);

impl Schemas {
    pub(crate) fn compile(registry: &Registry) -> Result<Self, Error> {
        let compile = |kind: &ledger_protocol::kind::Kind| {
            let failed = |problem: String| Error::Schema {
                kind: kind.name.to_string(),
                problem,
            };
            let schema: Value = serde_json::from_str(&kind.payload_schema)
                .map_err(|error| failed(error.to_string()))?;
            let validator =
                jsonschema::validator_for(&schema).map_err(|error| failed(error.to_string()))?;
            Ok((kind.name.to_string(), validator))
        };
        registry
            .iter()
            .map(compile)
            .collect::<Result<_, Error>>()
            .map(Self)
    }

    /// The payload's canonical bytes, or the first thing that is wrong with it.
    pub(crate) fn encode(&self, kind: &str, payload: &Value) -> Result<Vec<u8>, Error> {
        let invalid = |problem: String| Refusal::Invalid {
            field: "payload",
            problem,
        };
        let bytes = canonical::from_json(payload).map_err(|error| invalid(error.to_string()))?;
        if bytes.len() > PAYLOAD_BYTES_MAX {
            return Err(Refusal::payload_too_large(bytes.len()).into());
        }
        if let Some(validator) = self.0.get(kind)
            && let Err(error) = validator.validate(payload)
        {
            let place = error.instance_path().to_string();
            let place = if place.is_empty() {
                String::new()
            } else {
                format!("at {place}: ")
            };
            // The message quotes the value, which may be as long as a payload may be.
            let message: String = error.to_string().chars().take(300).collect();
            let problem = format!("does not match the schema of {kind}: {place}{message}");
            return Err(invalid(problem).into());
        }
        Ok(bytes)
    }
}
