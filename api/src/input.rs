//! A request's fields, taken one by one with their type and bounds.
//!
//! What `methods.rs` does not list for a method is refused first: a field that is missing is most
//! often there under a wrong name. Then the method takes its fields and calls [`Input::finish`]. So
//! all methods refuse alike: with the field's name, its limit and what would work.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ledger_protocol::id::InvalidId;
use ledger_protocol::limits::SECRET_BYTES_MAX;
use ledger_protocol::secret::SecretValue;
use ledger_protocol::text;
use serde_json::{Map, Value};

use crate::error::{Error, quoted};
use crate::json;

/// The fields of a request that were not taken yet.
pub(crate) struct Input {
    fields: Map<String, Value>,
    known: &'static [&'static str],
}

impl fmt::Debug for Input {
    /// A value may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.fields.keys()).finish()
    }
}

/// The type of a value, in the words of an error message.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn wrong_type(field: &'static str, wanted: &str, given: &Value) -> Error {
    let given = type_name(given);
    Error::invalid(field, format!("must be {wanted}, not {given}"))
}

/// Refuses what people would not see, or would see as something else.
fn check_printable(field: &'static str, text: &str) -> Result<(), Error> {
    text::flaw(text).map_or(Ok(()), |flaw| Err(Error::invalid(field, flaw.to_string())))
}

impl Input {
    /// Reads a request's body, which may hold these fields and no others.
    pub(crate) fn parse(body: &[u8], known: &'static [&'static str]) -> Result<Self, Error> {
        let fields = json::parse_object(body)?;
        match fields.keys().find(|field| !known.contains(&field.as_str())) {
            Some(field) => Err(unknown(field, known)),
            None => Ok(Self { fields, known }),
        }
    }

    fn take(&mut self, field: &'static str) -> Option<Value> {
        debug_assert!(
            self.known.contains(&field),
            "{field} is not listed in methods.rs"
        );
        self.fields.remove(field)
    }

    /// Text that may be absent; what was wanted is said when it is something else.
    pub(crate) fn optional_text(
        &mut self,
        field: &'static str,
        wanted: &str,
    ) -> Result<Option<String>, Error> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(field, wanted, &other)),
        }
    }

    /// Text, whatever it is.
    pub(crate) fn text(&mut self, field: &'static str) -> Result<String, Error> {
        let text = self.optional_text(field, "text")?;
        text.ok_or_else(|| missing(field))
    }

    /// The value of a secret: text of 1 to [`SECRET_BYTES_MAX`] bytes. Nothing of it is repeated.
    pub(crate) fn secret(&mut self, field: &'static str) -> Result<SecretValue, Error> {
        let value = SecretValue::new(self.text(field)?.into_bytes());
        let bytes = value.reveal().len();
        if (1..=SECRET_BYTES_MAX).contains(&bytes) {
            return Ok(value);
        }
        let problem = format!("must be text of 1 to {SECRET_BYTES_MAX} bytes; it has {bytes}");
        Err(Error::invalid(field, problem))
    }

    /// Refuses what no method field has taken.
    pub(crate) fn finish(self) -> Result<(), Error> {
        match self.fields.keys().next() {
            Some(field) => Err(unknown(field, self.known)),
            None => Ok(()),
        }
    }

    /// An id.
    pub(crate) fn id<T: FromStr<Err = InvalidId>>(
        &mut self,
        field: &'static str,
    ) -> Result<T, Error> {
        self.optional_id(field)?.ok_or_else(|| missing(field))
    }

    /// An id that may be absent.
    pub(crate) fn optional_id<T: FromStr<Err = InvalidId>>(
        &mut self,
        field: &'static str,
    ) -> Result<Option<T>, Error> {
        let Some(text) = self.optional_text(field, "an id, as text")? else {
            return Ok(None);
        };
        let id = text.parse();
        id.map(Some)
            .map_err(|invalid: InvalidId| Error::invalid(field, invalid.to_string()))
    }

    /// Text of so many printable characters.
    pub(crate) fn printable(
        &mut self,
        field: &'static str,
        chars: RangeInclusive<usize>,
    ) -> Result<String, Error> {
        let (min, max) = (*chars.start(), *chars.end());
        let wanted = format!("text of {min} to {max} printable characters");
        let text = self.optional_text(field, &wanted)?;
        let text = text.ok_or_else(|| missing(field))?;
        let count = text.chars().count();
        if !chars.contains(&count) {
            return Err(Error::invalid(
                field,
                format!("must be {wanted}; it has {count}"),
            ));
        }
        check_printable(field, &text)?;
        Ok(text)
    }

    /// Text of so many bytes, of printable characters.
    pub(crate) fn name(&mut self, field: &'static str, bytes_max: usize) -> Result<String, Error> {
        let wanted = format!("text of 1 to {bytes_max} bytes, of printable characters");
        let text = self.optional_text(field, &wanted)?;
        let text = text.ok_or_else(|| missing(field))?;
        if !(1..=bytes_max).contains(&text.len()) {
            let bytes = text.len();
            return Err(Error::invalid(
                field,
                format!("must be {wanted}; it has {bytes}"),
            ));
        }
        check_printable(field, &text)?;
        Ok(text)
    }

    /// One of a few words, which may be absent.
    pub(crate) fn optional_word<T>(
        &mut self,
        field: &'static str,
        words: &[&'static str],
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let wanted = || format!("one of {}", words.join(", "));
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => match parse(&text) {
                Some(word) => Ok(Some(word)),
                None => Err(Error::invalid(field, format!("must be {}", wanted()))),
            },
            Some(other) => Err(wrong_type(field, &wanted(), &other)),
        }
    }

    /// A whole number within a range, which may be absent.
    pub(crate) fn optional_integer(
        &mut self,
        field: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, Error> {
        let wanted = || {
            let (min, max) = (range.start(), range.end());
            format!("a whole number from {min} to {max}")
        };
        match self.take(field) {
            None => Ok(None),
            Some(Value::Number(number)) => match number.as_u64() {
                Some(value) if range.contains(&value) => Ok(Some(value)),
                Some(_) | None => Err(Error::invalid(
                    field,
                    format!("must be {}; {number} is none", wanted()),
                )),
            },
            Some(other) => Err(wrong_type(field, &wanted(), &other)),
        }
    }

    /// A whole number within a range.
    pub(crate) fn integer(
        &mut self,
        field: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<u64, Error> {
        self.optional_integer(field, range)?
            .ok_or_else(|| missing(field))
    }

    /// A whole number of at most 32 bits within a range, which may be absent.
    pub(crate) fn optional_u32(
        &mut self,
        field: &'static str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u32>, Error> {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        let value = self.optional_integer(field, range)?;
        // The range has 32 bits, so every number in it fits.
        Ok(value.and_then(|value| u32::try_from(value).ok()))
    }

    /// A boolean, false when absent.
    pub(crate) fn flag(&mut self, field: &'static str) -> Result<bool, Error> {
        match self.take(field) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(wrong_type(field, "true or false", &other)),
        }
    }

    /// An object, which may be absent.
    pub(crate) fn optional_object(
        &mut self,
        field: &'static str,
    ) -> Result<Option<Map<String, Value>>, Error> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(wrong_type(field, "an object", &other)),
        }
    }

    /// An object.
    pub(crate) fn object(&mut self, field: &'static str) -> Result<Map<String, Value>, Error> {
        self.optional_object(field)?.ok_or_else(|| missing(field))
    }

    /// An object whose values are text; empty when absent.
    pub(crate) fn texts(&mut self, field: &'static str) -> Result<BTreeMap<String, String>, Error> {
        let object = self.optional_object(field)?.unwrap_or_default();
        let text = |(key, value): (String, Value)| match value {
            Value::String(text) => Ok((key, text)),
            other => {
                let (key, given) = (quoted(&key), type_name(&other));
                let problem = format!("must have text only; `{key}` is {given}");
                Err(Error::invalid(field, problem))
            }
        };
        object.into_iter().map(text).collect()
    }

    /// A list.
    pub(crate) fn list(
        &mut self,
        field: &'static str,
        items: RangeInclusive<usize>,
    ) -> Result<Vec<Value>, Error> {
        let list = self.optional_list(field, items)?;
        list.ok_or_else(|| missing(field))
    }

    /// A list, if it is there.
    pub(crate) fn optional_list(
        &mut self,
        field: &'static str,
        items: RangeInclusive<usize>,
    ) -> Result<Option<Vec<Value>>, Error> {
        let (min, max) = (*items.start(), *items.end());
        let wanted = format!("a list of {min} to {max} items");
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(list)) if items.contains(&list.len()) => Ok(Some(list)),
            Some(Value::Array(list)) => {
                let count = list.len();
                Err(Error::invalid(
                    field,
                    format!("must be {wanted}; it has {count}"),
                ))
            }
            Some(other) => Err(wrong_type(field, &wanted, &other)),
        }
    }

    /// The limit of a page.
    pub(crate) fn page_limit(&mut self) -> Result<u32, Error> {
        let limit = self.optional_u32("limit", 1..=crate::limits::PAGE_ITEMS_MAX)?;
        Ok(limit.unwrap_or(crate::limits::PAGE_ITEMS_DEFAULT))
    }

    /// A `seq` as cursor: as the number that was returned, or its digits as text.
    pub(crate) fn seq_cursor(&mut self) -> Result<Option<u64>, Error> {
        const WANTED: &str = "the cursor of a page before, a whole number from 1";
        let given = self.take("cursor");
        let seq = match &given {
            None => return Ok(None),
            Some(Value::Number(number)) => number.as_u64(),
            Some(Value::String(text)) => {
                let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                digits.then(|| text.parse().ok()).flatten()
            }
            Some(other) => return Err(wrong_type("cursor", WANTED, other)),
        };
        match seq {
            Some(seq) if (1..=crate::limits::JSON_INTEGER_MAX).contains(&seq) => Ok(Some(seq)),
            Some(_) | None => Err(Error::invalid("cursor", format!("must be {WANTED}"))),
        }
    }
}

/// The letters and digits of a name, in one case: where two agree, one was meant to be the other.
fn letters(name: &str) -> impl Iterator<Item = char> {
    let plain = name.chars().filter(char::is_ascii_alphanumeric);
    plain.map(|c| c.to_ascii_lowercase())
}

fn unknown(field: &str, known: &[&str]) -> Error {
    let mut problem = "is not a field of this method, which takes: ".to_owned();
    problem.push_str(&known.join(", "));
    let meant = known.iter().find(|known| letters(known).eq(letters(field)));
    if let Some(meant) = meant {
        problem.push_str("; did you mean ");
        problem.push_str(meant);
        problem.push('?');
    }
    Error::invalid(quoted(field), problem)
}

fn missing(field: &'static str) -> Error {
    Error::invalid(field, "is missing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a13_a_field_that_is_not_known_is_named_before_one_that_is_missing() {
        for (field, meant) in [
            ("idempotencykey", true),
            ("idempotency_key", true),
            ("other", false),
        ] {
            let body = format!(r#"{{"kind":"k","{field}":""}}"#);
            let error = Input::parse(body.as_bytes(), &["kind", "idempotencyKey"]).unwrap_err();
            let told = error.to_string();
            assert!(
                told.starts_with(&format!("{field} is not a field")),
                "{told}"
            );
            assert_eq!(
                told.ends_with("did you mean idempotencyKey?"),
                meant,
                "{told}"
            );
        }
    }
}
