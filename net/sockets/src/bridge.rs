//! The interface for a queue in front of the device that forwards frames of other cells, as a service cell's switch does
//! (`isola-volume-service`). All functions are for the core that serves the first queue.

use crate::attribution::owner_of;
use crate::core_network::NETWORK;
use crate::device;
use alloc::vec::Vec;
use isola_abi::id::ActivityId;
use isola_platform::network::Frame;

/// Sends frames through the calling core's queue as traffic of an activity: in the order of the policy of
/// [`NETWORK_WRITE`](isola_resources::NETWORK_WRITE), within the limits of the activity. Frames that find no room wait; when
/// too many wait, they are dropped and counted.
pub fn send_for(activity: ActivityId, frames: Vec<Frame>) {
    device::send_for(owner_of(activity), frames);
}

/// Counts the bytes of frames that the device received for an activity.
pub fn count_received(activity: ActivityId, bytes: u64) {
    NETWORK.attribution.count_received(owner_of(activity), bytes);
}
