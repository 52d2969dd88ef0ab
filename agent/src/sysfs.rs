//! Reading `/proc` and `/sys`: bounded, cleaned, and absent rather than failed.

use std::{fs::File, io::Read, path::Path};

use crate::limits;

/// The text without control characters, without surrounding space and cut to a length. Firmware puts NULs and garbage
/// into its strings, and neither a database nor a terminal should have to cope with them.
pub(crate) fn clean(text: &str, chars_max: usize) -> String {
    let text: String = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect::<String>()
        .trim()
        .chars()
        .take(chars_max)
        .collect();
    text.trim_end().to_owned()
}

/// A single value, or nothing if there is none.
pub(crate) fn text(path: &Path) -> Option<String> {
    let value = clean(&read(path, 4096)?, limits::VALUE_CHARS_MAX);
    (!value.is_empty()).then_some(value)
}

/// A whole document, such as `/proc/cpuinfo`.
pub(crate) fn document(path: &Path) -> Option<String> {
    read(path, limits::DOCUMENT_BYTES_MAX)
}

/// A single number.
pub(crate) fn number(path: &Path) -> Option<i64> {
    text(path)?.parse().ok()
}

/// A single number that is not negative.
pub(crate) fn count(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

fn read(path: &Path, bytes_max: u64) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path)
        .ok()?
        .take(bytes_max)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last part of what a link points to: the name of a driver, a bus address.
pub(crate) fn link_name(path: &Path) -> Option<String> {
    let target = std::fs::read_link(path).ok()?;
    Some(clean(
        &target.file_name()?.to_string_lossy(),
        limits::VALUE_CHARS_MAX,
    ))
}

/// The names in a folder, numbers in them in numeric order (`nvme2n1` before `nvme10n1`); empty if there is no such folder.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort_by_cached_key(|name| natural(name));
    names
}

fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits_at = rest
            .find(|letter: char| letter.is_ascii_digit())
            .unwrap_or(rest.len());
        let (word, tail) = rest.split_at(digits_at);
        let number_ends = tail
            .find(|letter: char| !letter.is_ascii_digit())
            .unwrap_or(tail.len());
        let (number, tail) = tail.split_at(number_ends);
        parts.push((word.to_owned(), number.parse().unwrap_or(u64::MAX)));
        rest = tail;
    }
    parts
}

/// How many numbers a kernel list such as `0-3,8` names.
pub(crate) fn list_length(ranges: &str) -> Option<u64> {
    let mut length: u64 = 0;
    for range in ranges.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        length = length.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(length)
}

/// The value of `key` in lines of the form `key: value` or `key : value`.
pub(crate) fn field<'a>(document: &'a str, key: &str) -> Option<&'a str> {
    document.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == key).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_cleaned_of_what_firmware_leaves_in_them() {
        assert_eq!(clean("  a\0b\u{7}\n", 10), "a b");
        assert_eq!(clean("abcdef", 3), "abc");
        assert_eq!(clean("ab   cd", 3), "ab");
    }

    #[test]
    fn kernel_lists_are_counted_and_nonsense_is_refused() {
        assert_eq!(list_length("0-1"), Some(2));
        assert_eq!(list_length("0,2-3,8-11\n"), Some(7));
        assert_eq!(list_length(""), None);
        assert_eq!(list_length("3-1"), None);
        assert_eq!(list_length("0-18446744073709551615"), None);
    }

    #[test]
    fn names_come_in_numeric_order() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["nvme10n1", "nvme2n1", "sda"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(names(folder.path()), ["nvme2n1", "nvme10n1", "sda"]);
        assert_eq!(names(&folder.path().join("none")), Vec::<String>::new());
    }
}
