//! Counts the words of each group in an area, per 1,000 words of its prose.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;

use super::GROUPS;

/// The most files that a failure names.
const WORST: usize = 3;

/// The prose of a crate, or of a folder of pages.
#[derive(Default)]
pub struct Area {
    /// The sum over its files.
    pub counts: Counts,
    files: Vec<(String, Counts)>,
}

impl Area {
    /// Adds the file `name`.
    pub fn add(&mut self, name: &str, prose: &str) {
        let counts = Counts::of(prose);
        self.counts.add(counts);
        self.files.push((name.to_owned(), counts));
    }

    /// Returns the files with the most words of `group`, each with its count.
    pub fn worst(&self, group: usize) -> String {
        let mut files: Vec<_> = self.files.iter().filter(|(_, counts)| counts.found[group] > 0).collect();
        files.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.found[group]));
        let named =
            files.iter().take(WORST).map(|(name, counts)| format!("{name} ({})", counts.found[group]));
        named.collect::<Vec<_>>().join(", ")
    }
}

/// Numbers of words.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// All words.
    pub words: usize,
    /// The words of each of [`GROUPS`].
    pub found: [usize; GROUPS.len()],
}

impl Counts {
    /// Counts the words of `prose`. A word has letters, digits and `_`, at least one of them a letter.
    pub fn of(prose: &str) -> Self {
        let mut counts = Self::default();
        let words = prose.split(|c: char| !c.is_alphanumeric() && c != '_');
        for word in words.filter(|word| word.contains(char::is_alphabetic)) {
            counts.words += 1;
            for (group, found) in GROUPS.iter().zip(&mut counts.found) {
                *found += usize::from(group.words.iter().any(|listed| word.eq_ignore_ascii_case(listed)));
            }
        }
        counts
    }

    fn add(&mut self, other: Self) {
        self.words += other.words;
        for (found, more) in self.found.iter_mut().zip(other.found) {
            *found += more;
        }
    }

    /// Returns the rate of each of [`GROUPS`].
    pub fn rates(&self) -> [Rate; GROUPS.len()] {
        self.found.map(|found| self.rate(found))
    }

    /// Returns the rate of `found` occurrences among these words.
    pub fn rate(&self, found: usize) -> Rate {
        Rate { tenths: (found * 10_000).div_ceil(self.words.max(1)) }
    }
}

/// Occurrences per 1,000 words, rounded up to a tenth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rate {
    /// Occurrences per 10,000 words.
    pub tenths: usize,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}", self.tenths / 10, self.tenths % 10))
    }
}

/// Returns the table of all areas, with their sum in its last line.
pub fn table(areas: &BTreeMap<String, Area>) -> String {
    let mut table = format!("{:<30}{:>8}", "per 1,000 words", "words");
    for group in &GROUPS {
        let _ = write!(table, "{:>8}", group.key);
    }
    table.push('\n');
    let mut sum = Counts::default();
    for (name, area) in areas {
        sum.add(area.counts);
        row(&mut table, name, &area.counts);
    }
    row(&mut table, "all", &sum);
    table
}

fn row(table: &mut String, name: &str, counts: &Counts) {
    let _ = write!(table, "{name:<30}{:>8}", counts.words);
    for rate in counts.rates() {
        let _ = write!(table, "{rate:>8}");
    }
    table.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_count_in_any_case() {
        let counts = Counts::of("What tells it? Somewhat, whatever 17; what's told_to - WHOM.");
        assert_eq!(counts, Counts { words: 9, found: [2, 1, 1] });
    }

    #[test]
    fn rates_are_per_thousand_words_and_rounded_up() {
        let counts = Counts { words: 3000, found: [9, 1, 0] };
        assert_eq!(counts.rates().map(|rate| rate.to_string()), ["3.0", "0.4", "0.0"]);
    }

    #[test]
    fn the_files_with_most_words_are_named_first() {
        let mut area = Area::default();
        area.add("few.rs", "what");
        area.add("none.rs", "which");
        area.add("many.rs", "what what");
        assert_eq!(area.worst(0), "many.rs (2), few.rs (1)");
        assert_eq!(area.counts.words, 4);
    }

    #[test]
    fn the_table_ends_with_the_sum() {
        let mut area = Area::default();
        area.add("a.rs", "what is this");
        let areas = [("a".to_owned(), area)].into();
        let table = table(&areas);
        assert_eq!(table.lines().count(), 3);
        assert!(
            table.lines().last().is_some_and(|line| line.starts_with("all") && line.contains("333.4")),
            "{table}"
        );
    }
}
