//! What may stand in a text that people give a thing to know it by: a name, a label, a key.
//!
//! Such texts are compared byte by byte and shown on terminals, in logs and on pages. A character
//! that shows nothing, or that turns round what stands beside it, makes two of them look alike, or
//! one of them look like something else.

use std::fmt;

/// What is wrong with a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A character that is not printable, and which one it is, from 1.
    Unprintable {
        /// The character.
        character: char,
        /// Its number in the text.
        number: usize,
    },
    /// A space at its beginning or end, which nobody sees.
    OuterSpace,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unprintable { character, number } => {
                let code = u32::from(*character);
                write!(
                    f,
                    "must have printable characters only; character {number} is U+{code:04X}"
                )
            }
            Self::OuterSpace => f.write_str("must not begin or end with a space"),
        }
    }
}

/// The first thing that is wrong with a text, if anything is.
pub fn flaw(text: &str) -> Option<Flaw> {
    let unprintable = text.chars().zip(1..).find(|(c, _)| !is_printable(*c));
    if let Some((character, number)) = unprintable {
        return Some(Flaw::Unprintable { character, number });
    }
    (text.starts_with(' ') || text.ends_with(' ')).then_some(Flaw::OuterSpace)
}

/// Whether a person sees something where the character stands, or the one space that all know.
///
/// These are the characters outside Unicode's categories Other (controls, formats such as the
/// bidirectional ones, surrogates, private use, unassigned) and Separator, but for the space; of
/// the rest, those are left out that Unicode wants to be shown as nothing.
pub fn is_printable(character: char) -> bool {
    // The standard library has the categories for its own escapes. A letter before the character
    // lets marks that join it, such as accents, stand as they are.
    let mut probe = [b'a', 0, 0, 0, 0];
    let end = 1 + character.encode_utf8(&mut probe[1..]).len();
    let escaped = str::from_utf8(&probe[..end]).is_ok_and(|probe| probe.escape_debug().count() > 2);
    let quoted = matches!(character, '"' | '\'' | '\\');
    (quoted || !escaped) && !is_shown_as_nothing(character)
}

/// Unicode's `Default_Ignorable_Code_Point` outside the category Other, and the empty Braille cell.
fn is_shown_as_nothing(character: char) -> bool {
    matches!(
        character,
        '\u{34f}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{ffa0}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a1_what_people_write_is_printable() {
        for text in [
            "k",
            "two words",
            "a'\"\\;--",
            "größe",
            "e\u{301}",
            "节点七",
            "узел",
            "हिन्दी",
            "עברית",
            "العربية",
            "\u{1f600}",
            "~!@#$%^&*()_+`{}|[]:;<>?,./",
        ] {
            assert_eq!(flaw(text), None, "{text}");
        }
    }

    #[test]
    fn a1_what_nobody_sees_is_not() {
        for character in [
            '\0',
            '\n',
            '\t',
            '\u{7f}',
            '\u{85}',
            '\u{a0}',
            '\u{ad}',
            '\u{34f}',
            '\u{61c}',
            '\u{115f}',
            '\u{180e}',
            '\u{200b}',
            '\u{200c}',
            '\u{200d}',
            '\u{200e}',
            '\u{200f}',
            '\u{2028}',
            '\u{2029}',
            '\u{202a}',
            '\u{202e}',
            '\u{2060}',
            '\u{2066}',
            '\u{2069}',
            '\u{206f}',
            '\u{2800}',
            '\u{3000}',
            '\u{3164}',
            '\u{e000}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{ffa0}',
            '\u{fff9}',
            '\u{ffff}',
            '\u{1d173}',
            '\u{e0001}',
            '\u{e0041}',
            '\u{e0100}',
            '\u{10ffff}',
        ] {
            let text = format!("ab{character}");
            let number = 3;
            assert_eq!(flaw(&text), Some(Flaw::Unprintable { character, number }));
        }
        for text in [" ", " a", "a "] {
            assert_eq!(flaw(text), Some(Flaw::OuterSpace), "{text:?}");
        }
    }
}
