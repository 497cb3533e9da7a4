//! The requests of the load: the ETC-like mix.
//!
//! Sizes follow the fits of Atikoglu et al., "Workload analysis of a large-scale key-value store" (SIGMETRICS 2012, 5),
//! for their pool ETC, cut to keys of 20 to 70 bytes and values of 1 to 1024. Nine of ten requests are gets. All keys
//! are equally likely, and stored beforehand, so that gets hit.

use std::io::Write;

/// The number of keys.
const RECORDS: usize = 10_000;

/// The share of gets, in percent.
const GETS_PERCENT: u32 = 90;

const KEY_BYTES: std::ops::RangeInclusive<usize> = 20..=70;
const VALUE_BYTES: std::ops::RangeInclusive<usize> = 1..=1024;

/// The seed of sizes and keys, the same in each run.
const SEED: u64 = 0x0e7c;

/// The keys, and the lengths of their values.
#[derive(Clone, Debug)]
pub struct Mix {
    records: Vec<Record>,
    /// The bytes of all values.
    value: Vec<u8>,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    key: String,
    value_len: usize,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads the value of this record.
    Get(usize),
    /// Writes it.
    Set(usize),
}

impl Mix {
    /// Creates the ETC-like mix.
    pub fn etc() -> Self {
        let mut random = fastrand::Rng::with_seed(SEED);
        let records = (0..RECORDS).map(|number| record(number, &mut random)).collect();
        Self { records, value: vec![b'v'; *VALUE_BYTES.end()] }
    }

    /// Creates a mix of `records` keys with the longest values.
    pub fn large(records: usize) -> Self {
        let value_len = *VALUE_BYTES.end();
        let record = |number| Record { key: format!("{number:020}"), value_len };
        Self { records: (0..records).map(record).collect(), value: vec![b'v'; value_len] }
    }

    /// Returns a random request.
    pub fn draw(&self, random: &mut fastrand::Rng) -> Request {
        let record = random.usize(..self.records.len());
        if random.u32(..100) < GETS_PERCENT { Request::Get(record) } else { Request::Set(record) }
    }

    /// Returns the requests that store every record.
    pub fn store_all(&self) -> impl Iterator<Item = Request> + use<> {
        (0..self.records.len()).map(Request::Set)
    }

    /// Returns the length of this record's value.
    pub fn value_len(&self, record: usize) -> usize {
        self.records[record].value_len
    }

    /// Appends a request in memcached's text protocol.
    pub fn write(&self, request: Request, output: &mut Vec<u8>) {
        // Writing to a vector cannot fail.
        let _ = match request {
            Request::Get(record) => write!(output, "get {}\r\n", self.records[record].key),
            Request::Set(record) => {
                let Record { key, value_len } = &self.records[record];
                let _ = write!(output, "set {key} 0 0 {value_len}\r\n");
                output.extend(&self.value[..*value_len]);
                output.write_all(b"\r\n")
            }
        };
    }
}

/// Returns a record, whose key is unique by its number.
fn record(number: usize, random: &mut fastrand::Rng) -> Record {
    let key_len = within(&KEY_BYTES, || generalised_extreme_value(30.7984, 8.20449, 0.078688, random.f64()));
    let value_len = within(&VALUE_BYTES, || generalised_pareto(214.476, 0.348238, random.f64()));
    Record { key: format!("{number:0key_len$}"), value_len }
}

/// Returns the first length of `draw` within `range`.
fn within(range: &std::ops::RangeInclusive<usize>, mut draw: impl FnMut() -> f64) -> usize {
    loop {
        // The conversion saturates; NaN and negative lengths become 0.
        let len = draw().round() as usize;
        if range.contains(&len) {
            return len;
        }
    }
}

/// Returns the `u`-quantile of a generalised extreme value distribution.
fn generalised_extreme_value(location: f64, scale: f64, shape: f64, u: f64) -> f64 {
    location + scale / shape * ((-u.ln()).powf(-shape) - 1.0)
}

/// Returns the `u`-quantile of a generalised Pareto distribution with location 0.
fn generalised_pareto(scale: f64, shape: f64, u: f64) -> f64 {
    scale / shape * ((1.0 - u).powf(-shape) - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn sizes_and_the_share_of_gets_follow_the_mix() {
        let mix = Mix::etc();
        let keys: BTreeSet<_> = mix.records.iter().map(|record| &record.key).collect();
        assert_eq!(keys.len(), RECORDS);
        assert!(mix.records.iter().all(|record| KEY_BYTES.contains(&record.key.len())));
        assert!(mix.records.iter().all(|record| VALUE_BYTES.contains(&record.value_len)));
        let mean = |of: fn(&Record) -> usize| mix.records.iter().map(of).sum::<usize>() / RECORDS;
        // The medians of the fits are 34 and 168 bytes; the cut changes the means slightly.
        assert!((32..40).contains(&mean(|record| record.key.len())), "{}", mean(|record| record.key.len()));
        assert!((200..260).contains(&mean(|record| record.value_len)), "{}", mean(|record| record.value_len));

        let mut random = fastrand::Rng::with_seed(1);
        let gets = (0..100_000).filter(|_| matches!(mix.draw(&mut random), Request::Get(_))).count();
        assert!((89_000..91_000).contains(&gets), "{gets}");
    }

    #[test]
    fn each_run_has_the_same_records() {
        let (one, other) = (Mix::etc(), Mix::etc());
        assert_eq!(one.records, other.records);
    }

    #[test]
    fn requests_are_in_the_text_protocol() {
        let mix = Mix { records: vec![Record { key: "k".into(), value_len: 2 }], value: b"vvvv".to_vec() };
        let mut output = Vec::new();
        mix.write(Request::Set(0), &mut output);
        mix.write(Request::Get(0), &mut output);
        assert_eq!(output, b"set k 0 0 2\r\nvv\r\nget k\r\n");
    }
}
