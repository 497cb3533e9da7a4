//! Errors of the command line that say more than those of `clap`: the nearest commands, and the form of a number.

use super::Cli;
use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use std::error::Error as _;
use std::num::{IntErrorKind, ParseIntError};

/// The most edits between a mistyped command and those that the error names.
const MOST_EDITS: usize = 2;

/// Returns the error of the command line `words`, with a tip if one is possible.
pub(super) fn explained(mut error: Error, words: &[String]) -> Error {
    let context = |kind| error.get(kind).map(ToString::to_string);
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let similar = context(ContextKind::InvalidSubcommand).map(|typed| nearest(&typed, words));
            if let Some(similar) = similar.filter(|similar| !similar.is_empty()) {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(similar));
            }
            error
        }
        ErrorKind::ValueValidation if is_no_number(&error) => {
            let value = context(ContextKind::InvalidValue).unwrap_or_default();
            let argument = context(ContextKind::InvalidArg).unwrap_or_default();
            let message =
                format!("invalid value '{value}' for '{argument}': write a whole number, as in 2\n");
            Error::raw(ErrorKind::ValueValidation, message)
        }
        _ => error,
    }
}

/// Returns the commands nearest to `typed`, of those that may follow the commands before it in `words`. `clap` compares
/// by the letters that match in about the same place: for `sp` it names `inspect`, and for `rnu` no command.
fn nearest(typed: &str, words: &[String]) -> Vec<String> {
    let mut command = Cli::command();
    for word in words.iter().take_while(|word| *word != typed) {
        // The value of an option can be called like a command, as in `--on run`.
        if let Some(inner) = command.find_subcommand(word).filter(|inner| inner.has_subcommands()) {
            command = inner.clone();
        }
    }
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
    let names: Vec<&str> = visible.map(clap::Command::get_name).collect();
    let edits = |name: &str| strsim::osa_distance(typed, name);
    let fewest = names.iter().map(|name| edits(name)).min().unwrap_or(usize::MAX);
    let is_near = |name: &&str| edits(name) == fewest && fewest <= MOST_EDITS && fewest < typed.len();
    names.into_iter().filter(is_near).map(str::to_owned).collect()
}

/// Returns whether the value is invalid because it is no whole number. The standard library says "invalid digit".
fn is_no_number(error: &Error) -> bool {
    let number = error.source().and_then(|source| source.downcast_ref::<ParseIntError>());
    number.is_some_and(|number| matches!(number.kind(), IntErrorKind::InvalidDigit | IntErrorKind::Empty))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn message(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        explained(Cli::try_parse_from(&words).expect_err("the line is invalid"), &words).to_string()
    }

    #[test]
    fn a_mistyped_command_names_the_nearest_ones() {
        for (line, expected) in [
            ("isola rnu kv", "a similar subcommand exists: 'run'"),
            ("isola sp", "some similar subcommands exist: 'up', 'ps', 'cp'"),
            ("isola inspct kv", "a similar subcommand exists: 'inspect'"),
            ("isola volume sl", "a similar subcommand exists: 'ls'"),
            ("isola --on run rnu kv", "a similar subcommand exists: 'run'"),
        ] {
            let text = message(line);
            assert!(text.contains(expected), "{line}: {text}");
        }
    }

    #[test]
    fn a_command_unlike_all_others_names_none() {
        for line in ["isola zzzzz kv", "isola volume zzzzz"] {
            let text = message(line);
            assert!(!text.contains("similar"), "{line}: {text}");
        }
    }

    #[test]
    fn a_number_that_is_none_names_the_form() {
        let text = message("isola run --cores x kv");
        assert_eq!(
            text.trim_end(),
            "error: invalid value 'x' for '--cores <CORES>': write a whole number, as in 2"
        );
    }
}
