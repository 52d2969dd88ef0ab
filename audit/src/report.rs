//! What a replay found.

use std::collections::BTreeSet;
use std::fmt;

use ledger_protocol::canonical;

use crate::limits::{DIFFERENCES_MAX, VALUE_CHARS_MAX};
use crate::tables::{Row, Value};

/// The answer of a replay. The live tables are what the log says when `differences_total` is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Events that were folded; also the log's last position.
    pub events: u64,
    /// Commands that they made.
    pub commands: u64,
    /// Nodes that they made.
    pub nodes: u64,
    /// The first differences, at most 1,000.
    pub differences: Vec<Difference>,
    /// How many there are.
    pub differences_total: u64,
}

/// Something that a live table holds and the log does not say, or the other way round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The table.
    pub table: &'static str,
    /// Key of the row.
    pub key: String,
    /// The column; `snapshot.state` and the like for a field of a fold; `(row)` for a whole row.
    pub column: String,
    /// What the log says.
    pub expected: String,
    /// What the table holds.
    pub found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            table,
            key,
            column,
            expected,
            found,
        } = self;
        write!(
            f,
            "{table} {key} {column}: the log says {expected}, the table holds {found}"
        )
    }
}

impl Report {
    /// Whether the live tables are what the log says.
    pub fn is_clean(&self) -> bool {
        self.differences_total == 0
    }

    pub(crate) fn add(
        &mut self,
        table: &'static str,
        key: &str,
        column: impl Into<String>,
        expected: &str,
        found: &str,
    ) {
        self.differences_total += 1;
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(Difference {
                table,
                key: key.to_owned(),
                column: column.into(),
                expected: shortened(expected),
                found: shortened(found),
            });
        }
    }

    /// Compares a row of a table with the one that the log makes.
    pub(crate) fn compare<R: Row>(&mut self, expected: Option<&R>, found: Option<&R>) {
        let (absent, present) = ("no such row", "this row");
        match (expected, found) {
            (Some(expected), Some(found)) if expected == found => {}
            (Some(expected), Some(found)) => {
                let key = expected.key_text();
                for ((column, wanted), (_, held)) in
                    expected.columns().into_iter().zip(found.columns())
                {
                    if wanted != held {
                        self.compare_values(R::TABLE, &key, column, &wanted, &held);
                    }
                }
            }
            (Some(missing), None) => {
                self.add(R::TABLE, &missing.key_text(), "(row)", present, absent);
            }
            (None, Some(extra)) => {
                self.add(R::TABLE, &extra.key_text(), "(row)", absent, present);
            }
            (None, None) => {}
        }
    }

    fn compare_values(
        &mut self,
        table: &'static str,
        key: &str,
        column: &str,
        wanted: &Value,
        held: &Value,
    ) {
        let (wanted_bytes, held_bytes) = match (wanted, held) {
            (Value::Packed(wanted), Value::Packed(held)) => (wanted, held),
            (Value::Text(wanted), Value::Text(held)) => {
                return self.add(table, key, column, wanted, held);
            }
            (Value::Text(text), Value::Packed(bytes)) => {
                return self.add(table, key, column, text, &hex::encode(bytes));
            }
            (Value::Packed(bytes), Value::Text(text)) => {
                return self.add(table, key, column, &hex::encode(bytes), text);
            }
        };
        let before = self.differences_total;
        if let (Some(wanted), Some(held)) = (fields(wanted_bytes), fields(held_bytes)) {
            let names: BTreeSet<&String> = wanted.keys().chain(held.keys()).collect();
            let show = |value: Option<&serde_json::Value>| {
                value.map_or("nothing".to_owned(), ToString::to_string)
            };
            for name in names {
                let (wanted, held) = (wanted.get(name), held.get(name));
                if wanted != held {
                    let column = format!("{column}.{name}");
                    self.add(table, key, column, &show(wanted), &show(held));
                }
            }
        }
        // Not readable, or the same in JSON: then the bytes are all there is to show.
        if self.differences_total == before {
            let (wanted, held) = (hex::encode(wanted_bytes), hex::encode(held_bytes));
            self.add(table, key, column, &wanted, &held);
        }
    }
}

fn fields(bytes: &[u8]) -> Option<serde_json::Map<String, serde_json::Value>> {
    match canonical::to_json(bytes).ok()? {
        serde_json::Value::Object(fields) => Some(fields),
        _ => None,
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}
