//! Names of machines and cells: checks of machine names, and generated names for cells without one. `isola-abi` checks
//! the names of cells.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The maximum length of a machine's name, in bytes.
pub const MAX_MACHINE_NAME_LEN: usize = 32;

/// The machine that a command uses if its arguments name none.
pub const DEFAULT_MACHINE: &str = "default";

/// The name of a machine: letters, digits, `-` and `_`, with a letter or digit first. It is also the name of a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineName(String);

/// The error for a text that is not a valid machine name.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{0:?} cannot be a machine's name: use up to {MAX_MACHINE_NAME_LEN} letters, digits, '-' and '_', a letter or digit first"
)]
pub struct BadMachineName(String);

impl MachineName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MachineName {
    type Err = BadMachineName;

    fn from_str(text: &str) -> Result<Self, BadMachineName> {
        let first = text.starts_with(|first: char| first.is_ascii_alphanumeric());
        let all = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        if first && all && text.len() <= MAX_MACHINE_NAME_LEN {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadMachineName(text.chars().take(2 * MAX_MACHINE_NAME_LEN).collect()))
        }
    }
}

impl fmt::Display for MachineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

const KINDS: [&str; 24] = [
    "amber", "bold", "brisk", "calm", "clear", "deft", "eager", "fair", "fleet", "fresh", "glad", "keen",
    "light", "lucid", "merry", "neat", "nimble", "plain", "quick", "quiet", "sharp", "steady", "swift",
    "vivid",
];

const THINGS: [&str; 24] = [
    "atoll", "bay", "cay", "cliff", "coast", "cove", "delta", "dune", "fjord", "gull", "harbour", "holm",
    "inlet", "isle", "kelp", "lagoon", "pier", "reef", "sandbar", "shoal", "skerry", "strait", "tide",
    "tern",
];

/// Generates a name for which `taken` is false, such as `swift-lagoon`.
pub fn generate(taken: impl Fn(&str) -> bool) -> String {
    for round in 0_u32.. {
        let kind = KINDS[fastrand::usize(..KINDS.len())];
        let thing = THINGS[fastrand::usize(..THINGS.len())];
        let name = match round {
            0..20 => format!("{kind}-{thing}"),
            _ => format!("{kind}-{thing}-{}", fastrand::u32(2..100_000)),
        };
        if !taken(&name) {
            return name;
        }
    }
    unreachable!("a name is free after a finite number of rounds")
}

/// Returns the name in `known` that is most similar to `given`, if one has a Jaro-Winkler similarity above 0.8.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(given, name), name))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_names_cannot_leave_their_folder() {
        for good in ["default", "a", "x-1_y"] {
            assert!(good.parse::<MachineName>().is_ok(), "{good}");
        }
        let long = "x".repeat(MAX_MACHINE_NAME_LEN + 1);
        for bad in ["", ".", "..", "a/b", "a.lock", "-x", "ä", &long] {
            assert!(bad.parse::<MachineName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn generated_names_are_not_taken() {
        let name = generate(|name| !name.contains(char::is_numeric));
        assert!(name.contains(char::is_numeric), "{name}");
        let spec = |name: String| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        assert!(spec(generate(|_| false)));
    }

    #[test]
    fn a_misspelt_name_finds_its_nearest_match() {
        assert_eq!(nearest("prmes", ["kv", "primes"]), Some("primes"));
        assert_eq!(nearest("zebra", ["kv", "primes"]), None);
    }
}
