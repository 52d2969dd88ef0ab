//! `docs/protocol.md` says what the code does: its fields, numbers, codes and names are compared.

use std::collections::{BTreeMap, BTreeSet};

use ledger_protocol::canonical;
use ledger_protocol::daemon::fit_result;
use ledger_protocol::frame::{JOIN_PATH, JoinResponse, RENEW_PATH, SESSION_PATH, SUBPROTOCOL};
use ledger_protocol::kind::{Lane, Registry};
use ledger_protocol::limits::lane_credits;
use serde_json::Value;

use crate::vectors::{list, read, text};

const DOCUMENT: &str = "docs/protocol.md";

/// Limits of `protocol/src/limits.rs` that a daemon never meets.
const OF_THE_LEDGER: &[&str] = &[
    "EVENT_BYTES_MAX",
    "IDEMPOTENCY_KEY_CHARS_MAX",
    "LEDGER_KEY_BYTES_MAX",
    "LABELS_MAX",
    "NOT_AFTER_SECONDS_MIN",
    "NOT_AFTER_SECONDS_MAX",
    "NOT_AFTER_SECONDS_DEFAULT",
    "MODULE_NOT_AFTER_SECONDS_MAX",
    "UNREGISTERED_TIMEOUT_SECONDS",
    "PENDING_PER_LANE_MAX",
    "SWEEP_SECONDS",
    "SCOPE_LEAVES_MAX",
    "BATCH_REASON_CHARS_MAX",
    "BATCH_EXPIRES_SECONDS_MIN",
    "BATCH_EXPIRES_SECONDS_MAX",
    "BATCH_EXPIRES_SECONDS_DEFAULT",
];

/// The text from this heading to the next of its level or above.
pub(crate) fn section<'a>(document: &'a str, heading: &str) -> &'a str {
    let level = heading.split(' ').next().unwrap().len();
    let from = document.find(&format!("\n{heading}"));
    let from = from.unwrap_or_else(|| panic!("{DOCUMENT} has no `{heading}`")) + 1;
    let body = &document[from..];
    let ends = |line: &str| {
        let marks = line.bytes().take_while(|byte| *byte == b'#').count();
        (1..=level).contains(&marks)
    };
    let mut length = 0;
    for (number, line) in body.split_inclusive('\n').enumerate() {
        if number > 0 && ends(line) {
            break;
        }
        length += line.len();
    }
    &body[..length]
}

/// The rows of the tables in a text, without their heads.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let mut rows: Vec<Vec<&str>> = Vec::new();
    for line in text.lines() {
        let Some(inside) = line
            .strip_prefix('|')
            .and_then(|line| line.strip_suffix('|'))
        else {
            continue;
        };
        if inside.starts_with("---") {
            rows.pop();
        } else {
            rows.push(inside.split('|').map(str::trim).collect());
        }
    }
    rows
}

fn plain(cell: &str) -> &str {
    cell.trim_matches('`')
}

/// Fields whose content the tables of frames do not show.
const OF_THEIR_OWN: &[&str] = &[
    "payload", "result", "details", "spec", "batch", "bundles", "signed", "trust",
];

/// Every field of a body, with how often it and what it stands in are there.
fn fields(body: &Value, within: &str, found: &mut BTreeMap<String, usize>) {
    for (name, value) in body.as_object().into_iter().flatten() {
        let path = format!("{within}{name}");
        *found.entry(path.clone()).or_default() += 1;
        match value {
            // What has a content of its own.
            _ if OF_THEIR_OWN.contains(&name.as_str()) => {}
            Value::Array(items) => {
                let inside = format!("{path}[]");
                *found.entry(inside.clone()).or_default() += items.len();
                for item in items {
                    fields(item, &format!("{inside}."), found);
                }
            }
            other => fields(other, &format!("{path}."), found),
        }
    }
}

#[test]
fn d1_the_document_has_every_field_of_every_frame() {
    let document = text(DOCUMENT);
    let mut found: BTreeMap<(String, String), BTreeMap<String, usize>> = BTreeMap::new();
    for vector in list(&read("frames")) {
        let code = &vector["bytes"].as_str().unwrap()[2..4];
        let name = vector["frame"].as_str().unwrap().to_owned();
        let found = found.entry((name, code.to_owned())).or_default();
        *found.entry(String::new()).or_default() += 1;
        fields(&vector["body"], "", found);
    }
    assert_eq!(found.len(), 12);
    for ((name, code), mut found) in found {
        let code = u8::from_str_radix(&code, 16).unwrap();
        let heading = format!("### {code} `{name}`");
        let bodies = found[""];
        let counts = found.clone();
        found.retain(|path, _| !path.is_empty() && !path.ends_with("[]"));
        let expected: BTreeSet<(String, &str)> = found
            .into_iter()
            .map(|(path, count)| {
                let of = match path.rsplit_once('.') {
                    Some((parent, _)) => counts[parent],
                    None => bodies,
                };
                (path, if count == of { "always" } else { "optional" })
            })
            .collect();
        let rows = rows(section(&document, &heading));
        let documented: BTreeSet<(String, &str)> = rows
            .iter()
            .map(|row| (plain(row[0]).to_owned(), row[2]))
            .collect();
        assert_eq!(documented, expected, "{heading}");
    }
    let joined: JoinResponse = serde_json::from_value(read("join")["response"].clone()).unwrap();
    let joined = serde_json::to_value(joined).unwrap();
    let join = section(&document, "## Joining");
    for field in joined
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .chain(["csr", "token"])
    {
        assert!(join.contains(&format!("| `{field}` |")), "{field}");
    }
}

/// The value of `const NAME: T = …;` or of `name: …,` in a source file.
fn constant(path: &str, name: &str) -> u64 {
    let source = text(path);
    let expression = source.lines().map(str::trim).find_map(|line| {
        let rest = line.trim_start_matches("pub ");
        let is_constant = rest
            .strip_prefix("const ")
            .and_then(|r| r.strip_prefix(name));
        if let Some(rest) = is_constant.filter(|rest| rest.starts_with(':')) {
            return rest.split_once(" = ")?.1.strip_suffix(';');
        }
        line.strip_prefix(name)?
            .strip_prefix(": ")?
            .strip_suffix(',')
    });
    let expression = expression.unwrap_or_else(|| panic!("{path} has no {name}"));
    value(path, expression)
}

fn value(path: &str, expression: &str) -> u64 {
    let expression = expression.trim();
    if let Some((sum, less)) = expression.rsplit_once(" - ") {
        return value(path, sum) - value(path, less);
    }
    if let Some((one, other)) = expression.split_once(" + ") {
        return value(path, one) + value(path, other);
    }
    if let Some((one, other)) = expression.split_once(" * ") {
        return value(path, one) * value(path, other);
    }
    let inside = |start| expression.strip_prefix(start)?.strip_suffix(')');
    if let Some(inside) = inside("Duration::from_secs(").or(inside("Duration::from_millis(")) {
        return value(path, inside);
    }
    if let Some(inside) = inside("(") {
        let (one, bits) = inside.split_once(" << ").unwrap();
        return value(path, one) << value(path, bits);
    }
    if let Ok(number) = expression.replace('_', "").parse() {
        return number;
    }
    let (folder, name) = expression.rsplit_once("::").unwrap_or(("", expression));
    let path = match folder {
        "" => path,
        "limits" => "gateway/src/limits.rs",
        _ => "protocol/src/limits.rs",
    };
    constant(path, name)
}

#[test]
fn d1_the_document_has_the_limits_of_the_code() {
    let document = text(DOCUMENT);
    let mut documented = BTreeSet::new();
    let mut path = "";
    for line in section(&document, "## Limits").lines() {
        if line.starts_with("### ") {
            path = line.split('`').nth(1).unwrap();
        }
        for row in rows(line) {
            let name = plain(row[0]);
            if name == "name" {
                continue;
            }
            let given: u64 = row[1].replace(',', "").parse().unwrap();
            assert_eq!(given, constant(path, name), "{path}: {name}");
            let unit = row[2];
            for (word, expected) in [("BYTES", "bytes"), ("SECONDS", "s"), ("MILLIS", "ms")] {
                let says = name.to_uppercase().contains(word);
                assert!(!says || unit == expected, "{name} is not in {unit}");
            }
            documented.insert((path, name));
        }
    }
    for path in ["protocol/src/limits.rs", "protocol/src/daemon/limits.rs"] {
        for line in text(path).lines() {
            let Some(rest) = line.strip_prefix("pub const ") else {
                continue;
            };
            let Some((name, _)) = rest.split_once(": ").filter(|_| !rest.starts_with("fn ")) else {
                continue;
            };
            let is_ours = !OF_THE_LEDGER.contains(&name);
            let is_there = documented.contains(&(path, name));
            assert_eq!(is_there, is_ours, "{path}: {name}");
        }
    }
    let lanes = rows(section(&document, "## Lanes and credits"));
    let lanes: BTreeMap<_, _> = lanes.iter().map(|row| (plain(row[0]), row[1])).collect();
    for lane in Lane::ALL {
        assert_eq!(lanes[lane.as_str()], lane_credits(lane).to_string());
    }
}

#[test]
fn d1_the_document_has_the_names_and_codes_of_the_code() {
    let document = text(DOCUMENT);
    let quoted = |word: &str| document.contains(&format!("`{word}`"));
    for name in [SUBPROTOCOL, JOIN_PATH, RENEW_PATH, SESSION_PATH] {
        assert!(quoted(name), "{name}");
    }
    let identity = text("gateway/src/authority/identity.rs");
    let spiffe = identity.split("SPIFFE: &str = \"").nth(1).unwrap();
    assert!(document.contains(spiffe.split('"').next().unwrap()));
    let oid = identity
        .split("ALLOWED_KINDS_OID: &[u64] = &[")
        .nth(1)
        .unwrap();
    let oid = oid.split(']').next().unwrap().replace(", ", ".");
    assert!(quoted(&oid), "{oid}");

    let close = text("protocol/src/session/close.rs");
    let codes: BTreeSet<_> = close
        .split("Self::new(")
        .skip(1)
        .chain(close.split(": u16 = ").skip(1))
        .map(|rest| &rest[..4])
        .filter(|code| code.bytes().all(|byte| byte.is_ascii_digit()))
        .collect();
    let close_codes = rows(section(&document, "### Close codes"));
    let documented: BTreeSet<_> = close_codes.iter().map(|row| row[0]).collect();
    assert_eq!(documented, codes);

    let mut words = BTreeSet::new();
    for name in ["admission", "recovery", "rejoin", "refused"] {
        gather(&read(name), &mut words);
    }
    assert!(words.len() > 10, "{words:?}");
    let missing: Vec<_> = words.iter().filter(|word| !quoted(word)).collect();
    assert!(missing.is_empty(), "{DOCUMENT} does not name {missing:?}");
}

#[test]
fn d1_the_document_has_the_codes_of_refused_updates() {
    let document = text(DOCUMENT);
    let codes = rows(section(&document, "## Reporting"));
    let documented: BTreeSet<_> = codes.iter().map(|row| plain(row[0])).collect();
    let answers = text("protocol/src/session/acknowledge.rs");
    let mut sent: BTreeSet<_> = answers
        .split("=> \"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    // What is refused for another reason is no report.
    assert!(sent.remove("REFUSED"));
    sent.insert("TOO_LARGE");
    for code in &sent {
        assert!(documented.contains(code), "{code}");
    }
    assert_eq!(sent.len(), 6);
}

#[test]
fn d13_the_document_shows_the_json_text_of_a_long_result() {
    let document = text(DOCUMENT);
    let result = serde_json::json!({
        "c": "x".repeat(60_000), "b": [1, 2.5, null], "a": "\u{e9}\n",
    });
    let (kept, truncated) = fit_result(&result);
    assert!(truncated.is_some());
    let kept = canonical::to_json(&kept.unwrap()).unwrap();
    let head = kept["head"].as_str().unwrap();
    let shown = document.split("a head may begin `").nth(1).unwrap();
    let shown = shown.split('`').next().unwrap();
    assert!(head.starts_with(shown), "{shown}\n{}", &head[..60]);
}

/// Every reason, state and error that the vectors name.
fn gather(value: &Value, words: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| gather(item, words)),
        Value::Object(fields) => {
            // A batch's reason is in its people's words.
            for (name, value) in fields.iter().filter(|(name, _)| *name != "batch") {
                match value {
                    Value::String(word)
                        if ["reason", "state", "error"].contains(&name.as_str()) =>
                    {
                        words.extend(word.split(": ").map(str::to_owned));
                    }
                    value => gather(value, words),
                }
            }
        }
        _ => {}
    }
}

/// A SEQUENCE OF UTF8String, each short enough for a length of one byte.
fn der(kinds: &[&str]) -> String {
    let mut inside = Vec::new();
    for kind in kinds {
        inside.extend([0x0c, u8::try_from(kind.len()).unwrap()]);
        inside.extend(kind.as_bytes());
    }
    let length = u8::try_from(inside.len())
        .ok()
        .filter(|length| *length < 128);
    format!("30{:02x}{}", length.unwrap(), hex::encode(inside))
}

#[test]
fn d11_the_document_shows_how_allowed_kinds_are_written() {
    let document = text(DOCUMENT);
    for kinds in [&[][..], &["diag.nvml"], &["diag.nvml", "inventory.refresh"]] {
        let der = der(kinds);
        assert!(document.contains(&format!("`{der}`")), "{kinds:?}: {der}");
    }
}

#[test]
fn k_the_document_has_the_kinds_of_the_registry() {
    let document = text(DOCUMENT);
    let section = section(&document, "## Kinds");
    let rows = rows(section);
    let flag = |set: bool| if set { "yes" } else { "" };
    for (row, kind) in rows.iter().zip(Registry::builtin().iter()) {
        let roles: Vec<_> = kind.roles.iter().map(|role| role.as_str()).collect();
        let expected = [
            format!("`{}`", kind.name),
            kind.version.to_string(),
            kind.lane.to_string(),
            flag(kind.retry_safe).to_owned(),
            flag(kind.self_terminating).to_owned(),
            flag(kind.attested).to_owned(),
            flag(kind.destructive).to_owned(),
            kind.timeout_seconds.to_string(),
            roles.join(", "),
        ];
        assert_eq!(row[..9], expected.each_ref().map(String::as_str));
        let schema: Value = serde_json::from_str(&kind.payload_schema).unwrap();
        for property in schema["properties"].as_object().unwrap().keys() {
            let named = row[9].contains(&format!("`{property}`"));
            assert!(named, "{}: {property}", kind.name);
        }
    }
    assert_eq!(rows.len(), Registry::builtin().iter().count());
}

#[test]
fn d1_the_document_shows_the_session_of_the_vectors() {
    let document = text(DOCUMENT);
    let shown = rows(section(&document, "## A session, byte by byte"));
    let session = read("session");
    let steps = list(&session["steps"]);
    assert_eq!(shown.len(), steps.len());
    for (row, step) in shown.iter().zip(steps) {
        let found = [row[1], plain(row[2]), plain(row[4])];
        let expected = ["from", "frame", "bytes"].map(|field| step[field].as_str().unwrap());
        assert_eq!(found, expected, "step {}", row[0]);
    }
}

#[test]
fn d1_every_point_of_the_checklist_names_its_requirement() {
    let document = text(DOCUMENT);
    let checklist = section(&document, "## Conformance");
    let mut points: Vec<String> = Vec::new();
    for line in checklist.lines() {
        let next = points.len() + 1;
        if line.starts_with(&format!("{next}. ")) {
            points.push(line.to_owned());
        } else if let Some(point) = points.last_mut().filter(|_| line.starts_with("   ")) {
            point.push_str(line);
        }
    }
    assert!(points.len() > 25, "{}", points.len());
    for point in points {
        let ids = point
            .rsplit_once('(')
            .map(|(_, ids)| ids.strip_suffix(").").unwrap_or(ids));
        let is_id = |id: &str| {
            let (letter, number) = id.split_at(1);
            letter.bytes().all(|byte| byte.is_ascii_uppercase()) && number.parse::<u8>().is_ok()
        };
        let named = ids.is_some_and(|ids| ids.split(", ").all(is_id));
        assert!(named, "{point}");
    }
}
