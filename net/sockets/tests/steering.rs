//! Flows that move between the cores of a cell while their connections are in use.

use isola_ebbs::current_core;
use isola_events::activity::charge_to;
use isola_events::{register_activity, sleep, spawn_task};
use isola_hosted::Loss;
use isola_iobuf::{Chain, IoBuf};
use isola_net::steering::{RebalanceError, RebalanceOutcome, buckets_per_core};
use isola_net::{ConnectionHandler, TcpConnection, TcpStream, listen, listen_with, rebalance};
use isola_platform::CoreIndex;
use isola_resources::{PROCESSOR, PolicyKind};
use isola_test_cells::{dial, read_exactly, run_server_and_client};
use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Served by handlers that can move.
const MOVING: u16 = 7;

/// Served by tasks, which cannot move.
const STAYING: u16 = 8;

/// Served by handlers that can move and often pause.
const HESITATING: u16 = 9;

/// Answers each byte with its sum with its position in the stream: the handler that continues a connection needs the
/// position.
#[derive(Default)]
struct Counting {
    offset: u8,
}

impl Counting {
    fn answer(&mut self, data: &Chain) -> Vec<u8> {
        let mut answer = Vec::new();
        for byte in data.parts().flat_map(|part| part.iter()) {
            answer.push(byte.wrapping_add(self.offset));
            self.offset = self.offset.wrapping_add(1);
        }
        answer
    }
}

impl ConnectionHandler for Counting {
    fn received(&mut self, connection: &TcpConnection, data: Chain) {
        connection.send(&mut IoBuf::from(self.answer(&data)).into()).unwrap();
    }

    fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
        Some(Box::new(std::mem::take(self)))
    }
}

/// The same with pauses.
#[derive(Default)]
struct Hesitating(Counting);

impl ConnectionHandler for Hesitating {
    fn received(&mut self, connection: &TcpConnection, data: Chain) {
        self.0.received(connection, data);
        connection.pause();
        connection.call_again();
    }

    fn called_again(&mut self, connection: &TcpConnection) {
        connection.resume();
    }

    fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
        Some(Box::new(std::mem::take(self)))
    }

    fn arrived(&mut self, connection: &TcpConnection) {
        self.called_again(connection);
    }
}

async fn count(mut stream: TcpStream) {
    let (mut counting, core) = (Counting::default(), current_core());
    while let Ok(Some(data)) = stream.read().await {
        assert_eq!(current_core(), core);
        stream.write(IoBuf::from(counting.answer(&data)).into()).await.unwrap();
    }
}

/// Exchanges rounds of `len` bytes on a connection while `on` is set, and checks every byte.
async fn ask(port: u16, len: usize, on: &'static AtomicBool) {
    let mut stream = dial(port).await;
    let mut offset = 0u8;
    let mut rounds = 0;
    while rounds < 3 || on.load(Ordering::Relaxed) {
        let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + rounds) as u8).collect();
        stream.write(IoBuf::from(bytes.clone()).into()).await.unwrap();
        for (byte, answer) in bytes.iter().zip(read_exactly(&mut stream, len).await) {
            assert_eq!(answer, byte.wrapping_add(offset), "round {rounds}");
            offset = offset.wrapping_add(1);
        }
        rounds += 1;
    }
    stream.shutdown();
    assert!(matches!(stream.read().await, Ok(None)), "an orderly end");
}

fn cores(numbers: &[u32]) -> Vec<CoreIndex> {
    numbers.iter().copied().map(CoreIndex).collect()
}

/// The progress of a test in which flows move.
struct Progress {
    on: AtomicBool,
    accepted: AtomicUsize,
    moved: AtomicUsize,
    stayed: AtomicUsize,
}

impl Progress {
    const fn new() -> Self {
        let (accepted, moved, stayed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        Self { on: AtomicBool::new(true), accepted, moved, stayed }
    }
}

/// Runs connections of all kinds over such a link while all flows move between the cores, with a policy for the cores' time
/// or without one.
fn rotate_flows(loss: Loss, policy: Option<PolicyKind>, progress: &'static Progress) {
    /// Every core has all flows and none several times.
    const ROUNDS: usize = 12;
    const TALKS: usize = 24;
    let Progress { on, accepted, moved, stayed } = progress;
    let serve = move || async move {
        PROCESSOR.set_policy(policy);
        let begin_activity = |name| charge_to(register_activity(name).unwrap());
        begin_activity("handled");
        let handled = listen_with(MOVING, 64, |_| {
            accepted.fetch_add(1, Ordering::Relaxed);
            Counting::default()
        });
        begin_activity("hesitating");
        let hesitating = listen_with(HESITATING, 64, |_| {
            accepted.fetch_add(1, Ordering::Relaxed);
            Hesitating::default()
        });
        begin_activity("streams");
        let streams = listen(STAYING, 64, |stream| {
            accepted.fetch_add(1, Ordering::Relaxed);
            count(stream)
        });
        while accepted.load(Ordering::Relaxed) < TALKS {
            sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..ROUNDS {
            for set in [&[0][..], &[0, 1, 2], &[2], &[1, 2]] {
                let result = rebalance(&cores(set)).await.unwrap();
                moved.fetch_add(result.buckets, Ordering::Relaxed);
                stayed.fetch_add(result.staying, Ordering::Relaxed);
                // Until data was exchanged through the new owners.
                sleep(Duration::from_millis(5)).await;
            }
        }
        on.store(false, Ordering::Relaxed);
        std::future::pending::<()>().await;
        drop((handled.unwrap(), hesitating.unwrap(), streams.unwrap()));
    };
    let client = move || async move {
        let talks: Vec<_> = (0..TALKS)
            .map(|number| {
                let port = [STAYING, MOVING, HESITATING, MOVING][number % 4];
                spawn_task(ask(port, 1 + number * 701, on))
            })
            .collect();
        for talk in talks {
            talk.await;
        }
    };
    run_server_and_client(3, loss, serve, client);
    assert!(moved.load(Ordering::Relaxed) > 100 * ROUNDS);
}

#[test]
fn no_byte_is_wrong_while_all_flows_move_between_the_cores() {
    static PROGRESS: Progress = Progress::new();
    rotate_flows(Loss::Never, None, &PROGRESS);
    assert!(PROGRESS.stayed.load(Ordering::Relaxed) > 0, "no stream was left behind");
}

#[test]
fn lost_frames_are_retransmitted_by_the_flows_current_core() {
    static PROGRESS: Progress = Progress::new();
    rotate_flows(Loss::EveryNth(97), None, &PROGRESS);
}

#[test]
fn notices_that_wait_for_their_activities_move_with_the_flows() {
    static PROGRESS: Progress = Progress::new();
    rotate_flows(Loss::Never, Some(PolicyKind::Wfq), &PROGRESS);
}

#[test]
fn connections_move_from_a_leaving_core_and_to_a_joining_one() {
    static STEP: AtomicUsize = AtomicUsize::new(0);
    static SERVED_BY: Mutex<[usize; 4]> = Mutex::new([0; 4]);
    #[derive(Default)]
    struct Named;
    impl ConnectionHandler for Named {
        fn received(&mut self, connection: &TcpConnection, mut data: Chain) {
            SERVED_BY.lock().unwrap()[current_core().0 as usize] += 1;
            connection.send(&mut data).unwrap();
        }

        fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
            Some(Box::new(Self))
        }
    }
    fn served() -> [bool; 4] {
        SERVED_BY.lock().unwrap().map(|times| times > 0)
    }
    async fn wait_for(step: usize) {
        while STEP.load(Ordering::Acquire) < step {
            sleep(Duration::from_millis(1)).await;
        }
    }
    async fn serve() {
        assert_eq!(rebalance(&[]).await, Err(RebalanceError::NoSuchCores));
        assert_eq!(rebalance(&cores(&[4])).await, Err(RebalanceError::NoSuchCores));
        let listening = listen_with(MOVING, 128, |_| Named).unwrap();
        wait_for(1).await;
        let leaving = rebalance(&cores(&[0, 2, 3])).await;
        assert_eq!(leaving, Ok(RebalanceOutcome { buckets: 32, staying: 0 }));
        assert_eq!(buckets_per_core(), [43, 0, 43, 42]);
        *SERVED_BY.lock().unwrap() = [0; 4];
        STEP.store(2, Ordering::Release);
        wait_for(3).await;
        assert_eq!(served(), [true, false, true, true]);
        assert_eq!(rebalance(&cores(&[0, 1, 2, 3])).await, Ok(RebalanceOutcome { buckets: 32, staying: 0 }));
        *SERVED_BY.lock().unwrap() = [0; 4];
        STEP.store(4, Ordering::Release);
        wait_for(5).await;
        assert_eq!(served(), [true; 4]);
        STEP.store(6, Ordering::Release);
        std::future::pending::<()>().await;
        drop(listening);
    }
    async fn client() {
        let mut streams = Vec::new();
        for _ in 0..100 {
            streams.push(dial(MOVING).await);
        }
        for step in [0, 2, 4] {
            wait_for(step).await;
            for stream in &mut streams {
                stream.write(IoBuf::from_static(b"who?").into()).await.unwrap();
            }
            for stream in &mut streams {
                assert_eq!(read_exactly(stream, 4).await, b"who?");
            }
            STEP.store(step + 1, Ordering::Release);
        }
        wait_for(6).await;
    }
    run_server_and_client(4, Loss::Never, serve, client);
}

thread_local! {
    /// Handles of connections on this core.
    static NAMES: RefCell<Vec<TcpConnection>> = const { RefCell::new(Vec::new()) };
}

/// A handler that stores a handle of its connection.
#[derive(Default)]
struct Knowing {
    counting: Counting,
    connection: Option<TcpConnection>,
}

impl ConnectionHandler for Knowing {
    fn received(&mut self, _: &TcpConnection, data: Chain) {
        let connection = self.connection.as_ref().expect("a stored handle");
        connection.send(&mut IoBuf::from(self.counting.answer(&data)).into()).unwrap();
    }

    fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
        self.connection = None;
        Some(Box::new(Ignorant(std::mem::take(&mut self.counting))))
    }
}

/// The same handler during and after a move.
struct Ignorant(Counting);

impl ConnectionHandler for Ignorant {
    fn received(&mut self, connection: &TcpConnection, data: Chain) {
        connection.send(&mut IoBuf::from(self.0.answer(&data)).into()).unwrap();
    }

    fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
        Some(Box::new(Ignorant(std::mem::take(&mut self.0))))
    }

    fn arrived(&mut self, connection: &TcpConnection) {
        assert!(connection.peer().is_some(), "the new handle is valid");
        ARRIVED.fetch_add(1, Ordering::Relaxed);
    }
}

static ARRIVED: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_handler_moves_unless_another_handle_of_its_connection_exists() {
    static RESULT: Mutex<Option<RebalanceOutcome>> = Mutex::new(None);
    async fn serve() {
        let listening = listen_with(MOVING, 64, |connection| {
            // For one connection on each core, another handle exists.
            NAMES.with_borrow_mut(|names| {
                if names.is_empty() {
                    names.push(connection.clone());
                }
            });
            Knowing { connection: Some(connection.clone()), ..Knowing::default() }
        });
        while NAMES.with_borrow(Vec::is_empty) {
            sleep(Duration::from_millis(1)).await;
        }
        let mut result = rebalance(&cores(&[1])).await.unwrap();
        result.staying += rebalance(&cores(&[0])).await.unwrap().staying;
        *RESULT.lock().unwrap() = Some(result);
        std::future::pending::<()>().await;
        drop(listening.unwrap());
    }
    async fn client() {
        static ON: AtomicBool = AtomicBool::new(true);
        // Enough that each core has several.
        let talks: Vec<_> = (0..32).map(|_| spawn_task(ask(MOVING, 100, &ON))).collect();
        while RESULT.lock().unwrap().is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        ON.store(false, Ordering::Relaxed);
        for talk in talks {
            talk.await;
        }
        let result = RESULT.lock().unwrap().unwrap();
        // Some moved: one on each core stays, and those that were about to be accepted.
        let (staying, arrived) = (result.staying, ARRIVED.load(Ordering::Relaxed));
        assert!((1..16).contains(&staying) && arrived > 0, "{staying} stay, {arrived} arrived");
    }
    run_server_and_client(2, Loss::Never, serve, client);
}
