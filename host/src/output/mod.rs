//! The output of commands: tables and JSON on the standard output, notes on the error output.
//!
//! | module | contents |
//! |---|---|
//! | this | the outputs of a command |
//! | [`view`] | the JSON forms: field names are stable, and documented there |
//! | [`trace`] | the journal as a trace for Perfetto |
//! | [`charset`] | sparklines, bars and cut texts, in Unicode or in ASCII |
//! | [`human`] | durations, counts and times of day in readable form |
//! | [`mod@printable`] | the filter of control characters for terminals |
//! | [`progress`] | the progress display of operations longer than a second |

pub mod charset;
pub mod human;
pub mod printable;
pub mod progress;
pub mod trace;
pub mod view;

use comfy_table::{ContentArrangement, Table, presets};
use printable::{Console, printable, printable_line};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

/// Clears a terminal and moves the cursor to the top left.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";

/// The format of answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables and text.
    #[default]
    Table,
    /// JSON: one value, or one per line if the command follows something.
    Json,
}

/// The amount of output beside the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// Notes and errors.
    Notes,
    /// Errors only.
    Quiet,
}

/// The outputs of a command.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// The format of answers.
    pub format: Format,
    /// The amount of output beside them.
    pub verbosity: Verbosity,
}

impl Output {
    /// Prints an answer: `text` as a table or text, or `value` as JSON.
    ///
    /// # Errors
    /// The errors of the standard output.
    pub fn answer(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> io::Result<()> {
        match self.format {
            Format::Json => self.json(value),
            Format::Table => self.text(&text()),
        }
    }

    /// Prints a value as JSON, on lines of its own.
    ///
    /// # Errors
    /// The errors of the standard output.
    pub fn json(&self, value: &impl Serialize) -> io::Result<()> {
        raw(&ended(&serde_json::to_string_pretty(value)?))
    }

    /// Prints a value as JSON on one line.
    ///
    /// # Errors
    /// The errors of the standard output.
    pub fn json_line(&self, value: &impl Serialize) -> io::Result<()> {
        raw(&ended(&serde_json::to_string(value)?))
    }

    /// Prints a text, and ends its last line. A terminal gets it in [`printable()`] form.
    ///
    /// # Errors
    /// The errors of the standard output.
    pub fn text(&self, text: &str) -> io::Result<()> {
        raw(&ended(&if io::stdout().is_terminal() { printable(text) } else { text.into() }))
    }

    /// Clears the terminal and prints a text at its top. If the output is not a terminal, only prints the text.
    ///
    /// # Errors
    /// The errors of the standard output.
    pub fn screen(&self, text: &str) -> io::Result<()> {
        if io::stdout().is_terminal() {
            raw(CLEAR)?;
        }
        self.text(text)
    }

    /// Prints a cell's console output: through `console` on a terminal, unchanged elsewhere.
    ///
    /// # Errors
    /// The errors of the standard output.
    pub fn console(&self, console: &mut Console, bytes: &[u8]) -> io::Result<()> {
        if io::stdout().is_terminal() { raw(console.next(bytes).as_bytes()) } else { raw(bytes) }
    }

    /// Prints a note on the error output, unless the user asked for quiet.
    pub fn note(&self, text: &str) {
        if self.verbosity == Verbosity::Notes {
            error_line(text);
        }
    }
}

/// Prints text of a cell on the error output. A terminal gets it in [`printable()`] form.
pub fn error_text(text: &str) {
    if io::stderr().is_terminal() {
        text.lines().for_each(error_line);
    } else {
        eprint!("{text}");
    }
}

/// Prints a line on the error output. A terminal gets it in [`printable()`] form.
pub fn error_line(text: &str) {
    eprintln!("{}", for_error_output(text));
}

/// Returns a text for the error output: in [`printable()`] form if that is a terminal.
pub fn for_error_output(text: &str) -> Cow<'_, str> {
    if io::stderr().is_terminal() { printable(text) } else { text.into() }
}

fn ended(text: &str) -> Vec<u8> {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{end}").into_bytes()
}

fn raw(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Formats a table of columns under their headings, without borders. On a terminal every row is exactly one line.
pub fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let to_terminal = io::stdout().is_terminal();
    let one_line = |cell: String| if to_terminal { printable_line(&cell).into_owned() } else { cell };
    let rows = rows.into_iter().map(|row| row.into_iter().map(one_line).collect::<Vec<_>>());
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.iter().map(|heading| heading.to_string()));
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_with_their_headings() {
        let text = table(&["NAME", "STATE"], [vec!["a-long-name".into(), "running".into()]]);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines, ["NAME         STATE", "a-long-name  running"]);
    }
}
