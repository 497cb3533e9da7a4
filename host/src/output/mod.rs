//! What a person or a script sees: tables and JSON on the standard output, notes on the error output.
//!
//! | module | what |
//! |---|---|
//! | this | where a command prints to |
//! | [`view`] | the JSON forms: field names are stable, and documented there |
//! | [`trace`] | the journal as a trace for Perfetto |
//! | [`human`] | durations, counts and times of day for people |
//! | [`progress`] | a sign of life for what takes longer than a second |

pub mod human;
pub mod progress;
pub mod trace;
pub mod view;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::{self, Write};

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
        self.text(&serde_json::to_string_pretty(value)?)
    }

    /// Prints a value as JSON on one line.
    ///
    /// # Errors
    /// Whatever the standard output says.
    pub fn json_line(&self, value: &impl Serialize) -> io::Result<()> {
        self.text(&serde_json::to_string(value)?)
    }

    /// Prints a text, and ends its last line.
    ///
    /// # Errors
    /// Whatever the standard output says.
    pub fn text(&self, text: &str) -> io::Result<()> {
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        self.raw(format!("{text}{end}").as_bytes())
    }

    /// Prints bytes as they are, at once.
    ///
    /// # Errors
    /// Whatever the standard output says.
    pub fn raw(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }

    /// Says something beside the answer, unless asked to be quiet.
    pub fn note(&self, text: &str) {
        if self.talk == Talk::Notes {
            anstream::eprintln!("{text}");
        }
    }
}

/// Columns under their headings, without lines around them.
pub fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
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
