//! What goes to stdout: lines, JSON and tables, and never a panic when nobody reads them.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use ledger_protocol::text::is_printable;
use serde_json::Value;

use crate::exit::{Code, Failure};

/// Columns of a table stand this many blanks apart.
const GAP: usize = 2;

/// The program's stdout. Everything else, errors and logs, goes to stderr.
pub(crate) struct Output {
    to: Box<dyn Write + Send>,
    terminal: bool,
}

impl Output {
    /// The real stdout.
    pub(crate) fn stdout() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        let to = Box::new(stdout);
        Self { to, terminal }
    }

    /// Prints one line, at once.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        let written = writeln!(self.to, "{text}").and_then(|()| self.to.flush());
        written.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::new(Code::NobodyReads, error),
            _ => Failure::new(Code::Failed, error),
        })
    }

    /// Prints JSON: indented for people at a terminal, one line for everything else.
    pub(crate) fn json(&mut self, value: &Value) -> Result<(), Failure> {
        if self.terminal {
            self.json_indented(value)
        } else {
            self.json_line(value)
        }
    }

    /// Prints JSON for people.
    pub(crate) fn json_indented(&mut self, value: &Value) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(value)?;
        self.line(&escape_controls_in_json(&text))
    }

    /// Prints JSON on one line.
    pub(crate) fn json_line(&mut self, value: &Value) -> Result<(), Failure> {
        let text = serde_json::to_string(value)?;
        self.line(&text)
    }

    /// Prints rows under headings, each column as wide as its longest cell.
    pub(crate) fn table(&mut self, headings: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
        self.table_of(headings, rows.iter().cloned())
    }

    /// The same for rows that are made twice, once to be measured and once to be printed, because
    /// all at once would take much memory.
    pub(crate) fn table_of(
        &mut self,
        headings: &[&str],
        rows: impl Iterator<Item = Vec<String>> + Clone,
    ) -> Result<(), Failure> {
        let headings: Vec<String> = headings.iter().map(|text| (*text).to_owned()).collect();
        let rows = std::iter::once(headings).chain(rows);
        let mut widths = Vec::new();
        for row in rows.clone() {
            widths.resize(row.len().max(widths.len()), 0);
            for (width, cell) in widths.iter_mut().zip(&row) {
                // What is put in the place of a character is one, too.
                *width = cell.chars().count().max(*width);
            }
        }
        // Nothing stands behind the last column, so it needs no filling up.
        if let Some(last) = widths.last_mut() {
            *last = 0;
        }
        for row in rows {
            let mut line = String::new();
            for (width, cell) in widths.iter().zip(&row) {
                // Writing to a string cannot fail.
                let _ = write!(line, "{:<1$}", printable(cell), width + GAP);
            }
            self.line(line.trim_end())?;
        }
        Ok(())
    }
}

/// Text for a terminal: what others wrote (names, reasons) must not move the cursor, ring the bell,
/// turn the direction of writing or pretend to be another line.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if is_printable(c) { c } else { '\u{fffd}' })
        .collect()
}

/// JSON leaves the control characters from U+007F to U+009F as they are, and what turns the
/// direction of writing; terminals obey them. They can only stand inside strings, where an escape
/// means the same.
pub(crate) fn escape_controls_in_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if c < '\u{7f}' || is_printable(c) {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(terminal: bool, print: impl FnOnce(&mut Output)) -> String {
        let kept = Kept::default();
        let to = Box::new(kept.clone());
        print(&mut Output { to, terminal });
        let bytes = kept.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn h2_json_is_pretty_for_people_and_one_line_for_machines() {
        let value = serde_json::json!({"items": [1, 2]});
        let machine = written(false, |output| output.json(&value).unwrap());
        assert_eq!(machine, "{\"items\":[1,2]}\n");
        let people = written(true, |output| output.json(&value).unwrap());
        assert_eq!(people, "{\n  \"items\": [\n    1,\n    2\n  ]\n}\n");
    }

    #[test]
    fn h2_columns_line_up_and_lines_have_no_trailing_blanks() {
        let rows = [
            vec!["a".to_owned(), "online".to_owned()],
            vec!["n\u{e4}me".to_owned(), String::new()],
        ];
        let table = written(false, |output| {
            output.table(&["NAME", "SESSION"], &rows).unwrap();
        });
        assert_eq!(table, "NAME  SESSION\na     online\nn\u{e4}me\n");
    }

    #[test]
    fn h2_what_others_wrote_cannot_steer_the_terminal() {
        let rows = [vec!["evil\u{1b}[2J\nname".to_owned()]];
        let table = written(true, |output| output.table(&["NAME"], &rows).unwrap());
        assert_eq!(table, "NAME\nevil\u{fffd}[2J\u{fffd}name\n");
        let json = serde_json::json!("a\u{9b}b");
        let shown = written(true, |output| output.json(&json).unwrap());
        assert_eq!(shown, "\"a\\u009bb\"\n");
    }

    #[test]
    fn h2_a_closed_pipe_is_no_failure() {
        let mut output = Output {
            to: Box::new(Closed),
            terminal: false,
        };
        let failure = output.line("gone").unwrap_err();
        assert_eq!(failure.code, Code::NobodyReads);
    }
}
