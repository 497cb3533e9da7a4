//! A network of two cells of one process, in memory: what one sends, the other receives.

use crate::core::HostedCore;
use isola_iobuf::{Chain, IoBuf};
use isola_platform::network::{
    FrameToSend, FramesPending, NetworkPort, NetworkQueue, ReceivedChecksum, ReceivedFrame,
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
    let (there, back) = (Arc::new(Wire::new(loss)), Arc::new(Wire::new(loss)));
    let port = |number, outgoing: &Arc<Wire>, incoming: &Arc<Wire>| NetworkPort {
        mac: [0x02, 0, 0, 0, 0, number],
        mtu: 1500,
        queues: vec![Box::new(LinkQueue { outgoing: outgoing.clone(), incoming: incoming.clone() })],
    };
    (port(1, &there, &back), port(2, &back, &there))
}

/// One direction.
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
}

struct LinkQueue {
    outgoing: Arc<Wire>,
    incoming: Arc<Wire>,
}

impl NetworkQueue for LinkQueue {
    fn vector(&self) -> u8 {
        VECTOR
    }

    fn offloads_checksums(&self) -> bool {
        false
    }

    fn attach(&mut self) {
        self.incoming.lock().receiver = HostedCore::current();
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        let frame = self.incoming.lock().frames.pop_front()?;
        Some(ReceivedFrame { frame: IoBuf::from(frame), checksum: ReceivedChecksum::Unchecked })
    }

    fn send(&mut self, frame: FrameToSend) -> Result<(), FrameToSend> {
        let mut wire = self.outgoing.lock();
        if wire.frames.len() >= CAPACITY {
            return Err(frame);
        }
        wire.sent += 1;
        if matches!(self.outgoing.loss, Loss::EveryNth(nth) if wire.sent.is_multiple_of(nth)) {
            return Ok(());
        }
        wire.frames.push_back(frame.frame.to_vec());
        if core::mem::take(&mut wire.armed)
            && let Some(receiver) = wire.receiver
        {
            receiver.interrupt(VECTOR);
        }
        Ok(())
    }

    fn flush(&mut self) {}

    fn reclaim(&mut self) -> Option<Chain> {
        None
    }

    fn enable_interrupts(&mut self) -> FramesPending {
        let mut wire = self.incoming.lock();
        if wire.frames.is_empty() {
            wire.armed = true;
            FramesPending::No
        } else {
            FramesPending::Yes
        }
    }

    fn disable_interrupts(&mut self) {
        self.incoming.lock().armed = false;
    }
}
