//! Something between a network device and the stack: it sees every frame, and lets through what it wants to.

use alloc::boxed::Box;
use isola_iobuf::IoBufMut;
use isola_platform::network::{Frame, FramesPending, NetworkPort, NetworkQueue, Offloads, ReceivedFrame};

/// Frames that are dropped in a row before others get their turn on the core.
const MAX_DROPPED: usize = 64;

/// What sees the frames of one queue, on the core that has it. What it gives back goes on, changed or as it was; what it
/// keeps, or lets go of, does not. Who changes a frame changes what it says of its checksum with it.
pub trait Filter: Send {
    /// A frame has come.
    fn received(&mut self, frame: ReceivedFrame) -> Option<ReceivedFrame> {
        Some(frame)
    }

    /// A frame is to be sent. It is seen once, however often the device has no room for it.
    fn sending(&mut self, frame: Frame) -> Option<Frame> {
        Some(frame)
    }
}

/// The device with what `make` makes, for the queue of that number, between each of its queues and the stack.
pub fn filter<F: Filter + 'static>(port: NetworkPort, make: impl Fn(usize) -> F) -> NetworkPort {
    let queues = port.queues.into_iter().enumerate();
    let filtered = queues.map(|(number, queue)| {
        let filter = make(number);
        Box::new(FilteredQueue { queue, filter, seen: Seen::No }) as Box<dyn NetworkQueue + Send>
    });
    NetworkPort { queues: filtered.collect(), ..port }
}

struct FilteredQueue<F> {
    queue: Box<dyn NetworkQueue + Send>,
    filter: F,
    /// Whether the filter has seen the frame that is to be sent next.
    seen: Seen,
}

enum Seen {
    Yes,
    No,
}

impl<F: Filter> NetworkQueue for FilteredQueue<F> {
    fn vector(&self) -> u8 {
        self.queue.vector()
    }

    fn offloads(&self) -> Offloads {
        self.queue.offloads()
    }

    fn attach(&mut self) {
        self.queue.attach();
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        // Who finds none asks for interrupts, is told that more wait, and comes again behind the core's other events.
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
        // What the device had no room for comes first again.
        let frame = match core::mem::replace(&mut self.seen, Seen::No) {
            Seen::Yes => Some(frame),
            Seen::No => self.filter.sending(frame),
        };
        let Some(frame) = frame else { return Ok(()) };
        self.queue.send(frame).inspect_err(|_| self.seen = Seen::Yes)
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
}
