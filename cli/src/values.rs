//! `key=value` arguments as the fields of a JSON object.

use serde_json::{Map, Value};

use crate::exit::Failure;

/// The object that `key=value` arguments make.
pub(crate) fn object(arguments: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut fields = Map::new();
    for argument in arguments {
        let Some((key, text)) = argument.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(Failure::usage(format!(
                "`{argument}` is no field; write key=value, such as nodeId=node_…"
            )));
        };
        if fields.insert(key.to_owned(), value(text)).is_some() {
            return Err(Failure::usage(format!("field `{key}` is given twice")));
        }
    }
    Ok(fields)
}

/// JSON where the text is JSON, and the text itself where it is not. A text that looks like JSON is
/// sent as a string by quoting it: `'"5"'`.
pub(crate) fn value(text: &str) -> Value {
    match serde_json::from_str::<Value>(text) {
        // A whole number beyond 64 bits would lose digits as JSON; it can only be meant as text,
        // such as an idempotency key of digits.
        Ok(Value::Number(number)) if number.is_f64() && is_whole(text) => Value::from(text),
        Ok(value) => value,
        Err(_) => Value::from(text),
    }
}

fn is_whole(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn h2_values_are_json_when_they_parse_and_text_when_they_do_not() {
        for (text, expected) in [
            ("5", json!(5)),
            ("-1.5", json!(-1.5)),
            (
                "18446744073709551615",
                json!(18_446_744_073_709_551_615_u64),
            ),
            ("true", json!(true)),
            ("null", json!(null)),
            (r#"{"sections":["cpu"]}"#, json!({"sections": ["cpu"]})),
            ("[1,2]", json!([1, 2])),
            ("", json!("")),
            ("inventory.refresh", json!("inventory.refresh")),
            ("two words = one value", json!("two words = one value")),
            ("007", json!("007")),
            ("{not json", json!("{not json")),
            ("True", json!("True")),
            ("NaN", json!("NaN")),
            ("1e999", json!("1e999")),
        ] {
            assert_eq!(value(text), expected, "{text:?}");
        }
    }

    #[test]
    fn h2_quotes_make_a_string_of_what_looks_like_json() {
        assert_eq!(value(r#""5""#), json!("5"));
        assert_eq!(value(r#""true""#), json!("true"));
    }

    #[test]
    fn h2_long_numbers_keep_their_digits_as_text() {
        let key = "123456789012345678901234567890";
        assert_eq!(value(key), json!(key));
        assert_eq!(
            value("-99999999999999999999"),
            json!("-99999999999999999999")
        );
    }

    #[test]
    fn h2_fields_are_split_at_the_first_equals_sign() {
        let arguments = ["a=1".to_owned(), "b=x=y".to_owned(), "c=".to_owned()];
        let fields = object(&arguments).unwrap();
        assert_eq!(Value::from(fields), json!({"a": 1, "b": "x=y", "c": ""}));
    }

    #[test]
    fn h2_what_is_no_field_is_a_usage_error() {
        for arguments in [vec!["word"], vec!["=value"], vec![""], vec!["a=1", "a=2"]] {
            let arguments: Vec<_> = arguments.into_iter().map(str::to_owned).collect();
            let failure = object(&arguments).unwrap_err();
            assert_eq!(failure.code, crate::exit::Code::Usage, "{arguments:?}");
        }
    }
}
