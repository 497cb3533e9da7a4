//! Captured frames for the host tool: all frames that a core receives from the device's queue, and all that the device
//! accepts from it.
//!
//! During a capture a [`TapQueue`] replaces each device queue, and forwards all calls to it; without a capture there is
//! no cost. Matching frames are copied into the ring of answers, in the memory of the report. If the ring is full
//! because its reader is slow, further frames are counted: a cell never waits for the reader. If the reader has not
//! read a full ring for [`STALL_LIMIT_NS`], the capture ends.

use super::{QUERIES, answers};
use crate::device;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use isola_abi::query::{CaptureSpec, Direction, FrameFilter, FrameHead, Line, PartialSum, Query};
use isola_ebbs::{Ebb, Representative, platform};
use isola_events::now;
use isola_iobuf::{Chain, IoBufMut};
use isola_net_stack::flow_of;
use isola_platform::VacatedMemory;
use isola_platform::network::{Frame, FramesPending, NetworkQueue, Offloads, ReceivedFrame};

/// The time without a read of a full ring after which the capture ends.
const STALL_LIMIT_NS: u64 = 10_000_000_000;

/// The least captured length of a frame, in bytes.
const MIN_SNAP_LEN: usize = 14;

static TAPS: Ebb<Taps> = Ebb::new();

/// The state of a capture that all cores share.
#[derive(Default)]
pub(super) struct CaptureState {
    /// The number of the last query.
    pub number: u32,
    /// Whether the capture continues.
    is_active: bool,
    /// The reader's position when a frame last found no room, and the time since which it has not changed.
    stalled: (u64, u64),
}

/// The tap of a core, which serves at most one queue.
#[derive(Default)]
struct Taps {
    /// The queue that the tap replaces.
    below: RefCell<Option<Box<dyn NetworkQueue + Send>>>,
    tap: Cell<Option<Tap>>,
    /// Whether the next frame to be sent was already captured: the device had no room for it.
    captured: Cell<bool>,
}

impl Representative for Taps {
    fn create() -> Self {
        Self::default()
    }
}

/// The parameters of a capture, and the number of its query.
#[derive(Clone, Copy)]
struct Tap {
    number: u32,
    spec: CaptureSpec,
}

/// Begins a capture, or ends the one that runs.
pub(super) fn answer(number: u32, query: &Query) {
    let mut state = QUERIES.frames.lock();
    *state = CaptureState { number, is_active: matches!(query, Query::Capture(_)), stalled: (0, 0) };
    answers().on(Line::Frames).begin(number);
    drop(state);
    match query {
        Query::Capture(spec) => {
            let tap = Tap { number, spec: *spec };
            device::on_queues(move |queue| TAPS.open(queue, tap));
        }
        Query::EndCapture
        | Query::Trace(_)
        | Query::Profile(_)
        | Query::Counters
        | Query::Connections { .. }
        | Query::Grid
        | Query::ChangeGrid(_)
        | Query::ChangeRules(_)
        | Query::Activities { .. }
        | Query::Processes { .. }
        | Query::MemoryParts
        | Query::OpenSession(_) => close(number),
    }
}

/// Removes the taps of this query or of earlier ones.
fn close(number: u32) {
    device::on_queues(move |queue| TAPS.close(queue, number));
}

impl Taps {
    fn open(&self, queue: &mut Box<dyn NetworkQueue + Send>, tap: Tap) {
        self.tap.set(Some(tap));
        let mut below = self.below.borrow_mut();
        if below.is_none() {
            self.captured.set(false);
            *below = Some(core::mem::replace(queue, Box::new(TapQueue)));
        }
    }

    fn close(&self, queue: &mut Box<dyn NetworkQueue + Send>, number: u32) {
        if self.tap.get().is_some_and(|tap| number.wrapping_sub(tap.number).cast_signed() >= 0) {
            self.tap.set(None);
            if let Some(below) = self.below.borrow_mut().take() {
                *queue = below;
            }
        }
    }

    /// Copies a frame into the ring if the filter matches. `rest` follows the `first` bytes.
    fn capture(&self, direction: Direction, sum: Option<PartialSum>, first: &[u8], rest: Option<&Chain>) {
        let Some(Tap { number, spec }) = self.tap.get() else { return };
        if !matches(&spec.filter, first, rest) {
            return;
        }
        let len = first.len() + rest.map_or(0, Chain::len);
        let unix_ns = platform().clock().unix_ns(now());
        let mut buffer = [0; FrameHead::MAX_ENCODED];
        let head = FrameHead { unix_ns, direction, len_bytes: len as u32, sum }.encode(&mut buffer);
        let captured = len.min((spec.snap_len as usize).max(MIN_SNAP_LEN));
        let mut left = captured;
        let cut = pieces(first, rest).map(move |piece| {
            let piece = piece.get(..left).unwrap_or(piece);
            left -= piece.len();
            piece
        });
        let mut state = QUERIES.frames.lock();
        if state.number != number || !state.is_active {
            return;
        }
        let ring = answers().on(Line::Frames);
        if ring.push_pieces(head.len() + captured, core::iter::once(head).chain(cut)).is_ok() {
            return;
        }
        let (read, now_ns) = (ring.read(), now().as_ns());
        if state.stalled.0 != read || state.stalled.1 == 0 {
            state.stalled = (read, now_ns);
        } else if now_ns.saturating_sub(state.stalled.1) > STALL_LIMIT_NS {
            state.is_active = false;
            // A reader that returns later sees that its query is not answered any more.
            ring.begin(0);
            drop(state);
            close(number);
        }
    }
}

/// Returns the bytes of a frame, in pieces.
fn pieces<'f>(first: &'f [u8], rest: Option<&'f Chain>) -> impl Iterator<Item = &'f [u8]> {
    core::iter::once(first).chain(rest.into_iter().flat_map(Chain::parts).map(|part| &**part))
}

/// Returns whether the filter matches a frame. Its `first` bytes usually have all headers, but not if a device has
/// merged short buffers, nor if the frame is an ICMP error, which quotes a packet.
fn matches(filter: &FrameFilter, first: &[u8], rest: Option<&Chain>) -> bool {
    if filter.is_all() {
        return true;
    }
    let of_whole = || {
        rest.filter(|rest| !rest.is_empty())
            .and_then(|_| flow_of(&pieces(first, rest).collect::<Vec<_>>().concat()))
    };
    let flow = flow_of(first).or_else(of_whole);
    flow.is_some_and(|flow| filter.matches(flow.local, flow.remote))
}

/// Replaces this core's queue.
struct TapQueue;

impl TapQueue {
    /// Calls the replaced queue, which exists as long as the tap does.
    fn below<T>(&self, call: impl FnOnce(&mut (dyn NetworkQueue + Send)) -> T) -> Option<T> {
        let mut below = TAPS.below.borrow_mut();
        below.as_mut().map(|queue| call(&mut **queue))
    }
}

impl NetworkQueue for TapQueue {
    fn vector(&self) -> Option<u8> {
        self.below(|queue| queue.vector()).flatten()
    }

    fn offloads(&self) -> Offloads {
        self.below(|queue| queue.offloads()).unwrap_or_default()
    }

    fn attach(&mut self) {
        self.below(|queue| queue.attach());
    }

    fn redirect(&mut self) {
        self.below(|queue| queue.redirect());
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        let received = self.below(|queue| queue.receive())??;
        TAPS.capture(Direction::In, None, &received.frame, received.rest.as_deref());
        Some(received)
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        // The caller first repeats the frame for which the device had no room.
        if !TAPS.captured.replace(false) {
            let segment_len = frame.segment_len;
            let sum =
                frame.checksum.map(|sum| PartialSum { start: sum.start, offset: sum.offset, segment_len });
            TAPS.capture(Direction::Out, sum, &frame.head, Some(&frame.payload));
        }
        let mut waiting = Some(frame);
        let sent = self.below(|queue| waiting.take().map_or(Ok(()), |frame| queue.send(frame)));
        sent.unwrap_or_else(|| waiting.map_or(Ok(()), Err)).inspect_err(|_| TAPS.captured.set(true))
    }

    fn flush(&mut self) {
        self.below(|queue| queue.flush());
    }

    fn reclaim(&mut self, recycle: &mut dyn FnMut(IoBufMut)) {
        self.below(|queue| queue.reclaim(recycle));
    }

    fn enable_interrupts(&mut self) -> FramesPending {
        self.below(|queue| queue.enable_interrupts()).unwrap_or(FramesPending::No)
    }

    fn disable_interrupts(&mut self) {
        self.below(|queue| queue.disable_interrupts());
    }

    fn has_failed(&self) -> bool {
        self.below(|queue| queue.has_failed()).unwrap_or_default()
    }

    fn vacate(&mut self, memory: &VacatedMemory) {
        self.below(|queue| queue.vacate(memory));
    }
}
