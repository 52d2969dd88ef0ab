//! Reads a request's JSON strictly: everything that two readers could understand differently, or
//! that cannot be stored, is refused before anything is built of it.
//!
//! Refused are: nesting deeper than the canonical form allows, a key that stands twice in one
//! object, NUL characters, lone surrogates, and numbers that would silently become another number. A whole number is an
//! integer however it is written.

use std::fmt;

use ledger_protocol::limits::DEPTH_MAX;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::{Error, quoted};
use crate::limits::JSON_INTEGER_MAX;

/// The fields of a request's body. A field's own value may be nested as deeply as a payload may.
pub(crate) fn parse_object(bytes: &[u8]) -> Result<Map<String, Value>, Error> {
    let text = str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        Error::invalid("body", format!("is not UTF-8 at byte {at}"))
    })?;
    if text.bytes().all(|byte| byte.is_ascii_whitespace()) {
        return Err(Error::invalid("body", "is empty; send a JSON object"));
    }
    let mut found = Found::default();
    let mut json = serde_json::Deserializer::from_str(text);
    let seed = Seed {
        found: &mut found,
        depth: 0,
    };
    let parsed = seed.deserialize(&mut json).and_then(|value| {
        json.end()?;
        Ok(value)
    });
    match (parsed, found.problem) {
        (Ok(Value::Object(fields)), _) => Ok(fields),
        (Ok(_), _) => Err(Error::invalid("body", "must be a JSON object")),
        (Err(_), Some(problem)) => {
            let field = found.field.as_deref().map_or("body".into(), quoted);
            Err(Error::invalid(field, problem))
        }
        (Err(error), None) => Err(Error::invalid("body", format!("is not JSON: {error}"))),
    }
}

/// What the reader met.
#[derive(Default)]
struct Found {
    /// The field of the body that is being read.
    field: Option<String>,
    /// Why reading stopped, when it was not the grammar.
    problem: Option<String>,
}

struct Seed<'a> {
    found: &'a mut Found,
    /// How many containers are open around the value.
    depth: usize,
}

impl Seed<'_> {
    fn stop<E: serde::de::Error>(&mut self, problem: String) -> E {
        self.found.problem = Some(problem);
        E::custom("stopped")
    }

    /// The body itself is one level more than what may stand in a field.
    fn enter<E: serde::de::Error>(&mut self) -> Result<(), E> {
        if self.depth > DEPTH_MAX {
            return Err(self.stop(format!("is nested deeper than {DEPTH_MAX} levels")));
        }
        Ok(())
    }

    fn text<E: serde::de::Error>(&mut self, text: &str) -> Result<(), E> {
        if text.contains('\0') {
            return Err(self.stop("has a NUL character, which no text may have".to_owned()));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "up to the limit whole numbers are the same as integers and as floats"
    )]
    fn visit_f64<E: serde::de::Error>(mut self, value: f64) -> Result<Value, E> {
        // A whole number of more than 64 bits arrives here too, rounded.
        match Number::from_f64(value) {
            // For JSON, 60.0 and 60 are one number, so they are kept as one: a retry may be written
            // by another library than the first request was, and is a retry all the same (SPEC A2).
            Some(_) if value.fract() == 0.0 && value.abs() <= JSON_INTEGER_MAX as f64 => {
                Ok(Value::Number((value as i64).into()))
            }
            Some(number) if value.abs() <= JSON_INTEGER_MAX as f64 => Ok(Value::Number(number)),
            Some(_) | None => Err(self.stop(format!(
                "has a number that cannot be kept exactly; whole numbers have at most 64 bits, \
                 others lie between -{JSON_INTEGER_MAX} and {JSON_INTEGER_MAX}"
            ))),
        }
    }

    fn visit_str<E: serde::de::Error>(mut self, text: &str) -> Result<Value, E> {
        self.text(text)?;
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E: serde::de::Error>(mut self, text: String) -> Result<Value, E> {
        self.text(&text)?;
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        self.enter()?;
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(Seed {
            found: self.found,
            depth: self.depth + 1,
        })? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Value, A::Error> {
        self.enter()?;
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if self.depth == 0 {
                self.found.field = Some(key.clone());
            }
            self.text(&key)?;
            if object.contains_key(&key) {
                return Err(self.stop(twice(&key, &object, self.depth)));
            }
            let value = entries.next_value_seed(Seed {
                found: self.found,
                depth: self.depth + 1,
            })?;
            object.insert(key, value);
            if self.depth == 0 {
                self.found.field = None;
            }
        }
        Ok(Value::Object(object))
    }
}

/// What is said of a key that stands twice. A field of the body is named; what stands inside of one is
/// not repeated, for it may be a part of a secret that was given as an object.
fn twice(key: &str, object: &Map<String, Value>, depth: usize) -> String {
    if depth == 0 {
        return format!("has the key `{}` twice", quoted(key));
    }
    let place = object.len() + 1;
    format!("has a key twice in one object; the second is key {place} of it")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(body: &[u8]) -> (String, String) {
        match parse_object(body) {
            Err(Error::InvalidInput { field, problem, .. }) => (field, problem),
            other => panic!("{:?} gave {other:?}", String::from_utf8_lossy(body)),
        }
    }

    #[test]
    fn a_a_body_that_is_plain_json_is_read_whole() {
        let body = json!({"a": [1, -2, 3.5, null, true, "\u{1f600}"], "b": {"c": {}}});
        let read = parse_object(body.to_string().as_bytes()).unwrap();
        assert_eq!(Value::Object(read), body);
    }

    #[test]
    fn a2_a_whole_number_is_an_integer_however_it_is_written() {
        for (text, number) in [
            ("60.0", json!(60)),
            ("6e1", json!(60)),
            ("-0.0", json!(0)),
            ("-0", json!(0)),
            ("-60.000", json!(-60)),
            ("9007199254740991.0", json!(9_007_199_254_740_991_i64)),
            ("60.5", json!(60.5)),
        ] {
            let read = parse_object(format!("{{\"a\":{{\"b\":[{text}]}}}}").as_bytes()).unwrap();
            assert_eq!(read["a"]["b"][0], number, "{text}");
        }
    }

    #[test]
    fn a_what_is_no_json_object_is_refused_by_name() {
        for (body, field, word) in [
            (&b""[..], "body", "empty"),
            (b" \n", "body", "empty"),
            (b"[]", "body", "object"),
            (b"null", "body", "object"),
            (b"\"text\"", "body", "object"),
            (b"1", "body", "object"),
            (b"{", "body", "not JSON"),
            (b"{} {}", "body", "not JSON"),
            (b"{\"a\":1,}", "body", "not JSON"),
            (b"{'a':1}", "body", "not JSON"),
            (b"\xef\xbb\xbf{}", "body", "not JSON"),
            (b"{\"a\":NaN}", "body", "not JSON"),
            (b"{\"a\":1e999}", "body", "not JSON"),
            (b"{\"a\":\"\xff\"}", "body", "UTF-8"),
            (b"{\"a\":\"\\ud800\"}", "body", "not JSON"),
            (b"{\"a\":\"\\udc00x\"}", "body", "not JSON"),
            (b"{\"a\":\"\\u0000\"}", "a", "NUL"),
            (b"{\"a\":{\"b\\u0000\":1}}", "a", "NUL"),
            (b"{\"a\":1,\"a\":1}", "a", "twice"),
            (b"{\"a\":[{\"b\":1,\"b\":1}]}", "a", "twice"),
            (b"{\"a\":18446744073709551616}", "a", "64 bits"),
            (b"{\"a\":-9223372036854775809}", "a", "64 bits"),
            (b"{\"a\":[1e300]}", "a", "64 bits"),
        ] {
            let (at, problem) = refused(body);
            let shown = String::from_utf8_lossy(body);
            assert_eq!(at, field, "{shown}: {problem}");
            assert!(problem.contains(word), "{shown}: {problem}");
        }
    }

    #[test]
    fn a_nesting_is_bounded_before_anything_is_built() {
        let nested = |levels: usize| {
            let open = "[".repeat(levels);
            let close = "]".repeat(levels);
            format!("{{\"payload\":{open}{close}}}")
        };
        parse_object(nested(DEPTH_MAX).as_bytes()).unwrap();
        for levels in [DEPTH_MAX + 1, 120, 300_000] {
            let (field, problem) = refused(nested(levels).as_bytes());
            assert_eq!(field, "payload");
            assert!(problem.contains("deeper than 32"), "{problem}");
        }
        let bomb = "{\"a\":".repeat(100_000);
        assert_eq!(refused(bomb.as_bytes()).0, "a");
    }
}
