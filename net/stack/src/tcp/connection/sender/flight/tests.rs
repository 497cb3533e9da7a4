//! Random sequences of operations give the same result on a flight and on a model with one state per byte.

use super::*;
use crate::tcp::connection::sender::rack::Rack;
use alloc::vec::Vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Send(u32),
    Ack(u32),
    Sack(u32, u32),
    LoseFirst(u32),
    LoseLast(u32),
    LoseAll,
    LoseOld,
    FindAll,
    Resend(u32),
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u32..50).prop_map(Step::Send),
        2 => (0u32..60).prop_map(Step::Ack),
        4 => (0u32..200, 1u32..40).prop_map(|(start, len)| Step::Sack(start, len)),
        1 => (1u32..30).prop_map(Step::LoseFirst),
        1 => (1u32..30).prop_map(Step::LoseLast),
        1 => Just(Step::LoseAll),
        1 => Just(Step::LoseOld),
        1 => Just(Step::FindAll),
        3 => (1u32..30).prop_map(Step::Resend),
        2 => Just(Step::Wait),
    ]
}

/// Returns all runs.
fn runs(flight: &Flight) -> Vec<Run> {
    assert!(flight.sole.is_none() || flight.runs.is_empty(), "a sole run excludes others");
    flight.sole.iter().chain(&flight.runs).copied().collect()
}

/// Returns the states of all bytes.
fn fates(flight: &Flight) -> Vec<RunState> {
    let mut from = flight.start;
    let mut fates = Vec::new();
    for run in runs(flight) {
        assert!(run.end.after(from), "runs are not empty");
        fates.extend((0..run.end.since(from)).map(|_| run.fate));
        from = run.end;
    }
    fates
}

fn count(fates: &[RunState], fate: RunState) -> u32 {
    fates.iter().filter(|&&other| other == fate).count() as u32
}

/// Performs the steps on a flight with this limit. Compares with the model only if `exact`, which requires a limit that
/// is never reached.
fn play(steps: Vec<Step>, base: u32, limit: usize, exact: bool) {
    let mut flight = Flight::new(Seq(base), limit);
    let mut model: Vec<RunState> = Vec::new();
    let mut now = Instant::ZERO;
    let mut rack = Rack::new(Seq(base));
    for step in steps {
        let len = fates(&flight).len() as u32;
        let start = flight.start;
        let mut news =
            Deliveries { now, echoed: None, least_rtt: Duration::ZERO, rack: &mut rack, bytes: 0, rtt: None };
        match step {
            Step::Send(count) => {
                flight.sent(start + len + count, now);
                model.extend((0..count).map(|_| RunState::Sent));
            }
            Step::Ack(count) => {
                let count = count.min(len);
                flight.acked(start + count, &mut news);
                let known =
                    model.drain(..count as usize).filter(|&fate| fate == RunState::Sacked).count() as u32;
                assert!(!exact || news.bytes == count - known);
            }
            Step::Sack(offset, count) if offset < len => {
                let end = (offset + count).min(len);
                flight.sack(Block { start: start + offset, end: start + end }, &mut news);
                let part = &mut model[offset as usize..end as usize];
                let known = part.iter().filter(|&&fate| fate == RunState::Sacked).count() as u32;
                assert!(!exact || news.bytes == end - offset - known);
                part.fill(RunState::Sacked);
            }
            Step::Resend(count) => {
                if let Some((from, end)) = flight.first_lost() {
                    let count = count.min(end.since(from));
                    flight.sent_again(from + count, now);
                    let from = from.since(start) as usize;
                    model[from..from + count as usize].fill(RunState::Sent);
                }
            }
            Step::LoseAll => {
                flight.lose_all();
                model.fill(RunState::Lost);
            }
            Step::FindAll => {
                flight.find_all();
                model
                    .iter_mut()
                    .filter(|fate| **fate == RunState::Lost)
                    .for_each(|fate| *fate = RunState::Sent);
            }
            Step::LoseFirst(count) => {
                flight.lose_first(count);
                model = fates(&flight);
            }
            Step::LoseLast(count) => {
                flight.lose_last(count);
                model = fates(&flight);
            }
            Step::LoseOld => {
                flight.find_lost(now, |run| (run.sent_at < now).then_some(now));
                model = fates(&flight);
            }
            Step::Wait => now += Duration::from_millis(1),
            Step::Sack(..) => {}
        }
        let fates = fates(&flight);
        assert!(!exact || fates == model);
        assert_eq!(flight.sacked(), count(&fates, RunState::Sacked));
        assert_eq!(flight.lost(), count(&fates, RunState::Lost));
        let count = runs(&flight).len();
        assert!(count <= 2 * limit + 2, "{count} runs, limit {limit}");
    }
}

proptest! {
    #[test]
    fn every_byte_has_the_state_of_the_model(steps in prop::collection::vec(step(), 1..80), base in any::<u32>()) {
        play(steps, base, 100_000, true);
    }

    #[test]
    fn the_limit_bounds_the_number_of_runs(steps in prop::collection::vec(step(), 1..200), limit in 8usize..20) {
        play(steps, 0, limit, false);
    }
}

#[test]
fn data_sent_at_the_same_time_is_one_run() {
    let mut flight = Flight::new(Seq(0), 100);
    (1..50).for_each(|number| flight.sent(Seq(number * 1000), Instant::ZERO));
    assert_eq!(runs(&flight).len(), 1);
    assert_eq!(flight.acked_whole(Seq(500), Instant::ZERO), Some(Duration::ZERO));
    let later = Instant::ZERO + Duration::from_millis(1);
    flight.sent(Seq(60_000), later);
    assert_eq!(runs(&flight).len(), 2);
    // The acknowledgement of the first run gives no round-trip time of the second.
    assert_eq!(flight.acked_whole(Seq(49_000), later), Some(Duration::from_millis(1)));
    assert_eq!(flight.acked_whole(Seq(60_000), later), Some(Duration::ZERO));
    assert!(runs(&flight).is_empty());
}
