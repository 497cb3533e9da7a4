//! Profiles: samples of what a cell's cores execute.
//!
//! | file | contents |
//! |---|---|
//! | this | the samples, summed up by stack |
//! | [`named`] | the same with the names of functions |
//! | [`folded`] | one line per stack, the input of flame graph programs |
//! | [`speedscope`] | a file for the viewer speedscope (speedscope.app) |
//! | [`functions`] | the functions with most samples |
//!
//! All data comes from the cell and is untrusted.

pub mod folded;
pub mod functions;
pub mod named;
pub mod speedscope;

use isola_abi::id::MAX_CORES;
use isola_abi::query::{ProfileRecord, SampleAccount};
use std::collections::BTreeMap;

/// The maximum number of different stacks, which bounds the memory that a cell can make the host tool use to some 100
/// MiB. Samples with other stacks count as lost.
const MAX_STACKS: usize = 1 << 18;

/// The maximum number of names of activities.
const MAX_NAMES: usize = 1 << 16;

/// The account of a sample, with its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Account {
    /// An event of the activity of that name.
    Activity(String),
    /// The event loop.
    Loop,
    /// Handlers of interrupts and alarms.
    Interrupts,
}

impl Account {
    /// Returns the account's name: `loop`, `interrupts`, or the activity's.
    pub fn name(&self) -> &str {
        match self {
            Self::Activity(name) => name,
            Self::Loop => "loop",
            Self::Interrupts => "interrupts",
        }
    }
}

/// The samples of a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// The number of samples by account and stack. Addresses are innermost first, the interrupted instruction, then
    /// return addresses.
    pub stacks: BTreeMap<(Account, Vec<u64>), u64>,
    /// The sampled cores.
    pub cores: Vec<u32>,
    /// The cores that had no memory for their samples.
    pub without_memory: Vec<u32>,
    /// Whether the cell's platform cannot sample.
    pub is_unsupported: bool,
    names: BTreeMap<u32, String>,
    /// By core: the last counters.
    counts: BTreeMap<u32, Counts>,
    /// Samples with stacks beyond [`MAX_STACKS`].
    beyond: u64,
}

/// The counters of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    idle: u64,
    lost: u64,
}

impl Profile {
    /// Adds a record.
    pub fn add(&mut self, record: &ProfileRecord) {
        let batch = match record {
            ProfileRecord::Begin { cores } => {
                self.cores = (0..u64::BITS).filter(|core| cores >> core & 1 == 1).collect();
                return;
            }
            ProfileRecord::NoMemory { core } => {
                if self.without_memory.len() < MAX_CORES {
                    self.without_memory.push(*core);
                }
                return;
            }
            ProfileRecord::Unsupported => {
                self.is_unsupported = true;
                return;
            }
            ProfileRecord::Alive => return,
            ProfileRecord::Samples(batch) => batch,
        };
        if batch.core < MAX_CORES as u32 {
            self.counts.insert(batch.core, Counts { idle: batch.idle, lost: batch.lost });
        }
        for named in &batch.activities {
            if self.names.len() < MAX_NAMES || self.names.contains_key(&named.activity) {
                self.names.insert(named.activity, named.name.clone());
            }
        }
        for sample in batch.samples() {
            let account = match sample.account {
                SampleAccount::Activity(id) => Account::Activity(
                    self.names.get(&id.0).cloned().unwrap_or_else(|| format!("activity {}", id.0)),
                ),
                SampleAccount::Loop => Account::Loop,
                SampleAccount::Interrupts => Account::Interrupts,
                // Idle samples are only counted; a cell that sends one contradicts the protocol.
                SampleAccount::Idle => continue,
            };
            let is_full = self.stacks.len() >= MAX_STACKS;
            let key = (account, sample.addresses);
            match self.stacks.get_mut(&key) {
                Some(count) => *count += 1,
                None if is_full => self.beyond += 1,
                None => _ = self.stacks.insert(key, 1),
            }
        }
    }

    /// Returns the number of samples in which a core executed something.
    pub fn busy(&self) -> u64 {
        self.stacks.values().sum()
    }

    /// Returns the number of samples in which a core had no work.
    pub fn idle(&self) -> u64 {
        self.counts.values().fold(0, |sum, counts| sum.saturating_add(counts.idle))
    }

    /// Returns the number of samples that were taken and are not in the profile.
    pub fn lost(&self) -> u64 {
        self.counts.values().fold(self.beyond, |sum, counts| sum.saturating_add(counts.lost))
    }

    /// Returns the number of busy samples by account, the largest first.
    pub fn accounts(&self) -> Vec<(Account, u64)> {
        let mut sums = BTreeMap::new();
        for ((account, _), count) in &self.stacks {
            *sums.entry(account.clone()).or_insert(0) += count;
        }
        let mut sums: Vec<(Account, u64)> = sums.into_iter().collect();
        sums.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        sums
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use isola_abi::id::ActivityId;
    use isola_abi::query::{SampleBatch, StackSample, TraceActivity};

    /// Returns a record of samples of a core: accounts with the addresses of their stacks.
    pub fn samples(core: u32, idle: u64, lost: u64, of: &[(SampleAccount, &[u64])]) -> ProfileRecord {
        let mut batch = SampleBatch::new(core);
        (batch.idle, batch.lost) = (idle, lost);
        batch.activities.push(TraceActivity { activity: 3, name: "web".into() });
        for (account, addresses) in of {
            batch.push(&StackSample { account: *account, addresses: addresses.to_vec() });
        }
        ProfileRecord::Samples(batch)
    }

    pub const WEB: SampleAccount = SampleAccount::Activity(ActivityId(3));

    #[test]
    fn samples_are_summed_up_by_account_and_stack() {
        let mut profile = Profile::default();
        profile.add(&ProfileRecord::Begin { cores: 0b101 });
        profile.add(&samples(0, 10, 1, &[(WEB, &[1, 2]), (WEB, &[1, 2]), (SampleAccount::Loop, &[1, 2])]));
        profile.add(&samples(2, 5, 2, &[(WEB, &[1, 3])]));
        // The counters are those since the start.
        profile.add(&samples(0, 12, 1, &[(SampleAccount::Activity(ActivityId(9)), &[7])]));
        assert_eq!(
            (&*profile.cores, profile.busy(), profile.idle(), profile.lost()),
            (&[0, 2][..], 5, 17, 3)
        );
        let web = Account::Activity("web".into());
        assert_eq!(profile.stacks[&(web.clone(), vec![1, 2])], 2);
        assert_eq!(
            profile.accounts(),
            [(web, 3), (Account::Activity("activity 9".into()), 1), (Account::Loop, 1)]
        );
    }

    #[test]
    fn a_hostile_cell_cannot_exhaust_memory_or_overflow_sums() {
        let mut profile = Profile::default();
        profile.add(&samples(0, u64::MAX, u64::MAX, &[]));
        profile.add(&samples(1, u64::MAX, u64::MAX, &[(SampleAccount::Idle, &[1])]));
        profile.add(&samples(u32::MAX, 5, 5, &[]));
        (0..1000).for_each(|core| profile.add(&ProfileRecord::NoMemory { core }));
        assert_eq!((profile.busy(), profile.idle(), profile.lost()), (0, u64::MAX, u64::MAX));
        assert_eq!((profile.without_memory.len(), profile.counts.len()), (MAX_CORES, 2));
        for number in 0..MAX_STACKS as u64 / 1000 + 2 {
            let addresses: Vec<[u64; 1]> = (0..1000).map(|one| [number * 1000 + one]).collect();
            let of: Vec<(SampleAccount, &[u64])> = addresses.iter().map(|one| (WEB, &one[..])).collect();
            profile.add(&samples(0, 0, 0, &of));
        }
        assert_eq!(profile.stacks.len(), MAX_STACKS);
        assert!(profile.beyond >= 1000);
    }
}
