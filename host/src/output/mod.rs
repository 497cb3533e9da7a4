//! What a person or a script sees: tables and JSON on the standard output, notes on the error output.
//!
//! | module | what |
//! |---|---|
//! | this | where a command prints to |
//! | [`view`] | the JSON forms: field names are stable, and documented there |
//! | [`trace`] | the journal as a trace for Perfetto |
//! | [`human`] | durations, counts and times of day for people |
//! | [`mod@printable`] | control characters do not reach a terminal |
//! | [`progress`] | a sign of life for what takes longer than a second |

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

/// Clears a terminal, and goes to its top left.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";

/// How answers are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs: one JSON value, or one a line from what goes on and on.
    Json,
}

/// How much is said beside the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Talk {
    /// What a person would like to know.
    Notes,
    /// Errors alone.
    Quiet,
}

/// Where a command prints to.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// How answers are printed.
    pub format: Format,
    /// How much is said beside them.
    pub talk: Talk,
}

impl Output {
    /// Prints an answer; `text` is for people, `value` for programs.
    ///
    /// # Errors
    /// Whatever the standard output says.
    pub fn answer(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> io::Result<()> {
        match self.format {
            Format::Json => self.json(value),
            Format::Table => self.text(&text()),
        }
    }

    /// Prints a value as JSON, on lines of its own.
    ///
    /// # Errors
    /// Whatever the standard output says.
    pub fn json(&self, value: &impl Serialize) -> io::Result<()> {
        raw(&ended(&serde_json::to_string_pretty(value)?))
    }

    /// Prints a value as JSON on one line.
    ///
    /// # Errors
    /// Whatever the standard output says.
    pub fn json_line(&self, value: &impl Serialize) -> io::Result<()> {
        raw(&ended(&serde_json::to_string(value)?))
    }

    /// Prints a text, and ends its last line. A terminal gets it [`printable()`].
    ///
    /// # Errors
    /// Whatever the standard output says.
    pub fn text(&self, text: &str) -> io::Result<()> {
        raw(&ended(&if io::stdout().is_terminal() { printable(text) } else { text.into() }))
    }

    /// Clears the terminal and prints a text at its top; where the output is no terminal, prints the text.
    ///
    /// # Errors
    /// Whatever the standard output says.
    pub fn screen(&self, text: &str) -> io::Result<()> {
        if io::stdout().is_terminal() {
            raw(CLEAR)?;
        }
        self.text(text)
    }

    /// Prints what a cell's console says: to a terminal by way of `console`, elsewhere byte by byte.
    ///
    /// # Errors
    /// Whatever the standard output says.
    pub fn console(&self, console: &mut Console, bytes: &[u8]) -> io::Result<()> {
        if io::stdout().is_terminal() { raw(console.next(bytes).as_bytes()) } else { raw(bytes) }
    }

    /// Says something beside the answer, unless asked to be quiet.
    pub fn note(&self, text: &str) {
        if self.talk == Talk::Notes {
            error_line(text);
        }
    }
}

/// Prints a line on the error output. A terminal gets it [`printable()`].
pub fn error_line(text: &str) {
    eprintln!("{}", for_error_output(text));
}

/// A text for the error output: [`printable()`], where that is a terminal.
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

/// Columns under their headings, without lines around them. On a terminal, a row is one line whatever it says.
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
    fn columns_stand_under_their_headings() {
        let text = table(&["NAME", "STATE"], [vec!["a-long-name".into(), "running".into()]]);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines, ["NAME         STATE", "a-long-name  running"]);
    }
}
