//! Canonical MessagePack: one value has one encoding (SPEC L2).
//!
//! Maps have text keys in strictly ascending byte order, integers and lengths take the shortest
//! form, floats are 64-bit and finite, absent fields are left out, extension types are not used.
//! Structs that are encoded therefore declare their fields in the order of their wire names.
//! Bytes are hashed and verified as stored and never encoded again.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};

use crate::limits::DEPTH_MAX;

/// Bytes that are not the MessagePack that was expected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input ends inside a value.
    #[error("the MessagePack ends early, at byte {at}")]
    Truncated {
        /// Where the input ended, in bytes.
        at: usize,
    },
    /// Bytes follow the value.
    #[error("{extra} bytes follow the MessagePack value")]
    Trailing {
        /// How many bytes follow.
        extra: usize,
    },
    /// Maps or arrays are nested too deeply.
    #[error("nested deeper than {DEPTH_MAX} levels at byte {at}")]
    TooDeep {
        /// Offset of the container that is too deep, in bytes.
        at: usize,
    },
    /// A rule of the canonical form is broken.
    #[error("not canonical MessagePack at byte {at}: {rule}")]
    NotCanonical {
        /// Offset of the value, in bytes.
        at: usize,
        /// The rule that is broken.
        rule: &'static str,
    },
    /// The value does not have the expected shape.
    #[error("unexpected MessagePack value")]
    Shape(#[from] rmp_serde::decode::Error),
    /// The value cannot be encoded.
    #[error("value cannot be written as MessagePack")]
    Encode(#[from] rmp_serde::encode::Error),
}

/// Encodes a value; its structs must declare their fields in wire-name order.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    Ok(rmp_serde::to_vec_named(value)?)
}

/// Decodes canonical bytes, whole: nesting, form and length are checked before anything is built.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    check(bytes)?;
    Ok(rmp_serde::from_slice(bytes)?)
}

/// Decodes MessagePack of any form, whole, with the nesting checked first. For frames, whose
/// bytes are neither stored nor signed.
pub fn decode_lenient<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    Scan {
        bytes,
        at: 0,
        canonical: false,
    }
    .whole()?;
    Ok(rmp_serde::from_slice(bytes)?)
}

/// Checks that the bytes are exactly one canonical value.
pub fn check(bytes: &[u8]) -> Result<(), Error> {
    Scan {
        bytes,
        at: 0,
        canonical: true,
    }
    .whole()
}

/// Writes JSON as canonical MessagePack.
pub fn from_json(value: &Value) -> Result<Vec<u8>, Error> {
    // The order of a JSON map depends on how the JSON crate was built, so it is sorted here.
    let mut bytes = Vec::new();
    write_json(value, 1, &mut bytes)?;
    Ok(bytes)
}

/// Reads canonical MessagePack as JSON; byte strings become lower-case hex text.
pub fn to_json(bytes: &[u8]) -> Result<Value, Error> {
    check(bytes)?;
    let mut scan = Scan {
        bytes,
        at: 0,
        canonical: true,
    };
    scan.json()
}

fn write_json(value: &Value, depth: usize, bytes: &mut Vec<u8>) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(Error::TooDeep { at: bytes.len() });
    }
    match value {
        Value::Array(items) => {
            write_length(items.len(), 0x90, 0xdc, bytes);
            for item in items {
                write_json(item, depth + 1, bytes)?;
            }
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(key, _)| key.as_bytes());
            write_length(fields.len(), 0x80, 0xde, bytes);
            for (key, value) in fields {
                bytes.extend(encode(key)?);
                write_json(value, depth + 1, bytes)?;
            }
        }
        Value::Number(number) => match whole(number) {
            Some(whole) => bytes.extend(encode(&whole)?),
            None => bytes.extend(encode(number)?),
        },
        Value::Null | Value::Bool(_) | Value::String(_) => {
            bytes.extend(encode(value)?);
        }
    }
    Ok(())
}

/// Largest whole number up to which a float holds every one exactly: 2⁵³.
const WHOLE_FLOAT_MAX: f64 = 9_007_199_254_740_992.0;

/// The integer that a float is another way to write, as `60.0` is one for `60`: in JSON they are
/// one number, so they have one form here.
#[expect(
    clippy::cast_possible_truncation,
    reason = "whole, and within what a float holds exactly"
)]
fn whole(number: &Number) -> Option<i64> {
    let float = number.as_f64().filter(|_| number.is_f64())?;
    (float.fract() == 0.0 && float.abs() <= WHOLE_FLOAT_MAX).then_some(float as i64)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "each branch has checked that the length fits"
)]
fn write_length(length: usize, fix: u8, wide: u8, bytes: &mut Vec<u8>) {
    if length < 16 {
        bytes.push(fix | length as u8);
    } else if let Ok(length) = u16::try_from(length) {
        bytes.push(wide);
        bytes.extend(length.to_be_bytes());
    } else {
        bytes.push(wide + 1);
        bytes.extend((length as u32).to_be_bytes());
    }
}

/// One pass over the bytes that builds nothing.
struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    canonical: bool,
}

enum Head<'a> {
    Nil,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Array(usize),
    Map(usize),
}

impl<'a> Scan<'a> {
    fn whole(mut self) -> Result<(), Error> {
        self.value(1)?;
        match self.bytes.len() - self.at {
            0 => Ok(()),
            extra => Err(Error::Trailing { extra }),
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let end = self
            .at
            .checked_add(count)
            .filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(Error::Truncated {
            at: self.bytes.len(),
        })?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self, count: usize) -> Result<u64, Error> {
        Ok(self
            .take(count)?
            .iter()
            .fold(0, |value, byte| (value << 8) | u64::from(*byte)))
    }

    fn rule(&self, kept: bool, at: usize, rule: &'static str) -> Result<(), Error> {
        if kept || !self.canonical {
            Ok(())
        } else {
            Err(Error::NotCanonical { at, rule })
        }
    }

    fn length(&mut self, count: usize, least: u64, at: usize) -> Result<usize, Error> {
        let length = self.number(count)?;
        self.rule(length >= least, at, "lengths take the shortest form")?;
        usize::try_from(length).map_err(|_| Error::Truncated {
            at: self.bytes.len(),
        })
    }

    fn text(&mut self, length: usize, at: usize) -> Result<Head<'a>, Error> {
        let text = str::from_utf8(self.take(length)?).map_err(|_| Error::NotCanonical {
            at,
            rule: "text is UTF-8",
        })?;
        Ok(Head::Text(text))
    }

    #[expect(
        clippy::cast_possible_wrap,
        reason = "the two's complement is what is wanted"
    )]
    fn head(&mut self) -> Result<Head<'a>, Error> {
        const SHORTEST: &str = "integers take the shortest form";
        let at = self.at;
        let marker = self.take(1)?[0];
        Ok(match marker {
            0x00..=0x7f => Head::Unsigned(u64::from(marker)),
            0x80..=0x8f => Head::Map(usize::from(marker & 0x0f)),
            0x90..=0x9f => Head::Array(usize::from(marker & 0x0f)),
            0xa0..=0xbf => self.text(usize::from(marker & 0x1f), at)?,
            0xc0 => Head::Nil,
            0xc2 | 0xc3 => Head::Bool(marker == 0xc3),
            0xc4..=0xc6 => {
                let width = 1 << (marker - 0xc4);
                let least = [0, 1 << 8, 1 << 16][usize::from(marker - 0xc4)];
                let length = self.length(width, least, at)?;
                Head::Bytes(self.take(length)?)
            }
            0xca => {
                self.rule(false, at, "floats have 64 bits")?;
                let bits = u32::try_from(self.number(4)?).unwrap_or_default();
                Head::Float(f64::from(f32::from_bits(bits)))
            }
            0xcb => {
                let float = f64::from_bits(self.number(8)?);
                self.rule(float.is_finite(), at, "floats are finite")?;
                Head::Float(float)
            }
            0xcc..=0xcf => {
                let width = 1 << (marker - 0xcc);
                let least = [1 << 7, 1 << 8, 1 << 16, 1 << 32][usize::from(marker - 0xcc)];
                let value = self.number(width)?;
                self.rule(value >= least, at, SHORTEST)?;
                Head::Unsigned(value)
            }
            0xd0..=0xd3 => {
                let width = 1_usize << (marker - 0xd0);
                let unused = 64 - 8 * width;
                let value = ((self.number(width)? << unused) as i64) >> unused;
                let most = [-33, -129, -32_769, -2_147_483_649][usize::from(marker - 0xd0)];
                self.rule(value <= most, at, SHORTEST)?;
                if value < 0 {
                    Head::Signed(value)
                } else {
                    Head::Unsigned(value.unsigned_abs())
                }
            }
            0xd9..=0xdb => {
                let width = 1 << (marker - 0xd9);
                let least = [1 << 5, 1 << 8, 1 << 16][usize::from(marker - 0xd9)];
                let length = self.length(width, least, at)?;
                self.text(length, at)?
            }
            0xdc => Head::Array(self.length(2, 1 << 4, at)?),
            0xdd => Head::Array(self.length(4, 1 << 16, at)?),
            0xde => Head::Map(self.length(2, 1 << 4, at)?),
            0xdf => Head::Map(self.length(4, 1 << 16, at)?),
            0xe0..=0xff => Head::Signed(i64::from(marker as i8)),
            0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => {
                return Err(Error::NotCanonical {
                    at,
                    rule: "extension types are not used",
                });
            }
        })
    }

    fn value(&mut self, depth: usize) -> Result<(), Error> {
        let at = self.at;
        match self.head()? {
            Head::Array(_) | Head::Map(_) if depth > DEPTH_MAX => Err(Error::TooDeep { at }),
            Head::Array(length) => (0..length).try_for_each(|_| self.value(depth + 1)),
            Head::Map(length) => {
                let mut before: Option<&str> = None;
                for _ in 0..length {
                    let at = self.at;
                    if self.canonical {
                        let Head::Text(key) = self.head()? else {
                            return Err(Error::NotCanonical {
                                at,
                                rule: "keys of maps are text",
                            });
                        };
                        let ascending = before.is_none_or(|before| before < key);
                        self.rule(ascending, at, "keys of maps ascend")?;
                        before = Some(key);
                    } else {
                        self.value(depth + 1)?;
                    }
                    self.value(depth + 1)?;
                }
                Ok(())
            }
            Head::Nil
            | Head::Bool(_)
            | Head::Unsigned(_)
            | Head::Signed(_)
            | Head::Float(_)
            | Head::Text(_)
            | Head::Bytes(_) => Ok(()),
        }
    }

    /// The value at hand as JSON; `check` has passed, so nesting and form are known to be good.
    fn json(&mut self) -> Result<Value, Error> {
        Ok(match self.head()? {
            Head::Nil => Value::Null,
            Head::Bool(value) => Value::Bool(value),
            Head::Unsigned(value) => Value::Number(value.into()),
            Head::Signed(value) => Value::Number(value.into()),
            Head::Float(value) => Number::from_f64(value).map_or(Value::Null, Value::Number),
            Head::Text(text) => Value::String(text.to_owned()),
            Head::Bytes(bytes) => Value::String(hex::encode(bytes)),
            Head::Array(length) => {
                let mut items = Vec::new();
                for _ in 0..length {
                    items.push(self.json()?);
                }
                Value::Array(items)
            }
            Head::Map(length) => {
                let mut fields = Map::new();
                for _ in 0..length {
                    let at = self.at;
                    let Head::Text(key) = self.head()? else {
                        return Err(Error::NotCanonical {
                            at,
                            rule: "keys of maps are text",
                        });
                    };
                    let value = self.json()?;
                    fields.insert(key.to_owned(), value);
                }
                Value::Object(fields)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>()
                // A whole one is an integer, and has a test of its own.
                .prop_filter("finite", |float| float.is_finite() && float.fract() != 0.0)
                .prop_map(Value::from),
            ".{0,40}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 64, 20, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Value::from),
                prop::collection::btree_map(".{0,12}", inner, 0..20)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn l2_json_survives_and_is_canonical(value in any_json()) {
            let bytes = from_json(&value).unwrap();
            check(&bytes).unwrap();
            prop_assert_eq!(to_json(&bytes).unwrap(), value);
        }

        #[test]
        fn l2_no_bytes_make_the_scan_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = check(&bytes);
            let _ = to_json(&bytes);
            let _ = decode_lenient::<Value>(&bytes);
        }

        #[test]
        fn l2_every_proper_prefix_is_refused(value in any_json()) {
            let bytes = from_json(&value).unwrap();
            for end in 0..bytes.len() {
                prop_assert!(check(&bytes[..end]).is_err());
            }
        }
    }

    #[test]
    fn l2_each_rule_of_the_canonical_form_is_held() {
        for (bytes, what) in [
            (&[0xcc, 0x7f][..], "small number in eight bits"),
            (&[0xcd, 0x00, 0xff], "byte in sixteen bits"),
            (&[0xd0, 0xff], "-1 in eight bits"),
            (&[0xd0, 0x05], "positive number as signed"),
            (&[0xd9, 0x01, b'a'], "short text with a long header"),
            (&[0xc5, 0x00, 0x01, 0xff], "short bytes with a long header"),
            (&[0xdc, 0x00, 0x00], "empty array with a long header"),
            (
                &[0x82, 0xa1, b'b', 0x01, 0xa1, b'a', 0x01],
                "keys that descend",
            ),
            (&[0x82, 0xa1, b'a', 0x01, 0xa1, b'a', 0x01], "a key twice"),
            (&[0x81, 0x01, 0x01], "a number as key"),
            (&[0xca, 0x00, 0x00, 0x00, 0x00], "a 32-bit float"),
            (&[0xcb, 0x7f, 0xf0, 0, 0, 0, 0, 0, 0], "infinity"),
            (&[0xd4, 0x01, 0x02], "an extension"),
            (&[0xa1, 0xff], "text that is not UTF-8"),
            (&[0x01, 0x01], "trailing bytes"),
            (&[], "nothing"),
            (&[0xdd, 0xff, 0xff, 0xff, 0xff], "an array of four billion"),
        ] {
            assert!(check(bytes).is_err(), "{what} was taken as canonical");
        }
    }

    #[test]
    fn l2_nesting_is_bounded_before_anything_is_built() {
        let mut deepest = vec![0x91; DEPTH_MAX];
        deepest.push(0xc0);
        check(&deepest).unwrap();
        let mut bomb = vec![0x91; 200_000];
        bomb.push(0xc0);
        assert!(matches!(check(&bomb), Err(Error::TooDeep { .. })));
        assert!(matches!(
            decode_lenient::<Value>(&bomb),
            Err(Error::TooDeep { .. })
        ));
        let nested = (0..=DEPTH_MAX).fold(json!(1), |inner, _| json!([inner]));
        assert!(matches!(from_json(&nested), Err(Error::TooDeep { .. })));
    }

    #[test]
    fn l2_a_whole_number_has_one_form_however_it_is_written() {
        for (written, form) in [
            ("60.0", "60"),
            ("6e1", "60"),
            ("-60.0", "-60"),
            ("-0.0", "0"),
            ("9007199254740992.0", "9007199254740992"),
        ] {
            let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(
                from_json(&value(written)).unwrap(),
                from_json(&value(form)).unwrap(),
                "{written}"
            );
        }
        for float in [0.5, 1e300, 9_007_199_254_740_994.0] {
            let bytes = from_json(&serde_json::json!(float)).unwrap();
            assert_eq!(bytes[0], 0xcb, "{float}");
        }
    }
}
