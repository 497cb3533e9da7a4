//! Spelling: known misspellings everywhere, British spelling in prose.
//!
//! The check uses two dictionaries of the `typos` project as libraries, and so needs no other tool. It looks for
//! misspellings in every word of every text file, including identifiers. It looks for American spellings only in prose
//! (Markdown and Rust comments, without text in backticks), because identifiers follow the libraries that they come
//! from (`Serialize`, `color`). `typos.toml` lists words that are correct here, in the format of the `typos` program.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use pulldown_cmark::{Event, Parser, Tag, TagEnd};
use typos::tokens::{Identifier, Tokenizer, Word};
use typos::{Dictionary, Status};
use unicase::UniCase;

use super::{Check, Findings};
use crate::error::Error;
use crate::manifest::Manifest;
use crate::workspace::{self, Workspace};

pub const CHECK: Check = Check {
    name: "spelling",
    about: "no known misspelling; prose is British",
    remedy: "correct the word; if it is right, add it to typos.toml under [default.extend-words]",
    run,
};

/// The extensions of checked files.
const TEXT: &[&str] = &["md", "rs", "toml", "sh", "s", "S", "ld"];

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let settings = Manifest::read(&workspace.root().join("typos.toml"))?;
    let words = settings.table(&["default", "extend-words"]);
    let words =
        words.into_iter().filter_map(|(word, value)| Some((word.to_lowercase(), value.as_str()?.to_owned())));
    let words: BTreeMap<String, String> = words.collect();
    let mut speller = Speller::new(&words);
    let mut failures = Vec::new();
    for path in workspace.files_ending_in(TEXT)? {
        let text = workspace::read(&path)?;
        let prose = match path.extension().and_then(|end| end.to_str()) {
            Some("md") => markdown_prose(&text),
            Some("rs") => comments(&text),
            _ => String::new(),
        };
        for typo in speller.misspelt(&text, &prose) {
            failures.push(format!("{}:{}", workspace.relative(&path), typo));
        }
    }
    Ok(Findings::of(failures))
}

/// Both dictionaries, and caches of correct words: most text of a tree repeats itself.
struct Speller<'w> {
    misspellings: KnownMisspellings<'w>,
    american: AmericanWords<'w>,
    right_anywhere: HashSet<String>,
    right_in_prose: HashSet<String>,
}

impl<'w> Speller<'w> {
    fn new(words: &'w BTreeMap<String, String>) -> Self {
        Self {
            misspellings: KnownMisspellings { words },
            american: AmericanWords { words },
            right_anywhere: HashSet::new(),
            right_in_prose: HashSet::new(),
        }
    }

    /// Returns the wrong words of a file, as `LINE: WORD: CORRECTION`. `prose` is its text with everything but prose
    /// replaced by spaces.
    fn misspelt(&mut self, text: &str, prose: &str) -> Vec<String> {
        let mut found = look_up(text, &self.misspellings, &mut self.right_anywhere);
        found.extend(look_up(prose, &self.american, &mut self.right_in_prose));
        found.sort();
        found.dedup();
        found.into_iter().map(|(line, what)| format!("{line}: {what}")).collect()
    }
}

/// Returns the words of `text` that `dictionary` corrects, with their lines. `right` caches words that passed before.
fn look_up(text: &str, dictionary: &dyn Dictionary, right: &mut HashSet<String>) -> Vec<(usize, String)> {
    let tokenizer = Tokenizer::new();
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for part in line.split_whitespace().filter(|part| part.contains(char::is_alphabetic)) {
            if right.contains(part) {
                continue;
            }
            let before = found.len();
            let typos = typos::check_str(part, &tokenizer, dictionary);
            found.extend(typos.map(|typo| (index + 1, describe(&typo))));
            if found.len() == before {
                right.insert(part.to_owned());
            }
        }
    }
    found
}

fn describe(typo: &typos::Typo) -> String {
    let correction = match &typo.corrections {
        Status::Corrections(words) => words.join(" or "),
        _ => "not a word".into(),
    };
    format!("{}: {correction}", typo.typo)
}

/// Returns the status of a word in `typos.toml`: correct, or its correction; `None` without an entry.
fn settled<'s>(words: &'s BTreeMap<String, String>, word: &str) -> Option<Status<'s>> {
    let word = word.to_lowercase();
    let correction = words.get(&word)?;
    Some(if *correction == word {
        Status::Valid
    } else {
        Status::Corrections(vec![Cow::Borrowed(correction)])
    })
}

/// Known misspellings.
struct KnownMisspellings<'w> {
    words: &'w BTreeMap<String, String>,
}

impl Dictionary for KnownMisspellings<'_> {
    fn correct_ident<'s>(&'s self, ident: Identifier<'_>) -> Option<Status<'s>> {
        // The plural of an acronym (`BARs`) is one word, not capitals and a second word `Rs`.
        let acronym = ident.token().strip_suffix('s').unwrap_or_default();
        let is_plural = acronym.len() > 1 && acronym.chars().all(char::is_uppercase);
        if is_plural { Some(Status::Valid) } else { settled(self.words, ident.token()) }
    }

    fn correct_word<'s>(&'s self, word: Word<'_>) -> Option<Status<'s>> {
        settled(self.words, word.token()).or_else(|| {
            let corrections = typos_dict::WORD.find(&UniCase::new(word.token()))?;
            Some(Status::Corrections(corrections.iter().copied().map(Cow::Borrowed).collect()))
        })
    }
}

/// Words with another spelling in British English.
struct AmericanWords<'w> {
    words: &'w BTreeMap<String, String>,
}

impl Dictionary for AmericanWords<'_> {
    fn correct_ident<'s>(&'s self, ident: Identifier<'_>) -> Option<Status<'s>> {
        // A word of prose has no digits, underscores or inner capitals; otherwise it is a name.
        let plain = ident.token().chars().all(char::is_alphabetic);
        let inner_capital = ident.token().chars().skip(1).any(char::is_uppercase);
        if !plain || inner_capital { Some(Status::Valid) } else { settled(self.words, ident.token()) }
    }

    fn correct_word<'s>(&'s self, word: Word<'_>) -> Option<Status<'s>> {
        settled(self.words, word.token()).or_else(|| {
            let british = typos_vars::Category::BritishIse;
            let variants = typos_vars::VARS.find(&UniCase::new(word.token()))?;
            let spelt_so = |categories: &u8| categories & british as u8 != 0;
            if variants.iter().any(|(categories, _)| spelt_so(categories)) {
                return None;
            }
            let corrections = variants.iter().flat_map(|(_, map)| typos_vars::corrections(british, **map));
            Some(Status::Corrections(corrections.copied().map(Cow::Borrowed).collect()))
        })
    }
}

/// Returns `text` with everything but prose replaced by spaces; lines keep their positions.
fn markdown_prose(text: &str) -> String {
    let mut prose = blank(text);
    let mut code_blocks = 0_usize;
    for (event, range) in Parser::new(text).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(_)) => code_blocks += 1,
            Event::End(TagEnd::CodeBlock) => code_blocks -= 1,
            Event::Text(_) if code_blocks == 0 => keep(&mut prose, text, range),
            _ => {}
        }
    }
    prose
}

/// Returns the comments of the Rust file `text`, with everything else and code in backticks replaced by spaces; lines
/// keep their positions.
fn comments(text: &str) -> String {
    let mut prose = blank(text);
    let mut offset = 0;
    let mut fenced = false;
    for line in text.split_inclusive('\n') {
        if let Some(start) = comment_start(line) {
            let body = &line[start..];
            if body.trim_start_matches(['/', '!', ' ']).starts_with("```") {
                fenced = !fenced;
            } else if !fenced {
                let mut at = offset + start;
                for (index, part) in body.split('`').enumerate() {
                    if index % 2 == 0 {
                        keep(&mut prose, text, at..at + part.len());
                    }
                    at += part.len() + 1;
                }
            }
        } else {
            fenced = false;
        }
        offset += line.len();
    }
    prose
}

/// Returns the offset of a line's comment. `//` within a word (an address) is no comment.
fn comment_start(line: &str) -> Option<usize> {
    line.match_indices("//")
        .map(|(at, _)| at)
        .find(|at| line[..*at].ends_with(' ') || line[..*at].trim().is_empty())
}

/// Returns `text` with all bytes but line breaks replaced by spaces.
fn blank(text: &str) -> String {
    text.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect()
}

/// Copies `range` of `text` into `prose`, which has the same length.
fn keep(prose: &mut String, text: &str, range: std::ops::Range<usize>) {
    if let Some(part) = text.get(range.clone())
        && part.is_ascii()
    {
        prose.replace_range(range, part);
    } else if let Some(part) = text.get(range.clone()) {
        // A byte of a multi-byte character is not valid text by itself.
        let part: String =
            part.bytes().map(|byte| if byte.is_ascii() { char::from(byte) } else { ' ' }).collect();
        prose.replace_range(range, &part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_markdown(text: &str) -> Vec<String> {
        Speller::new(&BTreeMap::new()).misspelt(text, &markdown_prose(text))
    }

    fn in_rust(text: &str) -> Vec<String> {
        Speller::new(&BTreeMap::new()).misspelt(text, &comments(text))
    }

    // Wrong words are split here, because the check reads this file as well.
    const WRONG: &str = concat!("rec", "ieve");
    const AMERICAN: &str = concat!("serial", "ize");

    #[test]
    fn misspellings_are_found_in_prose_and_in_names() {
        assert_eq!(in_markdown(&format!("One.\n\nTo {WRONG} is\n")), [format!("3: {WRONG}: receive")]);
        assert_eq!(in_rust(&format!("fn {WRONG}_all() {{}}\n")), [format!("1: {WRONG}: receive")]);
    }

    #[test]
    fn prose_is_british() {
        assert_eq!(in_markdown(&format!("To {AMERICAN}.\n")).len(), 1);
        assert_eq!(in_rust(&format!("/// Values — {AMERICAN}.\nfn f() {{}}\n")).len(), 1);
        assert_eq!(in_markdown("To serialise colour in the centre.\n"), [""; 0]);
    }

    #[test]
    fn names_follow_the_libraries_that_they_come_from() {
        assert_eq!(in_rust(&format!("use x::{AMERICAN}; // see `{AMERICAN}`\n")), [""; 0]);
        assert_eq!(in_markdown(&format!("`{AMERICAN}`\n\n```\n{AMERICAN}\n```\n")), [""; 0]);
        assert_eq!(in_rust(&format!("/// ```\n/// {AMERICAN}(x);\n/// ```\nfn f() {{}}\n")), [""; 0]);
    }

    #[test]
    fn acronyms_have_plurals() {
        assert_eq!(in_rust("// BARs and IPIs\n"), [""; 0]);
    }

    #[test]
    fn a_repeated_mistake_is_found_each_time() {
        assert_eq!(in_markdown(&format!("right {WRONG}\nright {WRONG}\n")).len(), 2);
    }

    #[test]
    fn typos_toml_overrides_the_dictionaries() {
        let words = [(WRONG.to_owned(), WRONG.to_owned())].into();
        assert_eq!(Speller::new(&words).misspelt(WRONG, WRONG), [""; 0]);
        let words = [("gizmo".to_owned(), "device".to_owned())].into();
        assert_eq!(Speller::new(&words).misspelt("gizmo", ""), ["1: gizmo: device"]);
    }
}
