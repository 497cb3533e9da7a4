//! A packet filter between a network device and the stack: it receives every frame, and forwards, changes or drops it.

use alloc::boxed::Box;
use isola_iobuf::IoBufMut;
use isola_platform::VacatedMemory;
use isola_platform::network::{Frame, FramesPending, NetworkPort, NetworkQueue, Offloads, ReceivedFrame};

/// The most consecutive frames that are dropped before the core's other events run.
const MAX_DROPPED: usize = 64;

/// A filter for the frames of one queue, on the core that serves it. Returned frames are forwarded, changed or not;
/// others are not. A filter that changes a frame also updates its checksum state.
pub trait Filter: Send {
    /// Filters a received frame.
    fn received(&mut self, frame: ReceivedFrame) -> Option<ReceivedFrame> {
        Some(frame)
    }

    /// Filters a frame to be sent. Called once for each frame, even if the device has no room for it.
    fn sending(&mut self, frame: Frame) -> Option<Frame> {
        Some(frame)
    }
}

/// Returns the port with a filter between each queue and the stack. `make` creates the filter of the queue of that
/// number.
pub fn filter<F: Filter + 'static>(port: NetworkPort, make: impl Fn(usize) -> F) -> NetworkPort {
    let queues = port.queues.into_iter().enumerate();
    let filtered = queues.map(|(number, queue)| {
        let filter = make(number);
        Box::new(FilteredQueue { queue, filter, next: NextFrame::Unfiltered }) as Box<dyn NetworkQueue + Send>
    });
    NetworkPort { queues: filtered.collect(), ..port }
}

struct FilteredQueue<F> {
    queue: Box<dyn NetworkQueue + Send>,
    filter: F,
    next: NextFrame,
}

/// The state of the next frame to be sent.
enum NextFrame {
    Unfiltered,
    /// The filter has returned it, and the device had no room.
    Filtered,
}

impl<F: Filter> NetworkQueue for FilteredQueue<F> {
    fn vector(&self) -> Option<u8> {
        self.queue.vector()
    }

    fn offloads(&self) -> Offloads {
        self.queue.offloads()
    }

    fn attach(&mut self) {
        self.queue.attach();
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        // If the caller gets no frame, it enables interrupts, learns that more frames wait, and polls again behind the
        // core's other events.
        for _ in 0..MAX_DROPPED {
            if let Some(frame) = self.filter.received(self.queue.receive()?) {
                return Some(frame);
            }
        }
        None
    }

    fn may_have_received(&self) -> bool {
        self.queue.may_have_received()
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        // The caller first repeats the frame for which the device had no room.
        let frame = match core::mem::replace(&mut self.next, NextFrame::Unfiltered) {
            NextFrame::Filtered => Some(frame),
            NextFrame::Unfiltered => self.filter.sending(frame),
        };
        let Some(frame) = frame else { return Ok(()) };
        self.queue.send(frame).inspect_err(|_| self.next = NextFrame::Filtered)
    }

    fn flush(&mut self) {
        self.queue.flush();
    }

    fn reclaim(&mut self, recycle: &mut dyn FnMut(IoBufMut)) {
        self.queue.reclaim(recycle);
    }

    fn enable_interrupts(&mut self) -> FramesPending {
        self.queue.enable_interrupts()
    }

    fn disable_interrupts(&mut self) {
        self.queue.disable_interrupts();
    }

    fn vacate(&mut self, memory: &VacatedMemory) {
        self.queue.vacate(memory);
    }

    fn redirect(&mut self) {
        self.queue.redirect();
    }

    fn has_failed(&self) -> bool {
        self.queue.has_failed()
    }
}
