//! Flows with sources and sinks of any speed, that fail at any byte, and that are cancelled at any poll.

use isola_flows::{Flow, FlowError, Flowed, Sink, SinkEnd, Source, flow};
use isola_iobuf::{Chain, IoBuf};
use proptest::prelude::*;
use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The byte at a position.
fn byte(position: u64) -> u8 {
    (position.wrapping_mul(131) >> 3) as u8
}

#[derive(Default)]
struct Seen {
    read: u64,
    written: u64,
    most_between: u64,
    largest_request: usize,
    is_finished: bool,
    is_ended: bool,
}

/// Bytes in chunks of random lengths, with pauses.
struct RandomSource {
    len: u64,
    fails_at: Option<u64>,
    random: fastrand::Rng,
    seen: Rc<RefCell<Seen>>,
}

impl Source for RandomSource {
    type Error = &'static str;

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        most: usize,
        into: &mut Chain,
    ) -> Poll<Result<usize, Self::Error>> {
        assert!(most > 0);
        let mut seen = self.seen.borrow_mut();
        seen.largest_request = seen.largest_request.max(most);
        if self.random.u8(..3) == 0 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.fails_at.is_some_and(|at| seen.read >= at) {
            return Poll::Ready(Err("source"));
        }
        let left = self.fails_at.map_or(self.len, |at| at.min(self.len)) - seen.read;
        let count = (self.random.usize(1..=most) as u64).min(left);
        let mut rest: Vec<u8> = (seen.read..seen.read + count).map(byte).collect();
        while !rest.is_empty() {
            let tail = rest.split_off(self.random.usize(1..=rest.len()));
            into.push_back(IoBuf::from(std::mem::replace(&mut rest, tail)));
        }
        seen.read += count;
        seen.most_between = seen.most_between.max(seen.read - seen.written);
        Poll::Ready(Ok(count as usize))
    }
}

/// Takes random amounts, with pauses.
struct RandomSink {
    fails_at: Option<u64>,
    random: fastrand::Rng,
    seen: Rc<RefCell<Seen>>,
}

impl Sink for RandomSink {
    type Error = &'static str;

    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        from: &mut Chain,
    ) -> Poll<Result<usize, Self::Error>> {
        assert!(!from.is_empty());
        let mut seen = self.seen.borrow_mut();
        if self.random.u8(..3) == 0 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.fails_at.is_some_and(|at| seen.written >= at) {
            return Poll::Ready(Err("sink"));
        }
        let count = self.random.usize(1..=from.len());
        let taken = from.split_to(count).unwrap().to_vec();
        for (index, found) in taken.iter().enumerate() {
            assert_eq!(*found, byte(seen.written + index as u64), "byte {}", seen.written + index as u64);
        }
        seen.written += count as u64;
        Poll::Ready(Ok(count))
    }

    fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if self.random.bool() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.seen.borrow_mut().is_finished = true;
        Poll::Ready(Ok(()))
    }

    fn end(&mut self) {
        self.seen.borrow_mut().is_ended = true;
    }
}

type RandomFlow = Flow<RandomSource, RandomSink>;

fn random_flow(
    seed: u64,
    len: u64,
    source_fails_at: Option<u64>,
    sink_fails_at: Option<u64>,
) -> (RandomFlow, Rc<RefCell<Seen>>) {
    let seen = Rc::<RefCell<Seen>>::default();
    let random = fastrand::Rng::with_seed;
    let source = RandomSource { len, fails_at: source_fails_at, random: random(seed), seen: seen.clone() };
    let sink = RandomSink { fails_at: sink_fails_at, random: random(seed + 1), seen: seen.clone() };
    (flow(source, sink), seen)
}

/// Polls a flow up to `most` times.
fn poll<S: Source + Unpin, K: Sink + Unpin>(
    flow: Flow<S, K>,
    most: usize,
) -> Option<Flowed<S::Error, K::Error>> {
    let mut flow = pin!(flow);
    let mut context = Context::from_waker(Waker::noop());
    (0..most).find_map(|_| match flow.as_mut().poll(&mut context) {
        Poll::Ready(flowed) => Some(flowed),
        Poll::Pending => None,
    })
}

fn run<S: Source + Unpin, K: Sink + Unpin>(flow: Flow<S, K>) -> Flowed<S::Error, K::Error> {
    poll(flow, 1 << 20).expect("the flow ends")
}

proptest! {
    #[test]
    fn all_bytes_arrive_in_order_within_the_window(seed: u64, len in 0_u64..50_000, window in 1_usize..9_000) {
        let (flow, seen) = random_flow(seed, len, None, None);
        let flowed = run(flow.window(window).sink_end(SinkEnd::EndAfterLast));
        let seen = seen.borrow();
        prop_assert_eq!((flowed.bytes, flowed.result), (len, Ok(())));
        prop_assert_eq!((seen.read, seen.written, seen.is_finished, seen.is_ended), (len, len, true, true));
        prop_assert!(seen.most_between <= window as u64 && seen.largest_request <= window);
        prop_assert!(flowed.statistics.most_waiting as u64 == seen.most_between);
    }

    #[test]
    fn a_flow_with_a_length_leaves_the_rest_in_the_source(seed: u64, len in 0_u64..20_000, wanted in 0_u64..20_000) {
        let (flow, seen) = random_flow(seed, len, None, None);
        let flowed = run(flow.window(3000).length(wanted).sink_end(SinkEnd::EndAfterLast));
        let seen = seen.borrow();
        prop_assert_eq!((seen.read, seen.written, flowed.bytes), (len.min(wanted), len.min(wanted), len.min(wanted)));
        prop_assert_eq!(seen.is_ended, wanted <= len);
        let expected = if wanted <= len { Ok(()) } else { Err(FlowError::TooShort(wanted - len)) };
        prop_assert_eq!(flowed.result, expected);
    }

    #[test]
    fn an_error_names_its_end_and_the_bytes_before_it_are_counted(
        seed: u64,
        source_at in proptest::option::of(0_u64..20_000),
        sink_at in proptest::option::of(0_u64..20_000),
    ) {
        let (flow, seen) = random_flow(seed, 20_000, source_at, sink_at);
        let flowed = run(flow.window(5000).sink_end(SinkEnd::EndAfterLast));
        let seen = seen.borrow();
        prop_assert_eq!(flowed.bytes, seen.written);
        match flowed.result {
            Ok(()) => prop_assert!(source_at.is_none() && sink_at.is_none_or(|at| at >= 20_000 || seen.written == 20_000)),
            Err(FlowError::Source("source")) => prop_assert_eq!(Some(seen.read), source_at),
            Err(FlowError::Sink("sink")) => prop_assert!(sink_at.is_some_and(|at| seen.written >= at)),
            other => prop_assert!(false, "{:?}", other),
        }
        prop_assert_eq!(seen.is_ended, flowed.result.is_ok());
    }

    #[test]
    fn a_flow_can_be_cancelled_at_each_poll(seed: u64, polls in 0_usize..60) {
        let (flow, seen) = random_flow(seed, 30_000, None, None);
        let flowed = poll(flow.window(2000), polls);
        let weak = Rc::downgrade(&seen);
        let (read, written) = (seen.borrow().read, seen.borrow().written);
        prop_assert!(read - written <= 2000);
        prop_assert!(flowed.is_some() || Rc::strong_count(&seen) == 1, "the ends are dropped");
        drop(seen);
        prop_assert!(weak.upgrade().is_none());
    }
}

/// Takes nothing.
struct Stuck;

impl Sink for Stuck {
    type Error = &'static str;

    fn poll_write(&mut self, _: &mut Context<'_>, _: &mut Chain) -> Poll<Result<usize, Self::Error>> {
        Poll::Pending
    }
}

#[test]
fn a_stuck_sink_stops_the_source_at_the_window() {
    let seen = Rc::<RefCell<Seen>>::default();
    let random = fastrand::Rng::with_seed(1);
    let source = RandomSource { len: u64::MAX, fails_at: None, random, seen: seen.clone() };
    assert_eq!(poll(flow(source, Stuck).window(10_000), 1000), None);
    let read = seen.borrow().read;
    assert!((5_000..=10_000).contains(&read), "{read}");
}

/// Never ends, and never waits.
struct Endless(IoBuf);

impl Source for Endless {
    type Error = &'static str;

    fn poll_read(
        &mut self,
        _: &mut Context<'_>,
        most: usize,
        into: &mut Chain,
    ) -> Poll<Result<usize, Self::Error>> {
        let part = self.0.slice(0..most.min(self.0.len())).unwrap();
        into.push_back(part);
        Poll::Ready(Ok(most.min(self.0.len())))
    }
}

/// Drops all bytes at once.
struct Discard;

impl Sink for Discard {
    type Error = &'static str;

    fn poll_write(&mut self, _: &mut Context<'_>, from: &mut Chain) -> Poll<Result<usize, Self::Error>> {
        let count = from.len();
        from.advance(count);
        Poll::Ready(Ok(count))
    }
}

#[test]
fn a_flow_that_never_waits_lets_other_events_run() {
    let mut flow = pin!(flow(Endless(IoBuf::from(vec![7; 1000])), Discard).window(10_000));
    let mut context = Context::from_waker(Waker::noop());
    for polls in 1..10 {
        assert!(flow.as_mut().poll(&mut context).is_pending());
        let bytes = flow.statistics().writes * 1000;
        assert!((40_000 * polls..41_000 * polls).contains(&bytes), "{bytes} bytes after {polls} polls");
    }
}

#[test]
fn a_chunk_costs_no_allocation() {
    let mut flow = pin!(flow(Endless(IoBuf::from(vec![7; 1000])), Discard).window(10_000));
    let mut context = Context::from_waker(Waker::noop());
    assert!(flow.as_mut().poll(&mut context).is_pending());
    let counted = allocation_counter::measure(|| {
        for _ in 0..100 {
            assert!(flow.as_mut().poll(&mut context).is_pending());
        }
    });
    assert_eq!(counted.count_total, 0);
}

#[test]
fn memory_is_a_source_and_a_sink() {
    let mut all: Chain = (0..100_u8).map(|number| IoBuf::from(vec![number; 1000])).collect();
    let address = all.front().unwrap().as_ptr();
    let mut copy = Chain::new();
    let flowed = run(flow(&mut all, &mut copy).window(7_500).length(64_000));
    assert_eq!((flowed.bytes, flowed.result), (64_000, Ok(())));
    assert_eq!(copy.front().unwrap().as_ptr(), address, "the bytes were copied");
    assert_eq!(all.len(), 36_000);
    let flowed = run(flow(&mut all, &mut copy));
    assert_eq!((flowed.bytes, all.len(), copy.len()), (36_000, 0, 100_000));
    let expected: Vec<u8> = (0..100_u8).flat_map(|number| [number; 1000]).collect();
    assert!(copy.to_vec() == expected);
}

/// Notes the activity that is charged.
struct NoteActivity(Rc<RefCell<Option<isola_abi::id::ActivityId>>>);

impl Sink for NoteActivity {
    type Error = &'static str;

    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        from: &mut Chain,
    ) -> Poll<Result<usize, Self::Error>> {
        self.0.replace(Some(isola_events::current_activity()));
        Discard.poll_write(context, from)
    }
}

#[test]
fn a_started_flow_is_charged_to_its_activity_and_ends_when_it_is_dropped() {
    use isola_events::{current_activity, exit, register_activity, spawn_task, yield_now};
    let codes = isola_hosted::run(isola_hosted::Settings::default(), Vec::new(), |_| {
        spawn_task(async {
            let activity = register_activity("flows").unwrap();
            let noted = Rc::<RefCell<_>>::default();
            let source = Chain::from(IoBuf::from(vec![1; 100]));
            let flowed = flow(source, NoteActivity(noted.clone())).start_for(activity).await;
            assert_eq!((flowed.bytes, *noted.borrow()), (100, Some(activity)));
            assert_ne!(current_activity(), activity);
            let (endless, seen) = random_flow(4, u64::MAX, None, None);
            let started = endless.start();
            while seen.borrow().written < 1_000_000 {
                yield_now().await;
            }
            drop(started);
            let written = seen.borrow().written;
            for _ in 0..10 {
                yield_now().await;
            }
            assert_eq!((seen.borrow().written, Rc::strong_count(&seen)), (written, 1));
            exit(0);
        })
        .detach();
        isola_events::run()
    });
    assert_eq!(codes, [0]);
}
