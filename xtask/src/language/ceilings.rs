//! The ceilings: the highest permitted rate of each group of words in each area.
//!
//! A ceiling only falls, and not below its group's goal: [`Ceilings::lower`] lowers it to a lower rate, and leaves a
//! ceiling that a rate exceeds. A rate more than a tenth below its ceiling fails the check until the ceiling is
//! lowered.
//!
//! Both comparisons have one word of slack. In a small crate one word is a large part of the rate, and the removal of a
//! comment changes the rates of all other words. The slack is not part of the ceiling, so words cannot accumulate.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::count::{Area, Rate};
use super::{GROUPS, Group};
use crate::error::Error;
use crate::manifest::Manifest;
use crate::workspace::Workspace;

/// The number of words by which an area may exceed its ceiling, or fall below the limit of a tenth.
const SLACK: usize = 1;
/// The command that lowers ceilings.
const WRITE: &str = "cargo xtask language --write";

/// The head of the file.
const HEAD: &str = "\
# The most that each crate or folder of pages may have of the words that `xtask/src/language.rs` lists, per 1,000 words
# of its comments, messages and pages. `cargo xtask language --write` lowers ceilings to the counts, down to the goals in
# that file, and raises none.

[ceilings]
";

/// Returns the path of the ceilings' file.
pub fn path(workspace: &Workspace) -> PathBuf {
    workspace.root().join("xtask/language.toml")
}

/// The ceilings of all areas.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Ceilings {
    of: BTreeMap<String, [Rate; GROUPS.len()]>,
}

impl Ceilings {
    /// Reads the file at `path`. A missing file has no ceilings.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Toml`], or [`Error::Ceiling`] if an area has no ceiling for a group.
    pub fn read(path: &Path) -> Result<Self, Error> {
        match Manifest::read(path) {
            Err(Error::Read { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(Self::default()),
            file => Self::parse(&file?),
        }
    }

    fn parse(file: &Manifest) -> Result<Self, Error> {
        let mut of = BTreeMap::new();
        for (area, _) in file.table(&["ceilings"]) {
            let ceiling = |group: &Group| {
                let value = file.get(&["ceilings", area, group.key]).and_then(toml::Value::as_float);
                let tenths = value.and_then(tenths);
                tenths.ok_or_else(|| Error::Ceiling { area: area.to_owned(), group: group.key })
            };
            let [what, who, told] = &GROUPS;
            of.insert(area.to_owned(), [ceiling(what)?, ceiling(who)?, ceiling(told)?]);
        }
        Ok(Self { of })
    }

    /// Returns the violations of the ceilings in `areas`, one line each.
    pub fn failures(&self, areas: &BTreeMap<String, Area>) -> Vec<String> {
        let mut failures = Vec::new();
        for (name, area) in areas {
            let Some(ceilings) = self.of.get(name) else {
                failures.push(format!("{name}: has no ceilings yet; add them: {WRITE}"));
                continue;
            };
            for (index, (group, ceiling)) in GROUPS.iter().zip(ceilings).enumerate() {
                let (key, found) = (group.key, area.counts.found[index]);
                let rate = area.counts.rate(found);
                if area.counts.rate(found.saturating_sub(SLACK)) > *ceiling {
                    let worst = area.worst(index);
                    failures.push(format!("{name}: {key} {rate} is above {ceiling}; most in {worst}"));
                } else if area.counts.rate(found + SLACK).max(group.goal).tenths * 10 < ceiling.tenths * 9 {
                    failures.push(format!("{name}: {key} {rate} is far below {ceiling}; lower it: {WRITE}"));
                }
            }
        }
        let gone = self.of.keys().filter(|name| !areas.contains_key(*name));
        failures.extend(gone.map(|name| format!("{name}: has ceilings but no prose; remove them: {WRITE}")));
        failures
    }

    /// Lowers ceilings to the rates of `areas`, but not below the goals; adds those of new areas and removes those of
    /// missing areas.
    pub fn lower(&mut self, areas: &BTreeMap<String, Area>) {
        self.of.retain(|name, _| areas.contains_key(name));
        for (name, area) in areas {
            let mut rates = area.counts.rates();
            for (rate, group) in rates.iter_mut().zip(&GROUPS) {
                *rate = (*rate).max(group.goal);
            }
            let ceilings = self.of.entry(name.clone()).or_insert(rates);
            for (ceiling, rate) in ceilings.iter_mut().zip(rates) {
                *ceiling = rate.min(*ceiling);
            }
        }
    }

    /// Returns the text of the file.
    pub fn render(&self) -> String {
        let mut text = HEAD.to_owned();
        for (name, ceilings) in &self.of {
            let values = GROUPS.iter().zip(ceilings).map(|(group, rate)| format!("{} = {rate}", group.key));
            let _ = writeln!(text, "{name:?} = {{ {} }}", values.collect::<Vec<_>>().join(", "));
        }
        text
    }
}

/// Parses `value` as a rate; `None` if it is negative or not finite.
fn tenths(value: f64) -> Option<Rate> {
    let text = format!("{value:.1}");
    let (whole, tenth) = text.split_once('.')?;
    let (whole, tenth) = (whole.parse::<usize>().ok()?, tenth.parse::<usize>().ok()?);
    Some(Rate { tenths: whole * 10 + tenth })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one area, `a`, with `found` words of the first group among `words` words.
    fn areas_of(found: usize, words: usize) -> BTreeMap<String, Area> {
        let mut area = Area::default();
        area.add("a/src/lib.rs", &["what ".repeat(found), "word ".repeat(words - found)].concat());
        [("a".to_owned(), area)].into()
    }

    /// Returns one area, `a`, with `found` words of the first group in a thousand.
    fn areas(found: usize) -> BTreeMap<String, Area> {
        areas_of(found, 1000)
    }

    /// Returns the ceilings of a tree with `found` words.
    fn ceilings(found: usize) -> Ceilings {
        let mut ceilings = Ceilings::default();
        ceilings.lower(&areas(found));
        ceilings
    }

    #[test]
    fn a_rate_above_its_ceiling_by_more_than_a_word_fails_and_names_the_file() {
        assert_eq!(ceilings(20).failures(&areas(21)), [""; 0]);
        let failures = ceilings(20).failures(&areas(22));
        assert_eq!(failures, ["a: what 22.0 is above 20.0; most in a/src/lib.rs (22)"]);
    }

    #[test]
    fn a_comment_can_be_removed_from_a_small_area() {
        for (found, words) in [(2, 300), (2, 260), (1, 260)] {
            let mut small = Ceilings::default();
            small.lower(&areas_of(2, 300));
            assert_eq!(small.failures(&areas_of(found, words)), [""; 0], "{found} in {words}");
        }
    }

    #[test]
    fn words_within_the_slack_do_not_accumulate() {
        let mut written = ceilings(20);
        written.lower(&areas(21));
        assert_eq!(written.failures(&areas(22)).len(), 1);
    }

    #[test]
    fn the_ratchet_ends_at_the_goals() {
        let mut written = Ceilings::default();
        written.lower(&areas_of(0, 10_000));
        assert_eq!(written.of["a"], GROUPS.map(|group| group.goal));
        assert_eq!(written.failures(&areas_of(0, 10_000)), [""; 0]);
        assert_eq!(written.failures(&areas_of(15, 10_000)), [""; 0]);
        assert_eq!(written.failures(&areas_of(17, 10_000)).len(), 1);
    }

    #[test]
    fn a_rate_more_than_a_tenth_below_its_ceiling_fails_until_it_is_written() {
        assert_eq!(ceilings(20).failures(&areas(17)), [""; 0]);
        assert_eq!(ceilings(20).failures(&areas(16)).len(), 1);
        let mut lowered = ceilings(20);
        lowered.lower(&areas(16));
        assert_eq!(lowered, ceilings(16));
        assert_eq!(lowered.failures(&areas(16)), [""; 0]);
    }

    #[test]
    fn writing_does_not_raise_a_ceiling() {
        let mut kept = ceilings(20);
        kept.lower(&areas(30));
        assert_eq!(kept, ceilings(20));
        assert_eq!(kept.failures(&areas(30)).len(), 1);
    }

    #[test]
    fn an_area_without_ceilings_and_ceilings_without_an_area_fail_until_written() {
        assert_eq!(Ceilings::default().failures(&areas(1)).len(), 1);
        assert_eq!(ceilings(1).failures(&BTreeMap::new()).len(), 1);
        let mut emptied = ceilings(1);
        emptied.lower(&BTreeMap::new());
        assert_eq!(emptied, Ceilings::default());
    }

    #[test]
    fn the_file_reads_back_as_it_was_written() {
        let file = Manifest::parse(&ceilings(17).render()).expect("the written file parses");
        assert_eq!(Ceilings::parse(&file).expect("every group has a ceiling"), ceilings(17));
        let file = Manifest::parse("[ceilings]\na = { what = 1.0 }\n").expect("the test's TOML parses");
        assert!(matches!(Ceilings::parse(&file), Err(Error::Ceiling { group: "who", .. })));
    }

    #[test]
    fn a_missing_file_has_no_ceilings() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let ceilings = Ceilings::read(&folder.path().join("language.toml"));
        assert_eq!(ceilings.expect("a missing file is no error"), Ceilings::default());
    }
}
