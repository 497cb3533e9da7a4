//! The other queues of the device: they pass frames to neighbours on to the first core, which has the links.

use crate::headers::headers_of;
use crate::queue::{can_send, send_over_links};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use isola_ebbs::{CellEbb, Representative};
use isola_events::activity::INFRASTRUCTURE;
use isola_events::event::{Event, Placement};
use isola_iobuf::{Frame, IoBufMut};
use isola_net::neighbours::{LinkDrop, count_dropped};
use isola_platform::CoreIndex;
use isola_platform::VacatedMemory;
use isola_platform::network::{FramesPending, NetworkQueue, Offloads, ReceivedFrame};
use spin::Mutex;

static LINKED: CellEbb<LinkedMacs> = CellEbb::new();

/// The most frames that are passed on at once.
const MOST_BATCHED: usize = 64;

/// The hardware addresses with a link.
struct LinkedMacs {
    macs: Mutex<Vec<[u8; 6]>>,
    changes: AtomicU32,
}

impl Representative for LinkedMacs {
    fn create() -> Self {
        Self { macs: Mutex::default(), changes: AtomicU32::new(0) }
    }
}

/// Publishes the hardware addresses with a link, before any stack sends long frames to them.
pub(crate) fn publish(macs: &[[u8; 6]]) {
    *LINKED.macs.lock() = macs.to_vec();
    LINKED.changes.fetch_add(1, Ordering::Release);
}

/// A queue of another core than the first.
pub(crate) struct ForwardingQueue {
    device: Box<dyn NetworkQueue + Send>,
    /// The hardware addresses with a link, as of that number of changes.
    linked: (Vec<[u8; 6]>, u32),
    batch: Vec<Frame>,
}

impl ForwardingQueue {
    pub(crate) fn new(device: Box<dyn NetworkQueue + Send>) -> Self {
        Self { device, linked: (Vec::new(), 0), batch: Vec::new() }
    }

    fn is_linked(&mut self, frame: &Frame) -> bool {
        let changes = LINKED.changes.load(Ordering::Acquire);
        if self.linked.1 != changes {
            self.linked = (LINKED.macs.lock().clone(), changes);
        }
        let linked = &self.linked.0;
        !linked.is_empty() && headers_of(&frame.head).is_some_and(|headers| linked.contains(&headers.to))
    }

    fn pass_on(&mut self) {
        let batch = core::mem::take(&mut self.batch);
        if batch.is_empty() {
            return;
        }
        let count = batch.len();
        let event = Event::new().at(Placement::Core(CoreIndex(0))).charged_to(INFRASTRUCTURE);
        if event.try_spawn(move || send_over_links(batch)).is_err() {
            (0..count).for_each(|_| count_dropped(LinkDrop::Full));
        }
    }
}

impl NetworkQueue for ForwardingQueue {
    fn vector(&self) -> Option<u8> {
        self.device.vector()
    }

    fn offloads(&self) -> Offloads {
        self.device.offloads()
    }

    fn attach(&mut self) {
        self.device.attach();
    }

    fn redirect(&mut self) {
        self.device.redirect();
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        self.device.receive()
    }

    fn may_have_received(&self) -> bool {
        self.device.may_have_received()
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.is_linked(&frame) {
            self.batch.push(frame);
            if self.batch.len() >= MOST_BATCHED {
                self.pass_on();
            }
            return Ok(());
        }
        if !can_send(self.device.offloads(), &frame) {
            count_dropped(LinkDrop::Ended);
            return Ok(());
        }
        self.device.send(frame)
    }

    fn flush(&mut self) {
        self.pass_on();
        self.device.flush();
    }

    fn reclaim(&mut self, recycle: &mut dyn FnMut(IoBufMut)) {
        self.device.reclaim(recycle);
    }

    fn enable_interrupts(&mut self) -> FramesPending {
        self.device.enable_interrupts()
    }

    fn disable_interrupts(&mut self) {
        self.device.disable_interrupts();
    }

    fn vacate(&mut self, memory: &VacatedMemory) {
        self.device.vacate(memory);
    }

    fn has_failed(&self) -> bool {
        self.device.has_failed()
    }
}
