//! A network of two cells of one process, or of several, in memory: a frame reaches the cell whose address it has, or all
//! others.

use crate::core::HostedCore;
use isola_iobuf::{IoBuf, IoBufMut};
use isola_platform::network::{
    Frame, FramesPending, NetworkPort, NetworkQueue, Offloads, ReceivedChecksum, ReceivedFrame,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The interrupt of a link's queues.
const VECTOR: u8 = 0x40;

/// Frames that a direction holds; further ones are refused.
const CAPACITY: usize = 256;

/// Which frames get lost on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// None.
    Never,
    /// Each of that number, in either direction.
    EveryNth(u64),
}

/// Two network devices that are connected to each other.
pub fn link(loss: Loss) -> (NetworkPort, NetworkPort) {
    let [one, other] = switch(loss);
    (one, other)
}

/// `N` network devices on one switch: a frame reaches the device whose address it has, or all others.
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

/// The address of a switch's device.
fn mac(number: usize) -> [u8; 6] {
    [0x02, 0, 0, 0, 0, number as u8 + 1]
}

/// What comes to one device.
struct Wire {
    loss: Loss,
    state: Mutex<WireState>,
}

#[derive(Default)]
struct WireState {
    frames: VecDeque<Vec<u8>>,
    sent: u64,
    receiver: Option<&'static HostedCore>,
    /// Whether the receiver wants to be interrupted at the next frame.
    armed: bool,
}

impl Wire {
    fn new(loss: Loss) -> Self {
        Self { loss, state: Mutex::default() }
    }

    /// Plain data: a thread that panicked with the lock held has left it whole.
    fn lock(&self) -> MutexGuard<'_, WireState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings a frame to the device, if it does not get lost on the way.
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

    /// The devices that a frame is for.
    fn receivers(&self, frame: &[u8]) -> Vec<usize> {
        let others = (0..self.wires.len()).filter(|number| *number != self.own);
        let named = frame.get(..6).and_then(|to| others.clone().find(|number| mac(*number) == to));
        named.map_or_else(|| others.collect(), |number| vec![number])
    }
}

impl NetworkQueue for LinkQueue {
    fn vector(&self) -> u8 {
        VECTOR
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
        // A frame for several reaches those that have room; one for a single device waits for it.
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
}
