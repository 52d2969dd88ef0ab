//! Takes the secrets that a command was given out of what it tells (P6).
//!
//! What an executor returns may repeat what it was told: a page that echoes the request, an error that quotes it. Each
//! secret is looked for as it is and in the forms in which such pages write it, and gives way to `[secret NAME]`. So does
//! the larger part of a form that breaks off, and any part of one at the end of a text that was cut.

use std::{borrow::Cow, ops::Range};

use base64::{Engine as _, alphabet, engine};
use serde_json::Value;
use zeroize::{Zeroize as _, Zeroizing};

use crate::kinds::Finished;

/// The pieces of a secret that are looked for by themselves have at least so many bytes: `id` or `v1` would take the
/// sense from every answer. A password is always looked for.
const PIECE_BYTES_MIN: usize = 4;

/// Most pieces of a secret that are looked for by themselves: each takes a walk through what was answered.
const PIECES_MAX: usize = 64;
/// A part of a form is taken for the secret when it is its beginning, with at least so many bytes and half of it.
const PART_BYTES_MIN: usize = 8;
/// The letters of a base64 form that are looked for within something longer are at least so many.
const INNER_BYTES_MIN: usize = 8;

/// Base64 as people write it: with the padding or without.
const BASE64: engine::GeneralPurpose = engine::GeneralPurpose::new(
    &alphabet::STANDARD,
    engine::GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(engine::DecodePaddingMode::Indifferent),
);

/// What is looked for, and what takes its place.
#[derive(Default)]
pub(crate) struct Redaction {
    patterns: Vec<Pattern>,
}

struct Pattern {
    text: Zeroizing<String>,
    /// For each place, the length of the longest border of the text up to it (Knuth, Morris and Pratt), so that also
    /// occurrences that overlap are found, in linear time.
    borders: Vec<usize>,
    replacement: String,
}

impl std::fmt::Debug for Redaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redaction").finish_non_exhaustive()
    }
}

impl Redaction {
    /// Looks for this secret from now on.
    pub(crate) fn add(&mut self, name: &str, secret: &[u8]) {
        let replacement = format!("[secret {name}]");
        let whole = Zeroizing::new(String::from_utf8_lossy(secret).into_owned());
        let mut texts = vec![whole.clone(), Zeroizing::new(whole.trim().to_owned())];
        let mut parts = Vec::new();
        // The scheme of an Authorization field is none of the secret (RFC 9110, 11.4).
        if let Some((scheme, rest)) = whole.trim().split_once(' ') {
            texts.push(Zeroizing::new(rest.trim().to_owned()));
            parts.extend(pieces(rest));
            if scheme.eq_ignore_ascii_case("basic") {
                texts.extend(user_and_password(rest.trim()));
            }
        } else {
            parts.extend(pieces(&whole));
        }
        let mut ways: Vec<_> = texts.iter().flat_map(|text| encoded(text)).collect();
        texts.extend(parts);
        ways.extend(texts.iter().flat_map(|text| written(text)));
        texts.append(&mut ways);
        for text in texts {
            let is_known = || self.patterns.iter().any(|known| known.text == text);
            if !text.is_empty() && !is_known() {
                self.patterns.push(Pattern {
                    borders: borders(text.as_bytes()),
                    replacement: replacement.clone(),
                    text,
                });
            }
        }
    }

    /// How a command ended, without the secrets in any of its texts.
    pub(crate) fn finished(&self, finished: Finished) -> Finished {
        if self.patterns.is_empty() {
            return finished;
        }
        Finished {
            outcome: finished.outcome,
            reason: finished
                .reason
                .map(|reason| self.text(&reason).into_owned()),
            details: finished.details.map(|details| self.json(details)),
            result: finished.result.map(|result| self.json(result)),
        }
    }

    /// A JSON value without the secrets, in keys as well.
    fn json(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text).into_owned()),
            Value::Array(items) => items.into_iter().map(|item| self.json(item)).collect(),
            Value::Object(fields) => fields
                .into_iter()
                .map(|(key, value)| (self.text(&key).into_owned(), self.json(value)))
                .collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) => value,
        }
    }

    /// A text without the secrets. What two of them cover together goes as one.
    pub(crate) fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.text_of(text, Ends::Whole)
    }

    /// The same for a text of which the rest was not read: a secret may begin in it and end in the rest.
    pub(crate) fn text_of<'a>(&self, text: &'a str, ends: Ends) -> Cow<'a, str> {
        let mut found: Vec<(Range<usize>, &str)> = Vec::new();
        for pattern in &self.patterns {
            pattern.find(text, ends, &mut found);
        }
        if found.is_empty() {
            return Cow::Borrowed(text);
        }
        found.sort_by_key(|(place, _)| (place.start, std::cmp::Reverse(place.end)));
        let mut clean = String::with_capacity(text.len());
        let mut end = 0;
        for (place, replacement) in found {
            if place.start >= end {
                clean.push_str(&text[end..place.start]);
                clean.push_str(replacement);
            }
            end = end.max(place.end);
        }
        clean.push_str(&text[end..]);
        Cow::Owned(clean)
    }
}

/// How a text ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// By itself.
    Whole,
    /// Because no more of it was read.
    Cut,
}

impl Pattern {
    /// Every occurrence, and every beginning that breaks off late; those that overlap an earlier one of the same
    /// pattern are joined to it.
    fn find<'a>(&'a self, text: &str, ends: Ends, found: &mut Vec<(Range<usize>, &'a str)>) {
        let pattern = self.text.as_bytes();
        let first = found.len();
        let mut add = |place: Range<usize>| {
            // The pattern is UTF-8, but a part of it, or of the text, may end within a letter.
            let place = place.start..text.floor_char_boundary(place.end);
            match found[first..].last_mut() {
                Some((last, _)) if place.start <= last.end => last.end = last.end.max(place.end),
                Some(_) | None => found.push((place, &self.replacement)),
            }
        };
        let is_part = |length: usize| {
            length >= PART_BYTES_MIN.max(pattern.len().div_ceil(2)) && length < pattern.len()
        };
        let mut matched = 0;
        for (at, byte) in text.bytes().enumerate() {
            let before = matched;
            while matched > 0 && (matched == pattern.len() || pattern[matched] != byte) {
                matched = self.borders[matched - 1];
            }
            if pattern[matched] == byte {
                matched += 1;
            }
            if matched <= before && is_part(before) {
                add(at - before..at);
            }
            if matched == pattern.len() {
                add(at + 1 - matched..at + 1);
            }
        }
        let is_begun = ends == Ends::Cut && matched > 0;
        if is_begun || is_part(matched) {
            add(text.len() - matched..text.len());
        }
    }
}

fn borders(pattern: &[u8]) -> Vec<usize> {
    let mut borders = vec![0; pattern.len()];
    let mut matched = 0;
    for at in 1..pattern.len() {
        while matched > 0 && pattern[matched] != pattern[at] {
            matched = borders[matched - 1];
        }
        if pattern[matched] == pattern[at] {
            matched += 1;
        }
        borders[at] = matched;
    }
    borders
}

/// What stands between spaces and commas, and the values of `name="value"` among it.
fn pieces(text: &str) -> impl Iterator<Item = Zeroizing<String>> {
    let whole = text.split([' ', '\t', ',', ';']);
    let values = whole.clone().filter_map(|piece| {
        let (_, value) = piece.split_once('=')?;
        Some(value.trim_matches('"'))
    });
    whole
        .chain(values)
        .filter(|piece| piece.len() >= PIECE_BYTES_MIN)
        .take(PIECES_MAX)
        .map(|piece| Zeroizing::new(piece.to_owned()))
}

/// What the credentials of the scheme Basic stand for (RFC 7617): `user:password`, and the password.
fn user_and_password(credentials: &str) -> Vec<Zeroizing<String>> {
    let Ok(bytes) = BASE64.decode(credentials) else {
        return Vec::new();
    };
    let bytes = Zeroizing::new(bytes);
    let pair = Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned());
    let password = pair
        .split_once(':')
        .map(|(_, password)| password.to_owned());
    [Some(pair), password.map(Zeroizing::new)]
        .into_iter()
        .flatten()
        .collect()
}

/// The other ways to write a text: inside JSON, and inside a URL.
fn written(text: &str) -> Vec<Zeroizing<String>> {
    let mut ways = Vec::new();
    if let Ok(mut json) = serde_json::to_string(text) {
        ways.push(Zeroizing::new(json[1..json.len() - 1].to_owned()));
        ways.push(Zeroizing::new(json[1..json.len() - 1].replace('/', "\\/")));
        json.zeroize();
    }
    for (digits, is_form) in [
        (b"0123456789ABCDEF", false),
        (b"0123456789abcdef", false),
        (b"0123456789ABCDEF", true),
    ] {
        let mut url = Zeroizing::new(String::with_capacity(3 * text.len()));
        for byte in text.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    url.push(char::from(byte));
                }
                b' ' if is_form => url.push('+'),
                _ => {
                    url.push('%');
                    url.push(char::from(digits[usize::from(byte >> 4)]));
                    url.push(char::from(digits[usize::from(byte & 15)]));
                }
            }
        }
        ways.push(url);
    }
    ways
}

/// What a text becomes in a page or a dump: in HTML, as the common libraries escape it; in base64, by itself and
/// within something longer; in hex; letter by letter in JSON.
fn encoded(text: &str) -> Vec<Zeroizing<String>> {
    let mut ways = Vec::new();
    for [quote, apostrophe] in [
        ["&quot;", "&#x27;"],
        ["&quot;", "&#39;"],
        ["&quot;", "&#039;"],
        ["&#34;", "&#39;"],
        ["\"", "'"],
    ] {
        let html = text.replace('&', "&amp;").replace('<', "&lt;");
        let html = html.replace('>', "&gt;").replace('"', quote);
        ways.push(html.replace('\'', apostrophe));
    }
    for engine in [
        engine::general_purpose::STANDARD_NO_PAD,
        engine::general_purpose::URL_SAFE_NO_PAD,
    ] {
        ways.push(engine.encode(text));
        for before in 1..3 {
            // Without the letters that what stands before and after has a part in.
            let mut longer = Zeroizing::new(vec![0; before]);
            longer.extend_from_slice(text.as_bytes());
            let whole = Zeroizing::new(engine.encode(&longer));
            let end = longer.len() / 3 * 4;
            let inner = whole.get(before + 1..end).unwrap_or_default();
            if inner.len() >= INNER_BYTES_MIN {
                ways.push(inner.to_owned());
            }
        }
    }
    let hex = hex::encode(text);
    ways.push(hex.to_uppercase());
    ways.push(hex);
    ways.push(text.encode_utf16().fold(String::new(), |mut json, unit| {
        let digits = unit.to_be_bytes();
        json.push_str("\\u");
        json.push_str(&hex::encode(digits));
        json
    }));
    ways.into_iter().map(Zeroizing::new).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::kinds::Outcome;

    fn redaction(secret: &str) -> Redaction {
        let mut redaction = Redaction::default();
        redaction.add("bmc/rack-7", secret.as_bytes());
        redaction
    }

    #[test]
    fn p6_every_form_of_a_secret_gives_way_to_its_name() {
        let secret = format!("Basic {}", BASE64.encode("root:p/ss \"wörd\""));
        let redaction = redaction(&secret);
        for told in [
            secret.clone(),
            secret["Basic ".len()..].to_owned(),
            "root:p/ss \"wörd\"".to_owned(),
            "p/ss \"wörd\"".to_owned(),
            r#"p/ss \"wörd\""#.to_owned(),
            r#"p\/ss \"wörd\""#.to_owned(),
            "p%2Fss%20%22w%C3%B6rd%22".to_owned(),
            "p%2fss%20%22w%c3%b6rd%22".to_owned(),
            "p%2Fss+%22w%C3%B6rd%22".to_owned(),
        ] {
            let clean = redaction.text(&format!("<{told}>")).into_owned();
            assert_eq!(clean, "<[secret bmc/rack-7]>", "{told}");
        }
        let user = "the user root was let in by Basic authentication";
        assert_eq!(redaction.text(user), user);
    }

    #[test]
    fn p6_a_page_that_encodes_a_secret_keeps_none_of_it() {
        let pair = "root:KANARIE&<p>\"w'+/7f3a91";
        let secret = format!("Basic {}", BASE64.encode(pair));
        let (redaction, password) = (redaction(&secret), &pair["root:".len()..]);
        let html = password
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        let letters: Vec<_> = password
            .bytes()
            .map(|byte| format!("\\u{:04x}", u16::from(byte)))
            .collect();
        for told in [
            html.replace('"', "&quot;").replace('\'', "&#x27;"),
            html.replace('"', "&#34;").replace('\'', "&#39;"),
            html,
            letters.concat(),
            hex::encode(&secret),
            hex::encode_upper(password),
        ] {
            let clean = redaction.text(&format!("<b>{told}</b>")).into_owned();
            assert_eq!(clean, "<b>[secret bmc/rack-7]</b>", "{told}");
        }
        for before in ["", "x", "xx", "a longer beginning "] {
            for text in [&secret, pair, password] {
                let told = BASE64.encode(format!("{before}{text} and more"));
                let clean = redaction.text(&told);
                assert!(clean.contains("[secret bmc/rack-7]"), "{told} {clean}");
                // At both ends a letter may hold bits of what stands beside it.
                assert!(
                    clean.len() < told.len() - BASE64.encode(text).len() + 32,
                    "{clean}"
                );
            }
        }
    }

    #[test]
    fn p6_a_secret_that_breaks_off_leaves_at_most_its_smaller_half() {
        let token = "c4n4ry-0123456789abcdef-0123456789ab";
        let redaction = redaction(&format!("Bearer {token}"));
        let told = redaction
            .text("bad token c4n4ry-0123456789abcdef-01234****")
            .into_owned();
        assert_eq!(told, "bad token [secret bmc/rack-7]****");
        assert_eq!(
            redaction.text("Bearer of news, canary of the mine"),
            "Bearer of news, canary of the mine"
        );
    }

    #[test]
    fn p6_where_an_answer_was_cut_no_beginning_of_a_secret_stays() {
        let token: Vec<_> = (0..200).map(|number| format!("{number:03}")).collect();
        let secret = format!("Bearer é{}", token.concat());
        let redaction = redaction(&secret);
        let whole = format!("{secret}{secret}");
        for cut in (1..whole.len()).filter(|cut| whole.is_char_boundary(*cut)) {
            let clean = redaction.text_of(&whole[..cut], Ends::Cut);
            assert_eq!(clean, "[secret bmc/rack-7]", "{cut}");
        }
    }

    #[test]
    fn p6_a_secret_of_many_pieces_does_not_make_many_walks() {
        let secret = "abcd ".repeat(3_000);
        let pieces: Vec<String> = (0..3_000).map(|number| format!("{number:04}")).collect();
        for secret in [secret, pieces.join(" ")] {
            let patterns = redaction(&secret).patterns.len();
            assert!(patterns < 500, "{patterns}");
        }
    }

    #[test]
    fn p6_the_parts_of_other_schemes_are_found_by_themselves() {
        let redaction = redaction(r#"Digest username="root", response="6629fae49393""#);
        let told = redaction.text("response was 6629fae49393").into_owned();
        assert_eq!(told, "response was [secret bmc/rack-7]");
        assert_eq!(redaction.text("Digest"), "Digest");
    }

    #[test]
    fn p6_occurrences_that_overlap_leave_nothing() {
        let one = redaction("abab");
        assert_eq!(one.text("xababab"), "x[secret bmc/rack-7]");
        let mut two = redaction("abcd");
        two.add("other", b"cdef");
        assert_eq!(two.text("abcdef."), "[secret bmc/rack-7].");
        let long = "a".repeat(ledger_protocol::limits::SECRET_BYTES_MAX);
        let text = "a".repeat(1024 * 1024);
        assert_eq!(redaction(&long).text(&text), "[secret bmc/rack-7]");
    }

    #[test]
    fn p6_what_holds_secrets_shows_none() {
        let shown = format!("{:?}", redaction("Bearer c4n4ry-token"));
        assert_eq!(shown, "Redaction { .. }");
    }

    /// JSON with holes, each of which takes a text.
    fn with_holes() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-z ]{0,6}".prop_map(Value::from),
            "[a-zé\"\\\\\n]{0,6}".prop_map(|text| json!(format!("{text}{HOLE}{text}{HOLE}"))),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z]{0,3}(HOLE)?[a-z]{0,3}", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    const HOLE: &str = "HOLE";

    fn fill(value: Value, with: &str) -> Value {
        match value {
            Value::String(text) => Value::String(text.replace(HOLE, with)),
            Value::Array(items) => items.into_iter().map(|item| fill(item, with)).collect(),
            Value::Object(fields) => fields
                .into_iter()
                .map(|(key, value)| (key.replace(HOLE, with), fill(value, with)))
                .collect(),
            value => value,
        }
    }

    fn texts(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::String(text) => found.push(text.clone()),
            Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
            Value::Object(fields) => {
                for (key, value) in fields {
                    found.push(key.clone());
                    texts(value, found);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    proptest! {
        #[test]
        fn p6_nothing_that_an_executor_returns_holds_the_secret(
            result in with_holes(),
            details in with_holes(),
            reason in "[a-z]{0,4}(HOLE){0,2}",
            user in "[a-z]{1,8}",
            // Neither letters of the replacement alone, nor of what stands around the holes.
            password in "[0-9A-Z+/=_.:\"\\\\é-]{6,40}[0-9]",
            scheme in prop_oneof![Just(""), Just("Bearer "), Just("Basic ")],
            form in 0..4_usize,
        ) {
            let credentials = if scheme == "Basic " {
                BASE64.encode(format!("{user}:{password}"))
            } else {
                password.clone()
            };
            let secret = format!("{scheme}{credentials}");
            let forms = [
                secret.clone(),
                credentials.clone(),
                password.clone(),
                written(&secret)[form % 4].to_string(),
            ];
            let with = &forms[form];
            let clean = redaction(&secret).finished(Finished {
                outcome: Outcome::Failed,
                reason: Some(reason.replace(HOLE, with)),
                details: Some(fill(details, with)),
                result: Some(fill(result, with)),
            });
            let mut told = vec![clean.reason.unwrap()];
            texts(&clean.details.unwrap(), &mut told);
            texts(&clean.result.unwrap(), &mut told);
            for text in told {
                for held in [&secret, &credentials, &password, with] {
                    prop_assert!(!text.contains(held.as_str()), "{text:?} holds {held:?}");
                }
            }
        }
    }
}
