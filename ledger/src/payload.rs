//! Payloads against the JSON Schema of their kind (SPEC K1).

use std::collections::HashMap;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{ValidationError, Validator};
use ledger_protocol::canonical;
use ledger_protocol::kind::Registry;
use ledger_protocol::limits::PAYLOAD_BYTES_MAX;
use ledger_protocol::refusal::Refusal;
use serde_json::Value;

use crate::Error;

/// How much of what is wrong is told, in characters; it quotes the payload, which may be as long as
/// a payload may be.
const PROBLEM_CHARS_MAX: usize = 300;

/// The compiled schemas of a registry.
#[derive(Debug)]
pub(crate) struct Schemas(HashMap<String, Schema>);

#[derive(Debug)]
struct Schema {
    text: Value,
    validator: Validator,
}

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
            let text = schema;
            Ok((kind.name.to_string(), Schema { text, validator }))
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
        if let Some(schema) = self.0.get(kind)
            && let Err(error) = schema.validator.validate(payload)
        {
            let place = error.instance_path().to_string();
            let place = if place.is_empty() {
                String::new()
            } else {
                format!("at {place}: ")
            };
            let message = schema.problem(&error);
            let message: String = message.chars().take(PROBLEM_CHARS_MAX).collect();
            let problem = format!("does not match the schema of {kind}: {place}{message}");
            return Err(invalid(problem).into());
        }
        Ok(bytes)
    }
}

impl Schema {
    /// What is wrong, with what would be right.
    fn problem(&self, error: &ValidationError<'_>) -> String {
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                let place = error.schema_path().as_str();
                let object = place.rsplit_once('/').map_or("", |(object, _)| object);
                let known = self
                    .text
                    .pointer(object)
                    .and_then(|it| it.get("properties"));
                let known = known.and_then(Value::as_object);
                let known = known.into_iter().flatten().map(|(name, _)| name.as_str());
                let mut known: Vec<_> = known.collect();
                known.sort_unstable();
                let unexpected = list(unexpected.iter().cloned().map(Value::String));
                if known.is_empty() {
                    format!("no properties are allowed; {unexpected} is given")
                } else {
                    let known = known.join(", ");
                    format!("only these properties are allowed: {known}; {unexpected} is given")
                }
            }
            ValidationErrorKind::Enum { options } => {
                let options = options.as_array().into_iter().flatten().cloned();
                let (options, given) = (list(options), error.instance());
                format!("must be one of {options}; {given} is given")
            }
            _ => error.to_string(),
        }
    }
}

fn list(values: impl Iterator<Item = Value>) -> String {
    let values: Vec<_> = values.map(|value| value.to_string()).collect();
    values.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn k1_a_payload_that_does_not_fit_is_told_what_would() {
        let schemas = Schemas::compile(&Registry::builtin()).unwrap();
        let told = |kind: &str, payload: &Value| {
            let refused = schemas.encode(kind, payload).unwrap_err().to_string();
            let (_, told) = refused.split_once(": ").unwrap();
            told.to_owned()
        };
        let long = "x".repeat(1_000);
        for (kind, payload, expected) in [
            (
                "inventory.refresh",
                json!({"section": ["cpu"]}),
                "only these properties are allowed: rescan, sections; \"section\" is given",
            ),
            (
                "inventory.refresh",
                json!({"sections": ["cpuu"]}),
                "at /sections/0: must be one of \"system\", \"cpu\", \"memory\", \"disks\", \"nics\", \
                 \"gpus\", \"bmc\", \"os\"; \"cpuu\" is given",
            ),
            (
                "diag.nvml",
                json!({"level": 1}),
                "no properties are allowed; \"level\" is given",
            ),
            (
                "deploy.image",
                json!({
                    "device": "/dev/a",
                    "image": {"sha256": "0".repeat(64), "uri": 1, "url": "https://host/image"},
                }),
                "at /image: only these properties are allowed: sha256, url; \"uri\" is given",
            ),
        ] {
            let told = told(kind, &payload);
            assert!(told.ends_with(expected), "{told}");
        }
        let told = told("diag.nvml", &json!({ long: 1 }));
        assert!(told.len() < 2 * PROBLEM_CHARS_MAX, "{told}");
    }
}
