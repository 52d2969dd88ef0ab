//! Checkpoints (C2SP tlog-checkpoint): the text of a note that says what a log is at a size.

use std::fmt;

use super::lines::{Lines, Malformed, decimal, encode, hash};
use super::note::check_text;
use crate::merkle::Hash;

/// What a line before the extensions must be.
const ORIGIN: &str = "the origin, of a character or more";
const SIZE: &str = "the size, up to 9223372036854775807, decimal without leading zeros";
const ROOT: &str = "the root hash, 32 bytes in base64";
const EXTENSION: &str = "an extension, of a character or more";

/// A tree: how many leaves, and the root over them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TreeHead {
    /// How many leaves it has.
    pub size: u64,
    /// Its root.
    pub root: Hash,
}

/// What a log says of itself. Its text, by `Display`, is the text of the note that is signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    origin: String,
    head: TreeHead,
    extensions: Vec<String>,
}

impl Checkpoint {
    /// The checkpoint of a log, without extensions, which tlog-checkpoint advises against.
    pub fn new(origin: &str, head: TreeHead) -> Result<Self, Malformed> {
        let checkpoint = Self {
            origin: origin.to_owned(),
            head,
            extensions: Vec::new(),
        };
        // An origin of two lines, or a size that none may have, does not come back as it was.
        Self::parse(&checkpoint.to_string()).and_then(|read| {
            let (line, expected) = (1, ORIGIN);
            (read == checkpoint)
                .then_some(checkpoint)
                .ok_or(Malformed::Line { line, expected })
        })
    }

    /// Reads the text of a note.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        check_text(text)?;
        let mut lines = Lines::new(text);
        let some = |line: &str| (!line.is_empty()).then(|| line.to_owned());
        let origin = lines.next(ORIGIN, some)?;
        let size = lines.next(SIZE, decimal)?;
        let root = lines.next(ROOT, hash)?;
        let mut extensions = Vec::new();
        while !lines.rest().is_empty() {
            extensions.push(lines.next(EXTENSION, some)?);
        }
        Ok(Self {
            origin,
            head: TreeHead { size, root },
            extensions,
        })
    }

    /// Which log it is of.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The tree.
    pub const fn head(&self) -> &TreeHead {
        &self.head
    }

    /// Further lines, whose meaning only the log knows.
    pub fn extensions(&self) -> &[String] {
        &self.extensions
    }
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TreeHead { size, root } = &self.head;
        writeln!(f, "{}\n{size}\n{}", self.origin, encode(root))?;
        for extension in &self.extensions {
            writeln!(f, "{extension}")?;
        }
        Ok(())
    }
}
