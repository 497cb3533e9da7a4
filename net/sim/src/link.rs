//! How bad a network is.

use isola_net_stack::Duration;

/// What happens to the frames that a host sends. Chances are in thousandths.
#[derive(Clone, Debug)]
pub struct Link {
    /// Time that every frame takes.
    pub latency: Duration,
    /// Further time, anew for each frame from zero to this: more than the time between frames reorders them.
    pub jitter: Duration,
    /// Frames that vanish.
    pub loss: u32,
    /// Frames that arrive twice.
    pub duplication: u32,
    /// Frames that arrive with one bit changed.
    pub corruption: u32,
    /// Bytes a second that leave a host; `None` for no limit.
    pub rate: Option<u64>,
    /// Bytes that wait for their turn, where there is a rate; more are lost.
    pub queue: u64,
    /// The longest frame that gets through, in bytes with the Ethernet header; `None` for no limit.
    pub longest: Option<usize>,
}

impl Link {
    /// A fast network that works.
    pub fn good() -> Self {
        Self {
            latency: Duration::from_micros(50),
            jitter: Duration::ZERO,
            loss: 0,
            duplication: 0,
            corruption: 0,
            rate: None,
            queue: 256 << 10,
            longest: None,
        }
    }

    /// A network on which everything goes wrong now and then.
    pub fn bad() -> Self {
        Self {
            latency: Duration::from_millis(2),
            jitter: Duration::from_millis(1),
            loss: 20,
            duplication: 20,
            corruption: 10,
            ..Self::good()
        }
    }
}
