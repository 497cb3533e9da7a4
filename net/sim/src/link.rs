//! The properties of a network link.

use isola_net_stack::Duration;

/// The treatment of the frames that a host sends. Probabilities are in thousandths.
#[derive(Clone, Debug)]
pub struct Link {
    /// Delay of every frame.
    pub latency: Duration,
    /// Further random delay per frame, from zero to this. Frames are reordered if it exceeds the time between them.
    pub jitter: Duration,
    /// Probability that a frame is lost.
    pub loss: u32,
    /// Probability that a frame arrives twice.
    pub duplication: u32,
    /// Probability that a frame arrives with one bit changed.
    pub corruption: u32,
    /// Bytes per second that leave a host; `None` for no limit.
    pub rate: Option<u64>,
    /// Bytes that can wait for transmission if there is a rate; frames beyond that are lost.
    pub queue: u64,
    /// The longest frame that is forwarded, in bytes with the Ethernet header; `None` for no limit.
    pub longest: Option<usize>,
}

impl Link {
    /// Returns a fast network without faults.
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

    /// Returns a network with all kinds of faults.
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
