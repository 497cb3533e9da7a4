//! The use of a device by each activity.

use alloc::collections::BTreeMap;
use isola_abi::id::ActivityId;
use isola_abi::ledger::Generation;
use isola_activities::generation;
use isola_platform::block::BlockRequest;

/// The use of a device by an activity, in requests to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockUsage {
    /// Completed reads.
    pub reads: u64,
    /// The bytes of these.
    pub read_bytes: u64,
    /// Completed writes.
    pub writes: u64,
    /// The bytes of these.
    pub written_bytes: u64,
    /// Completed requests of other types.
    pub others: u64,
    /// Requests that failed.
    pub failed: u64,
    /// The time of all requests in the device's queue, in nanoseconds.
    pub device_ns: u64,
    /// The number of requests in the device's queue at each submission, summed.
    pub ahead: u64,
}

/// The use by all activities.
#[derive(Default)]
pub(crate) struct Usages(BTreeMap<ActivityId, (Generation, BlockUsage)>);

impl Usages {
    /// Returns the entry of an activity. It begins anew if the id has a new owner.
    pub fn of(&mut self, activity: ActivityId) -> &mut BlockUsage {
        let generation = generation(activity);
        let (of, usage) = self.0.entry(activity).or_insert((generation, BlockUsage::default()));
        if *of != generation {
            (*of, *usage) = (generation, BlockUsage::default());
        }
        usage
    }

    pub fn get(&self, activity: ActivityId) -> BlockUsage {
        let current = |(of, _): &&(Generation, BlockUsage)| *of == generation(activity);
        self.0.get(&activity).filter(current).map(|(_, usage)| *usage).unwrap_or_default()
    }
}

impl BlockUsage {
    /// Adds a completed request.
    pub(crate) fn add(&mut self, request: Option<&BlockRequest>, bytes: u64, device_ns: u64, ahead: u16) {
        match request {
            Some(BlockRequest::Read { .. }) => {
                self.reads += 1;
                self.read_bytes += bytes;
            }
            Some(BlockRequest::Write { .. }) => {
                self.writes += 1;
                self.written_bytes += bytes;
            }
            _ => self.others += 1,
        }
        self.device_ns += device_ns;
        self.ahead += u64::from(ahead);
    }
}
