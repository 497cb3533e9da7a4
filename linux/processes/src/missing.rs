//! Calls and features that programs asked for and that do not exist.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use spin::Mutex;

/// The most different entries. Further ones are counted together.
const MOST_ENTRIES: usize = 1024;

/// Calls and features that do not exist, with the number of times that programs asked for them.
#[derive(Debug, Default)]
pub struct MissingCalls {
    counts: Mutex<BTreeMap<String, u64>>,
}

impl MissingCalls {
    /// Counts a call or feature.
    pub fn count(&self, name: &str) {
        let mut counts = self.counts.lock();
        match counts.get_mut(name) {
            Some(count) => *count += 1,
            None => {
                let name = if counts.len() < MOST_ENTRIES { name } else { "others" };
                *counts.entry(name.into()).or_default() += 1;
            }
        }
    }

    /// Returns all entries with their counts, the most frequent first.
    pub fn entries(&self) -> Vec<(String, u64)> {
        let mut entries: Vec<_> =
            self.counts.lock().iter().map(|(name, count)| (name.clone(), *count)).collect();
        entries.sort_by_key(|(_, count)| core::cmp::Reverse(*count));
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn entries_are_counted_and_bounded() {
        let missing = MissingCalls::default();
        missing.count("bpf");
        (0..2 * MOST_ENTRIES).for_each(|number| missing.count(&format!("call {number}")));
        missing.count("bpf");
        missing.count("call 5");
        let entries = missing.entries();
        assert_eq!(entries.len(), MOST_ENTRIES + 1);
        assert_eq!(entries[0], ("others".into(), MOST_ENTRIES as u64 + 1));
        assert!(entries[1..3].iter().all(|(name, count)| *count == 2 && (name == "bpf" || name == "call 5")));
    }
}
