//! The records of a profile: samples of what a cell's cores execute, encoded by postcard.
//!
//! A sample is the call stack of a core at a moment that the supervisor chose. Addresses are relative to each other,
//! which keeps most numbers short. Activities are numbers; a batch has the names of those that it mentions first.

use super::records::whole;
use super::{RecordError, TraceActivity};
use crate::id::ActivityId;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The maximum number of addresses of a sample: the interrupted instruction and 30 return addresses.
pub const MAX_SAMPLE_DEPTH: usize = 31;

/// The specification of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileSpec {
    /// The sampled cores, by index in the cell: core `n` is bit `n`. Absent cores are ignored.
    pub cores: u64,
}

/// A record of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProfileRecord {
    /// The start of the profile.
    Begin {
        /// The sampled cores, by index in the cell: core `n` is bit `n`.
        cores: u64,
    },
    /// Samples of a core.
    Samples(SampleBatch),
    /// A core that has no memory for its samples, and is not sampled.
    NoMemory {
        /// The core's index in the cell.
        core: u32,
    },
    /// The platform cannot sample: the cell runs without a supervisor.
    Unsupported,
    /// The profile continues. Sent if there is nothing else to send, so that the cell sees whether it is read.
    Alive,
}

/// The account to which a core's time is charged at a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SampleAccount {
    /// An event of this activity, or of a private one below it.
    Activity(ActivityId),
    /// The event loop.
    Loop,
    /// Handlers of interrupts and alarms.
    Interrupts,
    /// No work.
    Idle,
}

impl SampleAccount {
    /// Returns the word that encodes the account. Ids of activities are below the other accounts' words.
    pub const fn to_u32(self) -> u32 {
        match self {
            Self::Activity(activity) => activity.0,
            Self::Loop => u32::MAX - 2,
            Self::Interrupts => u32::MAX - 1,
            Self::Idle => u32::MAX,
        }
    }

    /// Decodes an account.
    pub const fn from_u32(word: u32) -> Self {
        const LOOP: u32 = SampleAccount::Loop.to_u32();
        const INTERRUPTS: u32 = SampleAccount::Interrupts.to_u32();
        const IDLE: u32 = SampleAccount::Idle.to_u32();
        match word {
            LOOP => Self::Loop,
            INTERRUPTS => Self::Interrupts,
            IDLE => Self::Idle,
            activity => Self::Activity(ActivityId(activity)),
        }
    }
}

/// A sample of a core that was not idle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackSample {
    /// The account that was charged.
    pub account: SampleAccount,
    /// The address of the interrupted instruction, then return addresses, innermost first. Never empty.
    pub addresses: Vec<u64>,
}

/// Successive samples of a core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleBatch {
    /// The core's index in the cell: the slot at which the sampled core was.
    pub core: u32,
    /// The number of samples of the core in which it had no work, since the profile's start.
    pub idle: u64,
    /// The number of samples of the core without room in its ring, since the profile's start.
    pub lost: u64,
    /// The activities that are mentioned for the first time, or have new names.
    pub activities: Vec<TraceActivity>,
    samples: Vec<EncodedSample>,
    /// The interrupted instruction of the last sample.
    #[serde(skip)]
    last: u64,
}

/// A sample. Its first address is relative to the first address of the sample before, or to 0; each other address to
/// the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EncodedSample {
    account: SampleAccount,
    steps: Vec<i64>,
}

impl SampleBatch {
    /// Creates an empty batch of a core.
    pub fn new(core: u32) -> Self {
        Self { core, ..Self::default() }
    }

    /// Adds a sample.
    pub fn push(&mut self, sample: &StackSample) {
        let mut before = self.last;
        let step =
            |address: &u64| address.wrapping_sub(core::mem::replace(&mut before, *address)).cast_signed();
        let steps = sample.addresses.iter().map(step).collect();
        self.last = sample.addresses.first().copied().unwrap_or(self.last);
        self.samples.push(EncodedSample { account: sample.account, steps });
    }

    /// Returns the samples.
    pub fn samples(&self) -> impl Iterator<Item = StackSample> {
        self.samples.iter().scan(0_u64, |first, encoded| {
            let mut address = *first;
            let next = |step: &i64| {
                address = address.wrapping_add_signed(*step);
                address
            };
            let addresses: Vec<u64> = encoded.steps.iter().map(next).collect();
            *first = addresses.first().copied().unwrap_or(*first);
            Some(StackSample { account: encoded.account, addresses })
        })
    }
}

impl ProfileRecord {
    /// Returns the encoded record.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// [`RecordError::Malformed`], also if a sample has no address or more than [`MAX_SAMPLE_DEPTH`].
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let record = whole(bytes)?;
        if let Self::Samples(batch) = &record {
            let is_valid = |sample: &EncodedSample| (1..=MAX_SAMPLE_DEPTH).contains(&sample.steps.len());
            if !batch.samples.iter().all(is_valid) {
                return Err(RecordError::Malformed);
            }
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    const CODE: u64 = 0xffff_ffff_8010_0000;

    fn sample(account: SampleAccount, addresses: &[u64]) -> StackSample {
        StackSample { account, addresses: addresses.to_vec() }
    }

    #[test]
    fn usual_samples_take_few_bytes() {
        let mut batch = SampleBatch::new(3);
        for number in 0..100_u64 {
            let addresses: Vec<u64> = (0..10).map(|depth| CODE + depth * 7_000 + number * 50).collect();
            batch.push(&sample(SampleAccount::Activity(ActivityId(3)), &addresses));
        }
        let len = ProfileRecord::Samples(batch).encode().len();
        assert!(len < 4_000, "{len} bytes for 100 samples of 10 addresses");
    }

    #[test]
    fn accounts_read_back_from_their_words() {
        let activity = SampleAccount::Activity(ActivityId(7));
        for account in [activity, SampleAccount::Loop, SampleAccount::Interrupts, SampleAccount::Idle] {
            assert_eq!(SampleAccount::from_u32(account.to_u32()), account);
        }
    }

    #[test]
    fn a_sample_without_or_with_too_many_addresses_is_refused() {
        for (count, is_valid) in
            [(0, false), (1, true), (MAX_SAMPLE_DEPTH, true), (MAX_SAMPLE_DEPTH + 1, false)]
        {
            let mut batch = SampleBatch::new(0);
            batch.push(&sample(SampleAccount::Loop, &[CODE]));
            batch.push(&sample(SampleAccount::Loop, &vec![CODE; count]));
            let decoded = ProfileRecord::decode(&ProfileRecord::Samples(batch).encode());
            assert_eq!(decoded.is_ok(), is_valid, "{count}");
        }
    }

    proptest! {
        #[test]
        fn samples_read_back(
            samples in proptest::collection::vec(
                (any::<u32>(), proptest::collection::vec(any::<u64>(), 1..MAX_SAMPLE_DEPTH + 1)), 0..20)
        ) {
            let samples: Vec<StackSample> = samples
                .into_iter()
                .map(|(word, addresses)| StackSample { account: SampleAccount::from_u32(word), addresses })
                .collect();
            let mut batch = SampleBatch::new(7);
            samples.iter().for_each(|sample| batch.push(sample));
            let record = ProfileRecord::decode(&ProfileRecord::Samples(batch).encode()).unwrap();
            let ProfileRecord::Samples(batch) = record else { panic!("{record:?}") };
            prop_assert_eq!(batch.core, 7);
            prop_assert_eq!(batch.samples().collect::<Vec<_>>(), samples);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(ProfileRecord::Samples(batch)) = ProfileRecord::decode(&bytes) {
                prop_assert!(batch.samples().map(|sample| sample.addresses.len()).sum::<usize>() <= bytes.len());
            }
        }
    }
}
