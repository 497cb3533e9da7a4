//! The use of a device by each activity.

use alloc::collections::BTreeMap;
use isola_abi::id::ActivityId;
use isola_abi::ledger::Generation;
use isola_abi::query::ActivityTraffic;
use isola_activities::{APPLICATION, generation, traffic};
use isola_ebbs::current_core;
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

/// The use by all activities: the sum is that of the device, also when activities end.
#[derive(Default)]
pub(crate) struct Usages {
    of_latest: BTreeMap<ActivityId, (Generation, BlockUsage)>,
    /// The use by activities whose ids have new owners, and by those that had ended before a request completed.
    of_earlier: BlockUsage,
}

impl Usages {
    /// Returns the entry of an activity, which had this generation at the request.
    pub fn of(&mut self, activity: ActivityId, then: Generation) -> &mut BlockUsage {
        if generation(activity) != then {
            return &mut self.of_earlier;
        }
        let (of, usage) = self.of_latest.entry(activity).or_insert((then, BlockUsage::default()));
        if *of != then {
            self.of_earlier.include(usage);
            (*of, *usage) = (then, BlockUsage::default());
        }
        usage
    }

    pub fn get(&self, activity: ActivityId) -> BlockUsage {
        let current = |(of, _): &&(Generation, BlockUsage)| *of == generation(activity);
        self.of_latest.get(&activity).filter(current).map(|(_, usage)| *usage).unwrap_or_default()
    }

    /// Returns the use by activities that have ended.
    pub fn of_ended(&self) -> BlockUsage {
        let mut sum = self.of_earlier;
        let ended = self.of_latest.iter().filter(|(activity, (of, _))| generation(**activity) != *of);
        ended.for_each(|(_, (_, usage))| sum.include(usage));
        sum
    }
}

/// Counts a completed request as traffic of its activity, or of [`APPLICATION`] if that has ended.
pub(crate) fn count(activity: ActivityId, then: Generation, request: Option<&BlockRequest>, bytes: u64) {
    let traffic_of_request = match request {
        Some(BlockRequest::Read { .. }) => {
            ActivityTraffic { reads: 1, read_bytes: bytes, ..Default::default() }
        }
        Some(BlockRequest::Write { .. }) => {
            ActivityTraffic { writes: 1, written_bytes: bytes, ..Default::default() }
        }
        _ => return,
    };
    let owner = if generation(activity) == then { activity } else { APPLICATION };
    if let Some(counters) = traffic(owner, current_core().0 as usize) {
        counters.count(traffic_of_request);
    }
}

impl BlockUsage {
    /// Adds the use by another activity.
    fn include(&mut self, other: &Self) {
        let Self { reads, read_bytes, writes, written_bytes, others, failed, device_ns, ahead } = other;
        self.reads += reads;
        self.read_bytes += read_bytes;
        self.writes += writes;
        self.written_bytes += written_bytes;
        self.others += others;
        self.failed += failed;
        self.device_ns += device_ns;
        self.ahead += ahead;
    }

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
