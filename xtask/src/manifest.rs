//! Manifests, with facts that cargo's metadata lack: lints, inheritance, comments.

use std::path::Path;

use toml::{Table, Value};

use crate::error::Error;
use crate::workspace;

/// A `Cargo.toml`.
pub struct Manifest {
    text: String,
    table: Table,
}

impl Manifest {
    /// Reads the manifest at `path`.
    ///
    /// # Errors
    /// [`Error::Read`] or [`Error::Toml`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::parse(&workspace::read(path)?)
            .map_err(|source| Error::Toml { path: path.to_owned(), source: Box::new(source) })
    }

    /// Parses a manifest.
    ///
    /// # Errors
    /// The position and cause of a TOML error.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        Ok(Self { text: text.to_owned(), table: text.parse()? })
    }

    /// Returns the value at `path`, which has one key for each level.
    pub fn get(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.table.get(*first)?, |value, key| value.get(key))
    }

    /// Returns the table at `path`; empty if there is none.
    pub fn table(&self, path: &[&str]) -> Vec<(&str, &Value)> {
        let table = self.get(path).and_then(Value::as_table);
        table.into_iter().flatten().map(|(key, value)| (key.as_str(), value)).collect()
    }

    /// Returns whether a comment line is directly above the line that sets `key` in `section`.
    pub fn is_commented(&self, section: &str, key: &str) -> bool {
        let heading = format!("[{section}]");
        let mut above = "";
        for line in self.text.lines().map(str::trim).skip_while(|line| *line != heading).skip(1) {
            if line.starts_with('[') {
                return false;
            }
            if line.split_once('=').is_some_and(|(name, _)| name.trim() == key) {
                return above.starts_with('#');
            }
            above = line;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(text: &str) -> Manifest {
        Manifest::parse(text).expect("the test's TOML parses")
    }

    #[test]
    fn a_comment_counts_only_directly_above_its_key_and_in_its_section() {
        let text = "[dependencies]\n# not here\nimage = \"1\"\n\n[features]\n# Why.\nimage = []\nbare = []\n";
        let manifest = manifest(text);
        assert!(manifest.is_commented("features", "image"));
        assert!(!manifest.is_commented("features", "bare"));
        assert!(!manifest.is_commented("features", "other"));
    }

    #[test]
    fn nested_values_are_found_by_path() {
        let manifest = manifest("[a.b]\nc = true\n");
        assert_eq!(manifest.get(&["a", "b", "c"]).and_then(Value::as_bool), Some(true));
        assert_eq!(manifest.get(&["a", "x", "c"]), None);
    }
}
