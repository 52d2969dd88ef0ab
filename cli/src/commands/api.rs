//! `api`: one call of the HTTP API.

use std::io::Read;
use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use crate::client::{ApiOptions, Client};
use crate::exit::{Code, Failure, Meaning};
use crate::limits::API_INPUT_BYTES_MAX;
use crate::output::Output;
use crate::values;

/// Call a method of the API and print its result as JSON.
///
/// A value is JSON when it parses as JSON, and a string when it does not; '"5"' is the string 5.
#[derive(Debug, Args)]
#[command(after_help = methods())]
pub(crate) struct Options {
    /// The method, such as commands.run
    #[arg(value_name = "SERVICE.METHOD")]
    method: String,
    #[arg(
        value_name = "KEY=VALUE",
        conflicts_with = "json",
        help = r#"Input fields, such as nodeId=node_… or payload='{"sections":["cpu"]}'"#
    )]
    fields: Vec<String>,
    /// Read the whole input, a JSON object, from this file instead of fields; `-` is stdin. The
    /// result is JSON either way
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    api: ApiOptions,
}

/// Calls the method.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    let (service, method) = split(&options.method)?;
    let input = match &options.json {
        Some(path) => read(path)?,
        None => Value::from(values::object(&options.fields)?),
    };
    let client = Client::new(&options.api)?;
    let result = client.call(service, method, &input).await?;
    output.json(&result)
}

/// What this program can call; a service of another version may have more or fewer.
fn methods() -> String {
    format!("Methods: {}", ledger_api::method_names().join(", "))
}

fn split(name: &str) -> Result<(&str, &str), Failure> {
    let word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric());
    // Such as `help`: the service would not find it either, and names the others.
    if word(name) {
        let known = ledger_api::method_names().join(", ");
        let told = format!("NOT_FOUND: method {name} not found; there are {known}");
        return Err(Failure::new(Code::NotFound, anyhow::anyhow!("{told}")));
    }
    name.split_once('.')
        .filter(|(service, method)| word(service) && word(method))
        .ok_or_else(|| {
            Failure::usage(format!(
                "`{name}` is no method; write service.method, such as commands.run"
            ))
        })
}

fn read(path: &std::path::Path) -> Result<Value, Failure> {
    let shown = path.display();
    let reader: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).or_usage(format!("could not open {shown}"))?)
    };
    let mut text = Vec::new();
    reader
        .take(API_INPUT_BYTES_MAX + 1)
        .read_to_end(&mut text)
        .or_usage(format!("could not read {shown}"))?;
    if text.len() as u64 > API_INPUT_BYTES_MAX {
        return Err(Failure::usage(format!(
            "{shown} has more than {API_INPUT_BYTES_MAX} bytes, the most that the API takes"
        )));
    }
    serde_json::from_slice(&text).or_usage(format!("{shown} is no JSON"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::json;

    use super::*;

    #[test]
    fn h2_a_method_is_a_service_and_a_verb() {
        assert_eq!(split("commands.run").unwrap(), ("commands", "run"));
        let help = split("help").unwrap_err();
        assert_eq!(help.code, Code::NotFound);
        assert!(help.to_string().contains("commands.run"), "{help}");
        for name in ["", ".run", "commands.", "a.b.c", "a/b.c", "../a.b"] {
            assert_eq!(split(name).unwrap_err().code, Code::Usage, "{name}");
        }
    }

    #[test]
    fn h2_input_is_read_from_a_file_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("input.json");
        std::fs::write(&path, r#"{"nodeId":"node_1"}"#).unwrap();
        assert_eq!(read(&path).unwrap(), json!({"nodeId": "node_1"}));

        let mut file = std::fs::File::create(&path).unwrap();
        let bytes = usize::try_from(API_INPUT_BYTES_MAX).unwrap() + 1;
        file.write_all(&vec![b' '; bytes]).unwrap();
        assert_eq!(read(&path).unwrap_err().code, Code::Usage);
        let missing = folder.path().join("none");
        assert_eq!(read(&missing).unwrap_err().code, Code::Usage);
    }
}
