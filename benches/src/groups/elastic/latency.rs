//! Latencies of kv while a core joins and leaves the cell, in turn with the same cell at rest on one core and on two,
//! and with dry runs of as many moves (`docs/decisions/0046-latency-during-core-moves.md`).

use super::{move_core, small, start_kv};
use crate::error::BenchError;
use crate::load::generator::Generator;
use crate::load::mix::Mix;
use crate::pace::{self, RealTimePriority};
use crate::record::Record;
use crate::session::{Counting, Service, Session};
use crate::statistics::median;
use crate::supervised::SupervisedMachine;
use hdrhistogram::Histogram;
use isola_abi::management::{Change, Mode};
use isola_host::client::{Client, ClientError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The number of the client's connections, and its rate in requests/s.
const CONNECTIONS: usize = 16;
const RATE: f64 = 400.0;

/// The rate of each processor, in instructions/s.
const PACE: u64 = 20_000_000;

/// The interval between core moves: ten million instructions.
const MOVE_INTERVAL: Duration = Duration::from_millis(500);

/// The time after the supervisor's response in which a move continues: flows are rebalanced and buckets change their
/// owners.
const SETTLING: Duration = Duration::from_millis(5);

/// The length of a turn, and the number of turns of each state, in multiples of a load's length.
const TURN: Duration = Duration::from_secs(4);
const TURNS_A_LOAD: u64 = 5;

/// The number of times that a core joins and leaves without load.
const UNLOADED_ROUNDS: u32 = 10;

/// Returns the description of the load.
pub fn load() -> String {
    format!(
        "{RATE} requests/s on {CONNECTIONS} connections, processors of {} million instructions a second each; a core \
         comes or leaves every {} ms, turns of {} s so, at rest on one core and on two, and with moves rehearsed; a \
         request meets a move where it was under way between the request for the move and {} ms behind its answer",
        PACE / 1_000_000,
        MOVE_INTERVAL.as_millis(),
        TURN.as_secs(),
        SETTLING.as_millis(),
    )
}

/// Latencies in one state, in ns.
type Latencies = Histogram<u64>;

/// Begin and end of an operation.
type TimeSpan = (Instant, Instant);

/// A change of the cell's cores, and the time of the move.
#[derive(Clone, Copy)]
struct Move {
    change: Change<u32>,
    span: TimeSpan,
}

/// Takes one run.
pub fn run(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    let mut supervised =
        SupervisedMachine::boot_with(session, small(), Counting::Off, session.pacer.arguments().into())?;
    start_kv(session, &mut supervised)?;
    let mut generator = Generator::connect(Service::Kv.address(), CONNECTIONS, Mix::etc())?;
    pace::set(&supervised.machine, PACE)?;
    let _priority = RealTimePriority::set_for(&supervised.machine);
    generator.open(RATE, TURN)?;
    let mut none = generator.open(RATE, TURN)?.latency_ns;
    none.reset();
    // At rest on one core, and on two.
    let mut rest = [none.clone(), none.clone()];
    let (mut moving, mut met, mut rehearsed) = (none.clone(), none.clone(), none);
    let mut loaded = Vec::new();
    let turns = (session.plan.load.as_secs() * TURNS_A_LOAD / TURN.as_secs()).max(1);
    let (come, leave) = (Change::More(1), Change::Less(1));
    for _ in 0..turns {
        let client = &mut supervised.client;
        for (rest, (change, back)) in rest.iter_mut().zip([(come, leave), (leave, come)]) {
            let (latencies, new) = measure_moves(client, &mut generator, [change, back], Mode::Apply)?;
            moving += latencies.all;
            met += latencies.met;
            loaded.extend(new);
            *rest += generator.open(RATE, TURN)?.latency_ns;
            rehearsed += measure_moves(client, &mut generator, [change, change], Mode::DryRun)?.0.all;
            move_core(client, change, Mode::Apply)?;
        }
    }
    for (cores, rest) in ["one", "two"].into_iter().zip(&rest) {
        for (figures, of) in
            [(&["p50", "p99", "p999", "max"][..], &moving), (&["met-p50", "met-p99", "met-max"], &met)]
        {
            for figure in figures {
                record.isola(&format!("elastic-{cores}-{figure}"), us(of, figure));
                record.peer(&format!("elastic-{cores}-{figure}"), us(rest, figure));
            }
        }
    }
    let client = &mut supervised.client;
    let unloaded = moves(client, [come, leave], UNLOADED_ROUNDS)?;
    for (figure, change) in
        [("elastic-core-online-loaded-time", come), ("elastic-core-offline-loaded-time", leave)]
    {
        record.isola(figure, median_time_us(&loaded, change));
        record.peer(figure, median_time_us(&unloaded, change));
    }
    record.isola("elastic-met-part", 100.0 * met.len() as f64 / moving.len().max(1) as f64);
    for figure in ["p50", "p99"] {
        record.isola(&format!("elastic-moves-{figure}"), us(&moving, figure));
        record.peer(&format!("elastic-moves-{figure}"), us(&rehearsed, figure));
    }
    Ok(())
}

/// Returns the latency that the end of a figure's name selects, in us.
fn us(latencies: &Latencies, figure: &str) -> f64 {
    let ns = match figure.rsplit('-').next() {
        Some("p50") => latencies.value_at_quantile(0.5),
        Some("p99") => latencies.value_at_quantile(0.99),
        Some("p999") => latencies.value_at_quantile(0.999),
        _ => latencies.max(),
    };
    ns as f64 / 1e3
}

/// Latencies of all requests in a turn, and of those that meet a move.
struct TurnLatencies {
    all: Latencies,
    met: Latencies,
}

/// Returns the median time of the moves with this `change`, from request to response, in us.
fn median_time_us(moves: &[Move], change: Change<u32>) -> f64 {
    let times = moves.iter().filter(|one| one.change == change).map(|one| {
        let (begin, end) = one.span;
        (end - begin).saturating_sub(SETTLING).as_secs_f64() * 1e6
    });
    median(&times.collect::<Vec<_>>())
}

/// Performs both changes alternately, without any other request.
fn moves(client: &mut Client, changes: [Change<u32>; 2], rounds: u32) -> Result<Vec<Move>, ClientError> {
    let mut moves = Vec::new();
    for _ in 0..rounds {
        for change in changes {
            moves.push(move_once(client, change, Mode::Apply)?);
        }
    }
    Ok(moves)
}

/// Performs a change, and waits until the next is due.
fn move_once(client: &mut Client, change: Change<u32>, mode: Mode) -> Result<Move, ClientError> {
    let begin = Instant::now();
    move_core(client, change, mode)?;
    let span = (begin, Instant::now() + SETTLING);
    thread::sleep(MOVE_INTERVAL.saturating_sub(begin.elapsed()));
    Ok(Move { change, span })
}

/// Measures latencies in a turn with alternating `changes` of the cell's cores; returns them and the moves.
fn measure_moves(
    client: &mut Client,
    generator: &mut Generator,
    changes: [Change<u32>; 2],
    mode: Mode,
) -> Result<(TurnLatencies, Vec<Move>), BenchError> {
    let (stop, mut requests) = (AtomicBool::new(false), Vec::new());
    let (outcome, moves) = thread::scope(|scope| {
        let mover = scope.spawn(|| move_until(client, changes, mode, &stop));
        let outcome = generator.open_each(RATE, TURN, |due, answered| requests.push((due, answered)));
        stop.store(true, Ordering::Relaxed);
        // A panic of the thread is a defect and must surface.
        let moves = mover.join().expect("the thread that moves a core")?;
        Ok::<_, BenchError>((outcome?, moves))
    })?;
    let all = outcome.latency_ns;
    let mut met = all.clone();
    met.reset();
    for (due, answered) in requests.into_iter().filter(|request| meets(*request, &moves)) {
        met.saturating_record(answered.saturating_duration_since(due).as_nanos() as u64);
    }
    Ok((TurnLatencies { all, met }, moves))
}

/// Returns whether a request was pending during any of `moves`.
fn meets((due, answered): TimeSpan, moves: &[Move]) -> bool {
    moves.iter().any(|&Move { span: (begin, end), .. }| due < end && begin < answered)
}

/// Performs both changes alternately until `stop` is set; returns the moves.
fn move_until(
    client: &mut Client,
    changes: [Change<u32>; 2],
    mode: Mode,
    stop: &AtomicBool,
) -> Result<Vec<Move>, ClientError> {
    let mut moves = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        for change in changes {
            moves.push(move_once(client, change, mode)?);
        }
    }
    Ok(moves)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_meets_a_move_if_their_times_overlap() {
        let start = Instant::now();
        let span =
            |begin: u64, end: u64| (start + Duration::from_millis(begin), start + Duration::from_millis(end));
        let moves = [span(100, 110), span(600, 620)].map(|span| Move { change: Change::More(1), span });
        for (request, is_met) in [
            (span(90, 99), false),
            (span(90, 101), true),
            (span(102, 103), true),
            (span(109, 200), true),
            (span(111, 599), false),
            (span(50, 700), true),
            (span(621, 640), false),
        ] {
            assert_eq!(meets(request, &moves), is_met, "{request:?}");
        }
    }

    #[test]
    fn times_of_joining_and_leaving_cores_are_separate() {
        let start = Instant::now();
        let took = |change, ms| Move { change, span: (start, start + Duration::from_millis(ms) + SETTLING) };
        let (come, leave) = (Change::More(1), Change::Less(1));
        let moves = [took(come, 3), took(leave, 50), took(come, 5), took(leave, 70), took(come, 4)];
        assert_eq!((median_time_us(&moves, come), median_time_us(&moves, leave)), (4_000.0, 60_000.0));
    }

    #[test]
    fn the_name_of_a_figure_selects_the_quantile() {
        let mut latencies = Latencies::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        (1..=10_000_u64).for_each(|us| latencies.saturating_record(us * 1_000));
        let near = |figure: &str, wanted: f64| (us(&latencies, figure) / wanted - 1.0).abs() < 0.002;
        assert!(
            near("p50", 5_000.0)
                && near("met-p99", 9_900.0)
                && near("p999", 9_990.0)
                && near("met-max", 10_000.0)
        );
    }
}
