//! A switched network of two or more cells of one process, in memory: a frame reaches the cell with its destination
//! address, or else all others.

use crate::core::HostedCore;
use isola_iobuf::{IoBuf, IoBufMut};
use isola_platform::VacatedMemory;
use isola_platform::network::{
    Frame, FramesPending, NetworkPort, NetworkQueue, Offloads, ReceivedChecksum, ReceivedFrame,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The vector of a link's queues.
const VECTOR: u8 = 0x40;

/// Frames queued per direction; further ones are refused.
const CAPACITY: usize = 256;

/// The frames that are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// None.
    Never,
    /// Every n-th frame, in either direction.
    EveryNth(u64),
}

/// Creates two network devices that are connected to each other.
pub fn link(loss: Loss) -> (NetworkPort, NetworkPort) {
    let [one, other] = switch(loss);
    (one, other)
}

/// Creates `N` network devices on one switch: a frame reaches the device with its destination address, or else all
/// others.
pub fn switch<const N: usize>(loss: Loss) -> [NetworkPort; N] {
    let wires: Arc<[Wire]> = (0..N).map(|_| Wire::new(loss)).collect();
    core::array::from_fn(|own| NetworkPort {
        mac: mac(own),
        mtu: 1500,
        headroom: 0,
        queues: vec![Box::new(LinkQueue { wires: wires.clone(), own })],
        spreading: None,
    })
}

/// Returns the address of a switch's device.
fn mac(number: usize) -> [u8; 6] {
    [0x02, 0, 0, 0, 0, number as u8 + 1]
}

/// The frames to one device.
struct Wire {
    loss: Loss,
    state: Mutex<WireState>,
}

#[derive(Default)]
struct WireState {
    frames: VecDeque<Vec<u8>>,
    sent: u64,
    receiver: Option<&'static HostedCore>,
    /// Whether the next frame interrupts the receiver.
    armed: bool,
}

impl Wire {
    fn new(loss: Loss) -> Self {
        Self { loss, state: Mutex::default() }
    }

    /// Ignores poisoning: this is plain data, valid even if a thread panicked with the lock held.
    fn lock(&self) -> MutexGuard<'_, WireState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a frame for the device, unless the frame is lost.
    fn put(&self, frame: Vec<u8>) {
        let mut wire = self.lock();
        wire.sent += 1;
        let lost = matches!(self.loss, Loss::EveryNth(nth) if wire.sent.is_multiple_of(nth));
        if lost || wire.frames.len() >= CAPACITY {
            return;
        }
        wire.frames.push_back(frame);
        if core::mem::take(&mut wire.armed)
            && let Some(receiver) = wire.receiver
        {
            receiver.interrupt(VECTOR);
        }
    }
}

struct LinkQueue {
    wires: Arc<[Wire]>,
    own: usize,
}

impl LinkQueue {
    fn incoming(&self) -> &Wire {
        &self.wires[self.own]
    }

    /// Returns the devices that receive a frame.
    fn receivers(&self, frame: &[u8]) -> Vec<usize> {
        let others = (0..self.wires.len()).filter(|number| *number != self.own);
        let named = frame.get(..6).and_then(|to| others.clone().find(|number| mac(*number) == to));
        named.map_or_else(|| others.collect(), |number| vec![number])
    }
}

impl NetworkQueue for LinkQueue {
    fn vector(&self) -> Option<u8> {
        Some(VECTOR)
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn attach(&mut self) {
        self.incoming().lock().receiver = HostedCore::current();
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        let frame = self.incoming().lock().frames.pop_front()?;
        Some(ReceivedFrame { frame: IoBuf::from(frame), rest: None, checksum: ReceivedChecksum::Unchecked })
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        let bytes = frame.to_vec();
        let receivers = self.receivers(&bytes);
        // A multicast frame reaches the devices that have room; a frame for a single device waits for room.
        if let [only] = receivers[..]
            && self.wires[only].lock().frames.len() >= CAPACITY
        {
            return Err(frame);
        }
        receivers.into_iter().for_each(|number| self.wires[number].put(bytes.clone()));
        Ok(())
    }

    fn flush(&mut self) {}

    fn reclaim(&mut self, _recycle: &mut dyn FnMut(IoBufMut)) {}

    fn enable_interrupts(&mut self) -> FramesPending {
        let mut wire = self.incoming().lock();
        if wire.frames.is_empty() {
            wire.armed = true;
            FramesPending::No
        } else {
            FramesPending::Yes
        }
    }

    fn disable_interrupts(&mut self) {
        self.incoming().lock().armed = false;
    }

    fn redirect(&mut self) {}

    fn vacate(&mut self, _: &VacatedMemory) {}

    fn has_failed(&self) -> bool {
        false
    }
}
