//! The baseline of the gate's counts in `benches/gate.toml`, and the comparison with it.

use super::Counts;
use crate::error::BenchError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The comment at the head of the file.
const HEAD: &str = "\
# The baseline of `cargo xtask gate`: guest instructions of the most important paths. A change that improves or worsens
# one by more than 2 % updates the baseline (`cargo xtask gate --write`), and its commit states the reason.
";

/// The largest difference from the baseline, in percent.
const TOLERANCE_PERCENT: f64 = 2.0;

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// Numbers of instructions, by name.
    instructions: BTreeMap<String, f64>,
}

impl Baseline {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`BenchError::File`], [`BenchError::Baseline`].
    pub fn load(path: &Path) -> Result<Self, BenchError> {
        let text = fs::read_to_string(path).map_err(BenchError::file(path))?;
        toml::from_str(&text)
            .map_err(|error| BenchError::Baseline { path: path.to_owned(), error: Box::new(error) })
    }

    /// Writes the file at `path` with `counts`.
    ///
    /// # Errors
    /// [`BenchError::File`].
    pub fn write(path: &Path, counts: &Counts) -> Result<(), BenchError> {
        let mut text = format!("{HEAD}\n[instructions]\n");
        for (name, count) in counts {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name} = {count:.1}");
        }
        fs::write(path, text).map_err(BenchError::file(path))
    }

    /// Returns a line for each of `counts` and for each name of the baseline without a count, and whether it passes.
    pub fn compare(&self, counts: &Counts) -> Vec<(bool, String)> {
        let missing = self.instructions.keys().filter(|name| !counts.contains_key(*name));
        let missing = missing.map(|name| (false, format!("{name}: in the baseline, but not counted")));
        counts.iter().map(|(name, &count)| self.compare_one(name, count)).chain(missing).collect()
    }

    fn compare_one(&self, name: &str, count: f64) -> (bool, String) {
        let Some(&written) = self.instructions.get(name) else {
            return (false, format!("{name}: {count:.1} instructions, not in the baseline"));
        };
        let difference = (count / written - 1.0) * 100.0;
        let line = format!("{name}: {count:.1} instructions, baseline {written:.1} ({difference:+.2} %)");
        if difference.abs() <= TOLERANCE_PERCENT {
            return (true, line);
        }
        let how = if difference > 0.0 { "worse" } else { "better" };
        (false, format!("{line}: {how} by more than {TOLERANCE_PERCENT} %"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, f64)]) -> Counts {
        of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    fn baseline() -> Baseline {
        Baseline { instructions: counts(&[("a", 1_000.0), ("b", 1_000.0)]) }
    }

    #[test]
    fn a_count_beyond_the_tolerance_fails_whether_worse_or_better() {
        let holds = |a: f64, b: f64| {
            baseline()
                .compare(&counts(&[("a", a), ("b", b)]))
                .iter()
                .map(|(holds, _)| *holds)
                .collect::<Vec<_>>()
        };
        assert_eq!(holds(1_000.0, 1_000.0), [true, true]);
        assert_eq!(holds(1_019.9, 980.1), [true, true]);
        assert_eq!(holds(1_020.1, 979.9), [false, false]);
        let (_, line) = &baseline().compare(&counts(&[("a", 900.0)]))[0];
        assert!(line.contains("better by more than 2 %"), "{line}");
    }

    #[test]
    fn a_name_in_only_one_of_counts_and_baseline_fails() {
        let lines = baseline().compare(&counts(&[("a", 1_000.0), ("c", 1.0)]));
        let failed: Vec<_> =
            lines.iter().filter(|(holds, _)| !holds).map(|(_, line)| line.as_str()).collect();
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert!(failed[0].starts_with("c:") && failed[1].starts_with("b:"), "{failed:?}");
    }

    #[test]
    fn a_written_baseline_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gate.toml");
        Baseline::write(&path, &counts(&[("a", 5.0), ("c", 7.5)])).unwrap();
        let read = Baseline::load(&path).unwrap();
        assert_eq!(read.instructions, counts(&[("a", 5.0), ("c", 7.5)]));
        fs::write(&path, "[instructions]\na = \"x\"\n").unwrap();
        let error = Baseline::load(&path).unwrap_err().to_string();
        assert!(error.contains("gate.toml") && error.contains("cargo xtask gate --write"), "{error}");
    }
}
