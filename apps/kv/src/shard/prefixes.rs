//! The counts of requests by key prefix (`stats detail`). The prefix is the part of a key before its first colon.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

/// The byte that ends a prefix.
const DELIMITER: u8 = b':';

/// The largest number of prefixes of a shard. Requests for keys with further prefixes are not counted, so a client that
/// invents prefixes costs each shard at most 100 KB.
const MOST_PREFIXES: usize = 256;

/// The counts by prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefixes(BTreeMap<Box<[u8]>, Counts>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    reads: u64,
    hits: u64,
    stores: u64,
    deletes: u64,
}

impl Prefixes {
    #[cold]
    pub(super) fn read(&mut self, key: &[u8], is_hit: bool) {
        self.count(key, |counts| {
            counts.reads += 1;
            counts.hits += u64::from(is_hit);
        });
    }

    #[cold]
    pub(super) fn stored(&mut self, key: &[u8]) {
        self.count(key, |counts| counts.stores += 1);
    }

    #[cold]
    pub(super) fn deleted(&mut self, key: &[u8]) {
        self.count(key, |counts| counts.deletes += 1);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn count(&mut self, key: &[u8], count: impl FnOnce(&mut Counts)) {
        let Some(end) = memchr::memchr(DELIMITER, key) else { return };
        if let Some(counts) = key.get(..end).and_then(|prefix| self.entry(prefix)) {
            count(counts);
        }
    }

    fn entry(&mut self, prefix: &[u8]) -> Option<&mut Counts> {
        if !self.0.contains_key(prefix) {
            if self.0.len() >= MOST_PREFIXES {
                return None;
            }
            self.0.insert(prefix.into(), Counts::default());
        }
        self.0.get_mut(prefix)
    }

    /// Adds the counts of another shard.
    pub(crate) fn add(&mut self, other: &Self) {
        for (prefix, more) in &other.0 {
            let Some(counts) = self.entry(prefix) else { continue };
            counts.reads += more.reads;
            counts.hits += more.hits;
            counts.stores += more.stores;
            counts.deletes += more.deletes;
        }
    }

    /// Calls `sink` with the pieces of a line for each prefix, in memcached's format. Skips a prefix that would break
    /// its line, which keys of the binary protocol can contain.
    pub(crate) fn for_each_line(&self, sink: &mut dyn FnMut(&[u8])) {
        for (prefix, counts) in self.0.iter().filter(|(prefix, _)| fits_in_line(prefix)) {
            sink(b"PREFIX ");
            sink(prefix);
            let counts = [
                (" get ", counts.reads),
                (" hit ", counts.hits),
                (" set ", counts.stores),
                (" del ", counts.deletes),
            ];
            for (name, count) in counts {
                sink(name.as_bytes());
                sink(itoa::Buffer::new().format(count).as_bytes());
            }
            sink(b"\r\n");
        }
    }
}

/// Returns whether a key, or a part of it, is one word of a line.
pub(crate) fn fits_in_line(key: &[u8]) -> bool {
    key.iter().all(|byte| !matches!(byte, 0..=b' ' | 0x7f))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;

    fn lines(prefixes: &Prefixes) -> String {
        let mut bytes = Vec::new();
        prefixes.for_each_line(&mut |line| bytes.extend_from_slice(line));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn keys_are_counted_by_the_part_before_their_first_colon() {
        let mut prefixes = Prefixes::default();
        prefixes.stored(b"a:1:2");
        prefixes.read(b"a:3", true);
        prefixes.read(b"a:", false);
        prefixes.deleted(b":x");
        prefixes.read(b"without", true);
        assert_eq!(
            lines(&prefixes),
            "PREFIX  get 0 hit 0 set 0 del 1\r\nPREFIX a get 2 hit 1 set 1 del 0\r\n"
        );
    }

    #[test]
    fn new_prefixes_above_the_limit_are_not_counted_and_known_ones_still_are() {
        let mut prefixes = Prefixes::default();
        (0..2 * MOST_PREFIXES).for_each(|number| prefixes.stored(format!("p{number:04}:x").as_bytes()));
        assert_eq!(lines(&prefixes).lines().count(), MOST_PREFIXES);
        prefixes.stored(b"p0000:y");
        assert!(lines(&prefixes).starts_with("PREFIX p0000 get 0 hit 0 set 2 del 0\r\n"));
        let sum = &mut prefixes.clone();
        let mut other = Prefixes::default();
        other.stored(b"other:x");
        sum.add(&other);
        sum.add(&prefixes);
        assert_eq!(lines(sum).lines().count(), MOST_PREFIXES);
        assert!(lines(sum).starts_with("PREFIX p0000 get 0 hit 0 set 4 del 0\r\n"));
    }

    #[test]
    fn a_prefix_never_breaks_its_line() {
        let mut prefixes = Prefixes::default();
        prefixes.stored(b"a\r\nEND\r\n:x");
        prefixes.stored(b"b\0:x");
        assert_eq!(lines(&prefixes), "");
    }
}
