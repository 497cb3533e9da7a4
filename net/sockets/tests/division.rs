//! The division of a cell's resources among activities: received frames by the processor's policy, sent frames by the
//! network's.

use isola_abi::id::ActivityId;
use isola_abi::report::RECLAIM;
use isola_ebbs::cycles;
use isola_ebbs::platform;
use isola_events::activity::{APPLICATION, INFRASTRUCTURE, charge_to};
use isola_events::reclaim::is_over_budget;
use isola_events::{
    current_activity, register_activity, sleep, spawn_task, spawn_task_for, timeout, yield_now,
};
use isola_hosted::{Loss, link};
use isola_iobuf::{Chain, IoBuf};
use isola_net::{
    ConnectionHandler, TcpConnection, TcpStream, UdpSocket, listen, listen_with, write_statistics,
};
use isola_resources::{
    Entitlement, MEMORY, MemoryBudget, NETWORK_WRITE, PROCESSOR, PolicyKind, Rate, Weight,
};
use isola_test_cells::{SERVER, TestCell, dial, read_exactly, run_cells, run_server_and_client};
use std::future::pending;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Ports of the activities, and their weights.
const SHARES: [(u16, u32); 3] = [(7, 50), (8, 33), (9, 17)];

/// The most bytes of a frame to the device, which divides it into segments.
const LONGEST_FRAME: f64 = 65_550.0;

fn by_weight(weight: u32) -> Entitlement {
    Entitlement::by_weight(Weight::new(weight).unwrap())
}

/// Sends as much as the connection takes.
async fn send_forever(mut stream: TcpStream) {
    let block = IoBuf::copy_from_slice(&[0x5a; 16_384]);
    while stream.write(block.clone().into()).await.is_ok() {}
}

/// Reads from a connection to each port.
async fn read_all() {
    for (port, _) in SHARES {
        let mut stream = dial(port).await;
        spawn_task(async move { while let Ok(Some(_)) = stream.read().await {} }).detach();
    }
    pending::<()>().await;
}

/// Returns the bytes sent by each activity.
fn sent(activities: &[ActivityId; 3]) -> [u64; 3] {
    activities.map(|activity| write_statistics(activity).cost)
}

/// Registers an activity for each port, and listens.
fn serve_all() -> ([ActivityId; 3], Vec<isola_net::tcp::PortListener>) {
    let mut listeners = Vec::new();
    let activities = SHARES.map(|(port, weight)| {
        let activity = register_activity(&format!("port {port}")).unwrap();
        NETWORK_WRITE.set_entitlement(activity, by_weight(weight)).unwrap();
        charge_to(activity);
        listeners.push(listen(port, 8, send_forever).unwrap());
        activity
    });
    (activities, listeners)
}

/// Waits until all activities have sent this many bytes in total.
async fn wait_for(activities: &[ActivityId; 3], bytes: u64) {
    while sent(activities).iter().sum::<u64>() < bytes {
        sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn sent_bytes_follow_the_weights() {
    let server = || async {
        NETWORK_WRITE.set_limit(Some(Rate::per_second(50_000_000).unwrap()));
        NETWORK_WRITE.set_policy(Some(PolicyKind::Wfq));
        let (activities, _listeners) = serve_all();
        // All connections have to reach their full windows first.
        while sent(&activities).iter().any(|bytes| *bytes < 500_000) {
            sleep(Duration::from_millis(1)).await;
        }
        let before = sent(&activities);
        let began = isola_events::now();
        wait_for(&activities, before.iter().sum::<u64>() + 15_000_000).await;
        let (after, elapsed) = (sent(&activities), isola_events::now() - began);
        let bytes = [0, 1, 2].map(|index| after[index] - before[index]);
        let total = bytes.iter().sum::<u64>() as f64;
        assert!(total <= 50_000_000.0 * elapsed.as_secs_f64() + 50_000.0 + 2.0 * LONGEST_FRAME, "{total}");
        for (first, second) in [(0, 1), (1, 2)] {
            let by_weight = |index: usize, bytes: f64| bytes / f64::from(SHARES[index].1);
            let difference =
                (by_weight(first, bytes[first] as f64) - by_weight(second, bytes[second] as f64)).abs();
            let bound = by_weight(first, LONGEST_FRAME) + by_weight(second, LONGEST_FRAME);
            assert!(difference <= 2.0 * bound, "{bytes:?}: {difference} > {bound}");
        }
    };
    let (server_port, client_port) = link(Loss::Never);
    run_cells([
        TestCell::new(1, 1, server_port, server),
        TestCell::new(2, 1, client_port, read_all).until_others_end(),
    ]);
}

#[test]
fn the_write_policy_changes_while_frames_wait_and_no_byte_is_lost() {
    async fn sends(mut stream: TcpStream) {
        for number in 0..400_u32 {
            let block: Vec<u8> = (0..5_000).flat_map(|_| number.to_le_bytes()).collect();
            stream.write(IoBuf::copy_from_slice(&block).into()).await.unwrap();
        }
        stream.shutdown();
    }
    let server = || async {
        let _listening = listen(7, 8, sends).unwrap();
        for round in 0_u32.. {
            let policy = PolicyKind::ALL.get(round as usize % 6).copied();
            NETWORK_WRITE.set_policy(policy);
            NETWORK_WRITE.set_batch(NonZeroU32::new(round % 5 + 1).unwrap());
            let limit = Rate::per_second(20_000_000 + u64::from(round % 7) * 30_000_000).unwrap();
            NETWORK_WRITE.set_limit((round % 3 != 0).then_some(limit));
            sleep(Duration::from_micros(700)).await;
        }
    };
    let client = || async {
        let mut stream = dial(7).await;
        let data = read_exactly(&mut stream, 400 * 20_000).await;
        for (index, number) in data.chunks(4).enumerate() {
            assert_eq!(number, (index as u32 / 5_000).to_le_bytes());
        }
        assert!(stream.read().await.unwrap().is_none());
    };
    run_server_and_client(1, Loss::Never, server, client);
}

/// With a limit, each frame to the device passes the scheduler: the bytes of all activities are those of the device, less
/// a frame that was dispatched and found no room, while policy, limit and weights change at random.
#[test]
fn the_bytes_that_activities_have_sent_are_all_that_the_device_has_sent() {
    const LENGTH: usize = 3_000_000;
    async fn sends(mut stream: TcpStream) {
        let block = IoBuf::copy_from_slice(&[0x5a; 10_000]);
        for _ in 0..LENGTH / block.len() {
            stream.write(block.clone().into()).await.unwrap();
        }
        stream.shutdown();
    }
    let server = || async {
        let mut random = fastrand::Rng::with_seed(2);
        let any_limit =
            |random: &mut fastrand::Rng| Rate::per_second(random.u64(20_000_000..400_000_000)).ok();
        NETWORK_WRITE.set_limit(any_limit(&mut random));
        NETWORK_WRITE.set_policy(Some(PolicyKind::Wfq));
        let device_bytes = || platform().report().network.sent_bytes.load(Ordering::Relaxed);
        let mut all = vec![APPLICATION, INFRASTRUCTURE];
        let bytes_of = |all: &[ActivityId]| all.iter().map(|one| write_statistics(*one).cost).sum::<u64>();
        // The device may have sent frames before there was a policy.
        let before = device_bytes() - bytes_of(&all);
        let mut listeners = Vec::new();
        for (port, _) in SHARES {
            let activity = register_activity(&format!("port {port}")).unwrap();
            charge_to(activity);
            listeners.push(listen(port, 8, sends).unwrap());
            all.push(activity);
        }
        charge_to(APPLICATION);
        let mut compared = 0;
        while all[2..].iter().any(|one| write_statistics(*one).cost < LENGTH as u64) {
            match random.u32(..4) {
                0 => NETWORK_WRITE.set_policy(random.choice(PolicyKind::ALL)),
                1 => NETWORK_WRITE.set_limit(any_limit(&mut random)),
                2 => NETWORK_WRITE.set_batch(NonZeroU32::new(random.u32(1..5)).unwrap()),
                _ => {
                    let one = all[random.usize(2..all.len())];
                    NETWORK_WRITE.set_entitlement(one, by_weight(random.u32(1..1000))).unwrap();
                }
            }
            sleep(Duration::from_micros(random.u64(..900))).await;
            let (of_activities, of_device) = (bytes_of(&all), device_bytes() - before);
            let apart = of_activities.checked_sub(of_device).expect("the device sends what was dispatched");
            assert!(apart as f64 <= LONGEST_FRAME, "{of_activities} and {of_device}");
            compared += 1;
        }
        assert!(compared > 10);
    };
    let client = || async {
        let mut tasks = Vec::new();
        for (port, _) in SHARES {
            let mut stream = dial(port).await;
            tasks.push(spawn_task(async move { read_exactly(&mut stream, LENGTH).await.len() }));
        }
        for task in tasks {
            assert_eq!(task.await, LENGTH);
        }
    };
    run_server_and_client(1, Loss::Never, server, client);
}

/// Returns the bytes of frames that the device has received and sent.
fn of_device() -> [u64; 2] {
    let network = &platform().report().network;
    [&network.received_bytes, &network.sent_bytes].map(|counter| counter.load(Ordering::Relaxed))
}

/// Returns the bytes of frames that all activities have received and sent.
fn of_activities() -> [u64; 2] {
    let present = isola_activities::list().into_iter().filter(|one| one.parent.is_none());
    let all = present.map(|one| one.usage.traffic).chain([isola_activities::traffic_of_ended()]);
    all.fold([0; 2], |[received, sent], one| [received + one.received_bytes, sent + one.sent_bytes])
}

#[test]
fn each_frame_counts_for_its_activity_in_both_directions() {
    const UPLOAD: u64 = 300_000;
    const DOWNLOAD: u64 = 500_000;
    let server = || async {
        let receives = |mut stream: TcpStream| async move {
            assert_eq!(read_exactly(&mut stream, UPLOAD as usize).await.len() as u64, UPLOAD);
            stream.write(IoBuf::from_static(b"done").into()).await.unwrap();
            stream.shutdown();
        };
        let sends = |mut stream: TcpStream| async move {
            for _ in 0..DOWNLOAD / 10_000 {
                stream.write(IoBuf::copy_from_slice(&[7; 10_000]).into()).await.unwrap();
            }
            stream.shutdown();
        };
        let receiver = register_activity("receiver").unwrap();
        charge_to(receiver);
        let receiving = listen(7, 8, receives).unwrap();
        let sender = register_activity("sender").unwrap();
        charge_to(sender);
        let sending = listen(8, 8, sends).unwrap();
        charge_to(APPLICATION);
        let traffic = |activity| isola_events::activity::activity_usage(activity).traffic;
        while traffic(receiver).received_bytes < UPLOAD || traffic(sender).sent_bytes < DOWNLOAD {
            assert_eq!(of_activities(), of_device());
            sleep(Duration::from_millis(1)).await;
        }
        let (up, down) = (traffic(receiver), traffic(sender));
        // Headers and acknowledgements are far less than the data.
        assert!(
            (UPLOAD..UPLOAD * 5 / 4).contains(&up.received_bytes) && up.sent_bytes < UPLOAD / 4,
            "{up:?}"
        );
        assert!((DOWNLOAD..DOWNLOAD * 5 / 4).contains(&down.sent_bytes), "{down:?}");
        assert!(down.received_bytes > 0 && down.received_bytes < DOWNLOAD / 4, "{down:?}");
        sleep(Duration::from_millis(20)).await;
        drop((receiving, sending));
        // The bytes of an activity that ends remain in the sum.
        isola_events::activity::end_activity(receiver);
        assert!(isola_activities::traffic_of_ended().received_bytes >= UPLOAD);
        assert_eq!(of_activities(), of_device());
    };
    let client = || async {
        let mut up = dial(7).await;
        up.write(IoBuf::copy_from_slice(&vec![1; UPLOAD as usize / 3]).into()).await.unwrap();
        up.write(IoBuf::copy_from_slice(&vec![2; UPLOAD as usize / 3]).into()).await.unwrap();
        up.write(IoBuf::copy_from_slice(&vec![3; UPLOAD as usize / 3]).into()).await.unwrap();
        assert_eq!(read_exactly(&mut up, 4).await, b"done");
        let mut down = dial(8).await;
        assert_eq!(read_exactly(&mut down, DOWNLOAD as usize).await.len() as u64, DOWNLOAD);
    };
    run_server_and_client(1, Loss::Never, server, client);
}

/// A handler that takes long, and counts its requests.
struct Busy;

static REQUESTS: AtomicU32 = AtomicU32::new(0);

impl ConnectionHandler for Busy {
    fn received(&mut self, connection: &TcpConnection, mut data: Chain) {
        let began = cycles();
        while cycles() - began < 500_000 {}
        REQUESTS.fetch_add(1, Ordering::Relaxed);
        connection.send(&mut data).unwrap();
    }
}

/// A handler that answers with the number of requests that the others have handled.
struct Quiet;

impl ConnectionHandler for Quiet {
    fn received(&mut self, connection: &TcpConnection, _data: Chain) {
        let count = REQUESTS.load(Ordering::Relaxed).to_le_bytes();
        connection.send(&mut IoBuf::copy_from_slice(&count).into()).unwrap();
    }
}

static DROPPED: AtomicU64 = AtomicU64::new(0);

#[test]
fn frames_beyond_an_activity_s_share_of_the_core_are_dropped() {
    let server = || async {
        PROCESSOR.set_policy(Some(PolicyKind::Wfq));
        let competitor = register_activity("competitor").unwrap();
        PROCESSOR.set_entitlement(competitor, by_weight(Weight::MAX)).unwrap();
        spawn_task_for(competitor, async {
            loop {
                let began = cycles();
                while cycles() - began < 200_000 {}
                yield_now().await;
            }
        })
        .detach();
        let flooded = register_activity("flooded").unwrap();
        PROCESSOR.set_entitlement(flooded, by_weight(1)).unwrap();
        charge_to(flooded);
        let _socket = UdpSocket::bind(7).unwrap();
        loop {
            sleep(Duration::from_millis(1)).await;
            DROPPED
                .store(platform().report().network.dropped_frames.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    };
    let client = || async {
        let socket = UdpSocket::bind(9).unwrap();
        while DROPPED.load(Ordering::Relaxed) == 0 {
            for _ in 0..32 {
                let _ = socket.send_to((SERVER, 7).into(), IoBuf::from_static(b"flood").into());
            }
            yield_now().await;
        }
    };
    run_server_and_client(1, Loss::Never, server, client);
}

#[test]
fn an_activity_does_not_wait_for_the_backlog_of_another() {
    const CONNECTIONS: u32 = 200;
    let server = || async {
        PROCESSOR.set_policy(Some(PolicyKind::Wfq));
        let mut listeners = Vec::new();
        charge_to(register_activity("busy").unwrap());
        listeners.push(listen_with(7, 256, |_| Busy).unwrap());
        charge_to(register_activity("quiet").unwrap());
        listeners.push(listen_with(8, 8, |_| Quiet).unwrap());
        pending::<()>().await;
        drop(listeners);
    };
    let client = || async {
        let mut busy = Vec::new();
        for _ in 0..CONNECTIONS {
            busy.push(dial(7).await);
        }
        let mut quiet = dial(8).await;
        for stream in &mut busy {
            stream.write(IoBuf::from_static(b"work").into()).await.unwrap();
        }
        // The others' requests are at the server.
        while REQUESTS.load(Ordering::Relaxed) == 0 {
            yield_now().await;
        }
        quiet.write(IoBuf::from_static(b"how many").into()).await.unwrap();
        let reply = read_exactly(&mut quiet, 4).await;
        let before = u32::from_le_bytes(reply.try_into().unwrap());
        assert!(before < CONNECTIONS / 2, "{before} requests of the other activity came first");
        for stream in &mut busy {
            assert_eq!(read_exactly(stream, 4).await, b"work");
        }
        assert_eq!(REQUESTS.load(Ordering::Relaxed), CONNECTIONS);
    };
    run_server_and_client(1, Loss::Never, server, client);
}

/// Returns the number of the current activity's events before the running one.
fn events_before() -> u64 {
    let all = isola_activities::list();
    all.iter().find(|of| of.id == current_activity()).map_or(0, |of| of.usage.events)
}

/// A handler that takes long, and counts the requests of one event.
struct Counted;

static EVENT: AtomicU64 = AtomicU64::new(u64::MAX);
static IN_EVENT: AtomicU32 = AtomicU32::new(0);
static MOST_IN_EVENT: AtomicU32 = AtomicU32::new(0);

impl ConnectionHandler for Counted {
    fn received(&mut self, connection: &TcpConnection, mut data: Chain) {
        let began = cycles();
        while cycles() - began < 500_000 {}
        let event = events_before();
        if EVENT.swap(event, Ordering::Relaxed) != event {
            IN_EVENT.store(0, Ordering::Relaxed);
        }
        let count = IN_EVENT.fetch_add(1, Ordering::Relaxed) + 1;
        MOST_IN_EVENT.fetch_max(count, Ordering::Relaxed);
        connection.send(&mut data).unwrap();
    }
}

#[test]
fn an_event_that_another_activity_waits_for_processes_few_frames() {
    const CONNECTIONS: u32 = 100;
    /// The most frames of such an event: one, and those that the activity has saved up while it paused.
    const MOST: u32 = 1 + 4;
    let server = || async {
        PROCESSOR.set_policy(Some(PolicyKind::Wfq));
        charge_to(register_activity("busy").unwrap());
        let _listener = listen_with(7, 256, |_| Counted).unwrap();
        spawn_task_for(register_activity("waiting").unwrap(), async {
            loop {
                yield_now().await;
            }
        })
        .detach();
        pending::<()>().await;
    };
    let client = || async {
        let mut all = Vec::new();
        for _ in 0..CONNECTIONS {
            all.push(dial(7).await);
        }
        for stream in &mut all {
            stream.write(IoBuf::from_static(b"work").into()).await.unwrap();
        }
        for stream in &mut all {
            assert_eq!(read_exactly(stream, 4).await, b"work");
        }
        let most = MOST_IN_EVENT.load(Ordering::Relaxed);
        assert!((1..=MOST).contains(&most), "{most} requests in an event");
    };
    run_server_and_client(1, Loss::Never, server, client);
}

/// A handler that returns what it receives.
struct Echo;

impl ConnectionHandler for Echo {
    fn received(&mut self, connection: &TcpConnection, mut data: Chain) {
        connection.send(&mut data).unwrap();
    }
}

/// Whether the activity of port 7 is to have more than its hard budget, and whether it has.
static WANTS_OVER: AtomicBool = AtomicBool::new(false);
static IS_OVER: AtomicBool = AtomicBool::new(false);
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Waits until the server has made the change.
async fn set_over(over: bool) {
    WANTS_OVER.store(over, Ordering::Relaxed);
    while IS_OVER.load(Ordering::Relaxed) != over {
        sleep(Duration::from_micros(100)).await;
    }
}

/// Returns whether a connection to that port returns this message in time.
async fn is_served(stream: &mut TcpStream, message: &'static [u8], within: Duration) -> bool {
    stream.write(IoBuf::from_static(message).into()).await.unwrap();
    timeout(within, read_exactly(stream, message.len())).await.is_ok_and(|echo| echo == message)
}

#[test]
fn frames_for_an_activity_above_its_hard_budget_are_dropped_and_those_of_others_are_not() {
    const LONG: &[u8] = &[7; 1000];
    let soon = Duration::from_millis(100);
    let server = || async {
        let [greedy, fair] = ["greedy", "fair"].map(|name| register_activity(name).unwrap());
        charge_to(greedy);
        let _greedy = listen_with(7, 8, |_| Echo).unwrap();
        let _datagrams = UdpSocket::bind(7).unwrap();
        charge_to(fair);
        let _fair = listen_with(8, 8, |_| Echo).unwrap();
        let memory = MemoryBudget { soft: None, hard: Some(1 << 20) };
        MEMORY.set_entitlement(greedy, Entitlement { memory, ..Entitlement::default() }).unwrap();
        MEMORY.set_entitlement(fair, Entitlement { memory, ..Entitlement::default() }).unwrap();
        let used = &platform().ledger().core(0)[greedy.index()].memory_bytes;
        loop {
            used.store(if WANTS_OVER.load(Ordering::Relaxed) { 2 << 20 } else { 0 }, Ordering::Relaxed);
            platform().report().memory.pressure.fetch_or(RECLAIM, Ordering::SeqCst);
            sleep(Duration::from_millis(1)).await;
            IS_OVER.store(is_over_budget(greedy), Ordering::Relaxed);
            REFUSED
                .store(platform().report().network.dropped_frames.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    };
    let client = move || async move {
        let long = Duration::from_secs(60);
        let (mut greedy, mut fair) = (dial(7).await, dial(8).await);
        assert!(is_served(&mut greedy, LONG, long).await && is_served(&mut fair, LONG, long).await);
        assert_eq!(REFUSED.load(Ordering::Relaxed), 0);
        set_over(true).await;
        assert!(is_served(&mut greedy, b"short", long).await, "it could be an acknowledgement");
        assert!(!is_served(&mut greedy, LONG, soon).await);
        assert!(timeout(soon, dial(7)).await.is_err(), "a connection takes memory");
        let socket = UdpSocket::bind(9).unwrap();
        let before = REFUSED.load(Ordering::Relaxed);
        assert!(before > 0);
        for _ in 0..10 {
            socket.send_to((SERVER, 7).into(), IoBuf::from_static(b"short").into()).unwrap();
        }
        assert!(is_served(&mut fair, LONG, long).await && is_served(&mut dial(8).await, LONG, long).await);
        sleep(Duration::from_millis(5)).await;
        let after = REFUSED.load(Ordering::Relaxed);
        assert!(after >= before + 10, "{before}, then {after}");
        set_over(false).await;
        // The peer repeats what was dropped.
        assert_eq!(read_exactly(&mut greedy, LONG.len()).await, LONG);
        assert!(is_served(&mut dial(7).await, LONG, long).await);
    };
    run_server_and_client(1, Loss::Never, server, client);
}

/// The number of requests of the other activity before that of [`Ordered::Quiet`], and of those that the client has sent.
static HANDLED: AtomicU32 = AtomicU32::new(0);
static BEFORE: AtomicU32 = AtomicU32::new(u32::MAX);

/// The progress of a test whose frames arrive at given times.
static STEP: AtomicU32 = AtomicU32::new(0);
const CONNECTED: u32 = 1;
const BLOCKED: u32 = 2;
const SENT: u32 = 3;
const IN_HANDLER: u32 = 4;
const SENT_QUIET: u32 = 5;

/// A handler that notes the order of requests of two activities.
enum Ordered {
    /// The first request waits until the client has sent that of the other activity, if the test asks for that.
    Busy,
    Quiet,
}

impl ConnectionHandler for Ordered {
    fn received(&mut self, connection: &TcpConnection, mut data: Chain) {
        match self {
            Self::Busy => {
                if HANDLED.fetch_add(1, Ordering::Relaxed) == 0 && data.to_vec() == b"wait" {
                    STEP.store(IN_HANDLER, Ordering::Release);
                    while STEP.load(Ordering::Acquire) != SENT_QUIET {}
                }
            }
            Self::Quiet => BEFORE.store(HANDLED.load(Ordering::Relaxed), Ordering::Relaxed),
        }
        connection.send(&mut data).unwrap();
    }
}

/// Sends a request on each of `BUSY` connections of an activity while the server is busy, so that the server takes all
/// frames at once, and one of another activity, behind them or while the first is handled. Returns how many of the former
/// were handled before that.
fn busy_requests_before_a_quiet_one(request: &'static [u8]) -> u32 {
    const BUSY: usize = 12;
    HANDLED.store(0, Ordering::Relaxed);
    STEP.store(0, Ordering::Release);
    let at = async |step| {
        while STEP.load(Ordering::Acquire) != step {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let server = move || async move {
        PROCESSOR.set_policy(Some(PolicyKind::Wfq));
        charge_to(register_activity("busy").unwrap());
        let _busy = listen_with(7, 32, |_| Ordered::Busy).unwrap();
        charge_to(register_activity("quiet").unwrap());
        let _quiet = listen_with(8, 32, |_| Ordered::Quiet).unwrap();
        at(CONNECTED).await;
        STEP.store(BLOCKED, Ordering::Release);
        while STEP.load(Ordering::Acquire) == BLOCKED {}
        pending::<()>().await;
    };
    let client = move || async move {
        let mut busy = Vec::new();
        for _ in 0..BUSY {
            busy.push(dial(7).await);
        }
        let mut quiet = dial(8).await;
        // The server has accepted the last one, too.
        sleep(Duration::from_millis(20)).await;
        STEP.store(CONNECTED, Ordering::Release);
        at(BLOCKED).await;
        for stream in &mut busy {
            stream.write(IoBuf::from_static(request).into()).await.unwrap();
        }
        let waits = request == b"wait";
        if !waits {
            quiet.write(IoBuf::from_static(b"quiet").into()).await.unwrap();
        }
        // An event of the client sends meanwhile.
        sleep(Duration::from_millis(5)).await;
        STEP.store(SENT, Ordering::Release);
        if waits {
            at(IN_HANDLER).await;
            quiet.write(IoBuf::from_static(b"quiet").into()).await.unwrap();
            sleep(Duration::from_millis(5)).await;
            STEP.store(SENT_QUIET, Ordering::Release);
        }
        assert_eq!(read_exactly(&mut quiet, 5).await, b"quiet");
        for stream in &mut busy {
            assert_eq!(read_exactly(stream, request.len()).await, request);
        }
        assert_eq!(HANDLED.load(Ordering::Relaxed), BUSY as u32);
    };
    run_server_and_client(1, Loss::Never, server, client);
    BEFORE.load(Ordering::Relaxed)
}

#[test]
fn requests_of_a_batch_of_frames_are_handled_in_the_order_of_the_policy() {
    // Those of one event, which has to end when the other activity waits.
    let before = busy_requests_before_a_quiet_one(b"work");
    assert!(before <= 1, "{before} requests of the other activity came first");
    // Those between two checks.
    let before = busy_requests_before_a_quiet_one(b"wait");
    assert!((1..=4).contains(&before), "{before} requests of the other activity came first");
}
