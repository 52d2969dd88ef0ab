//! `secret`: the values that commands name and never hold, through the API (SPEC P6).

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ledger_protocol::id::NodeId;
use ledger_protocol::limits::SECRET_BYTES_MAX;
use ledger_protocol::secret::check_name;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::client::{Client, TenantOptions};
use crate::exit::{Failure, Meaning};
use crate::limits::PAGE_ITEMS;
use crate::output::Output;
use crate::secrets_key;

/// Put, list and delete the values that commands name as `secretRef`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Put a value under a name, in the place of the one before; commands that begin from now on get it.
    /// The value comes from standard input or a file, never from the command line; one line end at its
    /// end is taken away
    Put {
        /// Name, as commands have it: a-z, 0-9, '.', '_', '-' and '/'
        #[arg(value_parser = name)]
        name: String,
        /// File with the value [default: standard input]
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Kind whose commands get it, and no others; may be repeated [default: every kind]
        #[arg(long, value_name = "KIND")]
        kind: Vec<String>,
        /// Node that gets it, and no other; may be repeated [default: every node]
        #[arg(long, value_name = "NODE")]
        node: Vec<NodeId>,
        #[command(flatten)]
        common: TenantOptions,
    },
    /// Every secret of the tenant, without its value
    List {
        #[command(flatten)]
        common: TenantOptions,
    },
    /// Delete a secret; commands that begin from now on get it no more
    Delete {
        /// Its name
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        common: TenantOptions,
    },
    /// Make a master key for `serve --secrets-key`, in a file for its owner only, and print the key's id
    Keygen {
        /// File to make
        file: PathBuf,
    },
}

/// Does what the verb says.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    match options.verb {
        Verb::Put {
            name,
            file,
            kind,
            node,
            common,
        } => {
            let value = match file {
                Some(path) => {
                    let unreadable = format!("{} cannot be read", path.display());
                    value(File::open(&path).or_usage(unreadable)?, &path)?
                }
                None => value(io::stdin(), Path::new("standard input"))?,
            };
            let mut input = json!({
                "tenantId": common.tenant,
                "name": name,
                "value": value.as_str(),
            });
            if !kind.is_empty() {
                input["kinds"] = json!(kind);
            }
            if !node.is_empty() {
                input["nodeIds"] = json!(node);
            }
            let put = call("put", &input, &common).await?;
            let version = &put["version"];
            told(
                &put,
                &format!("{name} has version {version}"),
                &common,
                output,
            )
        }
        Verb::List { common } => {
            let client = Client::new(&common.api)?;
            let input = json!({"tenantId": common.tenant, "limit": PAGE_ITEMS});
            let secrets = client.every_item("secrets", "list", input).await?;
            if common.json {
                return output.json(&json!({ "items": secrets }));
            }
            let rows: Vec<_> = secrets.iter().map(row).collect();
            let headings = ["NAME", "VERSION", "KINDS", "NODES", "KEY", "PUT", "BY"];
            output.table(&headings, &rows)
        }
        Verb::Delete { name, common } => {
            let input = json!({"tenantId": common.tenant, "name": name});
            let deleted = call("delete", &input, &common).await?;
            told(&deleted, &format!("{name} is deleted"), &common, output)
        }
        Verb::Keygen { file } => output.line(&secrets_key::generate(&file)?),
    }
}

async fn call(method: &str, input: &Value, common: &TenantOptions) -> Result<Value, Failure> {
    let client = Client::new(&common.api)?;
    client.call("secrets", method, input).await
}

fn told(
    result: &Value,
    line: &str,
    common: &TenantOptions,
    output: &mut Output,
) -> Result<(), Failure> {
    if common.json {
        output.json(result)
    } else {
        output.line(line)
    }
}

/// Reads a name, and repeats nothing of what is none.
fn name(text: &str) -> Result<String, String> {
    check_name(text).map_err(|invalid| invalid.to_string())?;
    Ok(text.to_owned())
}

/// Reads a value to its end, without the line end that editors and `echo` put there. Nothing of it is
/// repeated.
fn value(from: impl Read, shown: &Path) -> Result<Zeroizing<String>, Failure> {
    let shown = shown.display();
    let most = SECRET_BYTES_MAX + "\r\n".len();
    // As large as it can become, so that no copy is left behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(most + 1));
    let mut from = from.take(most as u64 + 1);
    from.read_to_end(&mut bytes)
        .or_usage(format!("{shown} cannot be read"))?;
    let text = str::from_utf8(&bytes);
    let text = text.map_err(|_| Failure::usage(format!("{shown} is not UTF-8")))?;
    let line = text.strip_suffix('\n');
    let text = line.map_or(text, |line| line.strip_suffix('\r').unwrap_or(line));
    if text.is_empty() {
        return Err(Failure::usage(format!("{shown} is empty")));
    }
    if text.len() > SECRET_BYTES_MAX {
        return Err(Failure::usage(format!(
            "{shown} has more than {SECRET_BYTES_MAX} bytes, the most that a secret has"
        )));
    }
    if text.contains('\0') {
        return Err(Failure::usage(format!("{shown} has a NUL character")));
    }
    Ok(Zeroizing::new(text.to_owned()))
}

fn row(secret: &Value) -> Vec<String> {
    let text = |field: &str| secret[field].as_str().unwrap_or("-").to_owned();
    let list = |field: &str| match secret[field].as_array() {
        Some(items) => {
            let items: Vec<_> = items.iter().filter_map(Value::as_str).collect();
            items.join(",")
        }
        None => "all".to_owned(),
    };
    vec![
        text("name"),
        secret["version"].to_string(),
        list("kinds"),
        list("nodeIds"),
        text("keyId"),
        text("putAt"),
        text("putBy"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p6_a_value_is_read_whole_and_loses_one_line_end() {
        let read = |text: &str| {
            let value = value(text.as_bytes(), Path::new("it"));
            value.map(|value| value.to_string()).ok()
        };
        let longest = "x".repeat(SECRET_BYTES_MAX);
        for (given, taken) in [
            ("Bearer a", "Bearer a"),
            ("Bearer a\n", "Bearer a"),
            ("Bearer a\r\n", "Bearer a"),
            ("Bearer a\n\n", "Bearer a\n"),
            (" a ", " a "),
            ("\r", "\r"),
            ("ü", "ü"),
            (&longest, &longest),
            (&format!("{longest}\r\n"), &longest),
        ] {
            assert_eq!(read(given).as_deref(), Some(taken), "{given:?}");
        }
    }

    #[test]
    fn p6_what_is_no_value_is_refused_and_not_repeated() {
        let long = "hunter2".repeat(SECRET_BYTES_MAX / 7 + 1);
        for (bytes, told) in [
            (&b""[..], "is empty"),
            (b"\n", "is empty"),
            (b"\r\n", "is empty"),
            (b"hunter2\0", "NUL"),
            (b"hunter2\xff", "not UTF-8"),
            (long.as_bytes(), "more than 16384 bytes"),
            (format!("{long}{long}").as_bytes(), "more than 16384 bytes"),
        ] {
            let failure = value(bytes, Path::new("it")).unwrap_err().to_string();
            assert!(failure.contains(told), "{failure}");
            assert!(!failure.contains("hunter2"), "{failure}");
        }
        for text in ["", "Bearer hunter2", "A", "a/", &"a".repeat(201)] {
            let told = name(text).unwrap_err();
            assert!(told.contains("a-z") && !told.contains("hunter2"), "{told}");
        }
    }

    #[test]
    fn p6_a_list_says_for_whom_a_secret_is() {
        let whole =
            json!({"name": "bmc", "version": 3, "keyId": "ab", "putAt": "T", "putBy": "api:a"});
        assert_eq!(row(&whole), ["bmc", "3", "all", "all", "ab", "T", "api:a"]);
        let some = json!({"name": "b", "version": 1, "kinds": ["x", "y"], "nodeIds": ["n"]});
        assert_eq!(row(&some), ["b", "1", "x,y", "n", "-", "-", "-"]);
    }
}
