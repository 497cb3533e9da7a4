//! Three machines of one application, on a switch in memory.

use isola_abi::descriptor::NetworkAddress;
use isola_ebbs::{EbbId, current_core, ebb_id};
use isola_events::{exit, run, sleep, spawn_task, timeout};
use isola_hosted::{Loss, Settings, switch};
use isola_iobuf::{Chain, IoBuf};
use isola_messenger::{
    AskError, CallError, Interface, JoinError, MAX_CALLS, MAX_PAYLOAD, MachineId, Message, Refusal,
    ServeError, SharedEbb, call, host, id_map, join, serve,
};
use isola_net::{FailReason, StreamError, TcpStream, connect, start};
use isola_platform::CoreIndex;
use isola_platform::network::NetworkPort;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const PORT: u16 = 9000;
const ECHO: EbbId = EbbId::of_path(module_path!(), "ECHO");
const SLOW: EbbId = EbbId::of_path(module_path!(), "SLOW");
const HUGE: EbbId = EbbId::of_path(module_path!(), "HUGE");
const NOBODY: EbbId = EbbId::of_path(module_path!(), "NOBODY");

fn ip(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, number)
}

fn first() -> SocketAddr {
    (ip(1), PORT).into()
}

fn bytes(text: &[u8]) -> Chain {
    Chain::from(IoBuf::copy_from_slice(text))
}

/// Runs a machine in a thread until its future ends; the machine then waits for the others.
fn machine<F: Future<Output = ()> + 'static>(
    number: u8,
    cores: usize,
    port: NetworkPort,
    done: &Arc<AtomicUsize>,
    all: usize,
    body: impl FnOnce() -> F + Send + 'static,
) -> thread::JoinHandle<()> {
    let done = done.clone();
    thread::spawn(move || {
        let address = Some(NetworkAddress { ip: ip(number), prefix_len: 24, gateway: None });
        let body = std::sync::Mutex::new(Some(body));
        let codes = isola_hosted::run(Settings { cores, address, ..Settings::default() }, vec![port], |_| {
            if current_core() == CoreIndex(0) {
                start().unwrap();
                let body = body.lock().unwrap().take().unwrap();
                let done = done.clone();
                spawn_task(async move {
                    let outcome = timeout(Duration::from_secs(60), body()).await;
                    done.fetch_add(1, Ordering::AcqRel);
                    while done.load(Ordering::Acquire) < all {
                        sleep(Duration::from_millis(2)).await;
                    }
                    exit(i32::from(outcome.is_err()));
                })
                .detach();
            }
            run()
        });
        assert_eq!(codes[0], 0, "machine {number} took too long");
    })
}

/// Joins the first machine, which begins to listen at its own pace.
async fn join_first() -> MachineId {
    loop {
        match join(first()).await {
            Ok(number) => return number,
            Err(JoinError::Connect(StreamError::Failed(FailReason::Refused))) => {
                sleep(Duration::from_millis(5)).await
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Gives way until an Ebb answers on a machine.
async fn first_answer(machine: MachineId, ebb: EbbId) {
    while call(machine, ebb, Chain::new()).await.is_err() {
        sleep(Duration::from_millis(5)).await;
    }
}

async fn echo(call: isola_messenger::Call) -> Result<Chain, Refusal> {
    Ok(call.request)
}

#[test]
fn every_machine_asks_every_other_and_itself_from_any_core() {
    let [a, b, c] = switch(Loss::Never);
    let done = Arc::new(AtomicUsize::new(0));
    let met = Arc::new(AtomicUsize::new(0));
    let talk = |met: Arc<AtomicUsize>| async move {
        let here = MachineId::here();
        met.fetch_add(1, Ordering::AcqRel);
        for number in 1..=3 {
            let there = MachineId::new(number).unwrap();
            first_answer(there, ECHO).await;
            for turn in 0..50_u32 {
                let text = format!("{here:?} to {number}: {turn}").into_bytes();
                let request = bytes(&text);
                let core = CoreIndex(turn % 2);
                let answer = isola_events::elsewhere(core, move || call(there, ECHO, request)).await;
                assert_eq!(answer.unwrap().to_vec(), text);
            }
            assert_eq!(call(there, NOBODY, Chain::new()).await, Err(CallError::Refused(Refusal::NoSuchEbb)));
        }
        let fourth = MachineId::new(4).unwrap();
        let expected = if here == MachineId::FIRST {
            CallError::NoSuchMachine
        } else {
            CallError::Refused(Refusal::NoSuchMachine)
        };
        assert_eq!(call(fourth, ECHO, Chain::new()).await, Err(expected));
        let too_long = Chain::from(IoBuf::from(vec![0; MAX_PAYLOAD + 1]));
        assert_eq!(call(here, ECHO, too_long).await, Err(CallError::TooLong));
    };
    let (one, two, three) = (met.clone(), met.clone(), met.clone());
    let machines = [
        machine(1, 2, a, &done, 3, move || async move {
            let _listening = host(PORT).unwrap();
            let _echo = serve(ECHO, echo).unwrap();
            assert_eq!(serve(ECHO, echo).err(), Some(ServeError::Taken));
            talk(one).await;
            until(|| done_with(3)).await;
        }),
        machine(2, 2, b, &done, 3, move || async move {
            let number = join_first().await;
            assert_eq!(number, MachineId::here());
            let _echo = serve(ECHO, echo).unwrap();
            talk(two).await;
            until(|| done_with(3)).await;
        }),
        machine(3, 2, c, &done, 3, move || async move {
            join_first().await;
            let _echo = serve(ECHO, echo).unwrap();
            talk(three).await;
            until(|| done_with(3)).await;
        }),
    ];
    machines.into_iter().for_each(|machine| machine.join().unwrap());
    assert_eq!(met.load(Ordering::Acquire), 3);
}

/// Machines that have said all that they had to say.
static SAID: AtomicUsize = AtomicUsize::new(0);

fn done_with(all: usize) -> bool {
    SAID.load(Ordering::Acquire) >= all
}

/// Serves on until all have said what they had to say.
async fn until(is_done: impl Fn() -> bool) {
    SAID.fetch_add(1, Ordering::AcqRel);
    while !is_done() {
        sleep(Duration::from_millis(2)).await;
    }
}

/// Runs a first machine and one that joins it; the first serves until the other is done.
fn pair<F, G>(loss: Loss, one: impl FnOnce() -> F + Send + 'static, two: impl FnOnce() -> G + Send + 'static)
where
    F: Future<Output = ()> + 'static,
    G: Future<Output = ()> + 'static,
{
    let [a, b] = switch(loss);
    let done = Arc::new(AtomicUsize::new(0));
    let machines = [machine(1, 1, a, &done, 2, one), machine(2, 1, b, &done, 2, two)];
    machines.into_iter().for_each(|machine| machine.join().unwrap());
}

/// Serves for as long as the test lasts.
async fn serve_all() {
    let _listening = host(PORT).unwrap();
    let _map = id_map::keep().unwrap();
    let _echo = serve(ECHO, echo).unwrap();
    let _slow = serve(SLOW, |_| async {
        sleep(Duration::from_millis(30)).await;
        Ok(Chain::new())
    })
    .unwrap();
    let _huge = serve(HUGE, |_| async { Ok(Chain::from(IoBuf::from(vec![7; MAX_PAYLOAD + 1]))) }).unwrap();
    std::mem::forget((_listening, _map, _echo, _slow, _huge));
}

#[test]
fn large_and_many_calls_come_through_a_network_that_loses_frames() {
    pair(Loss::EveryNth(101), serve_all, || async {
        join_first().await;
        let block: Vec<u8> = (0..MAX_PAYLOAD as u32).map(|n| (n * 7 % 251) as u8).collect();
        let calls = (0..4).map(|_| call(MachineId::FIRST, ECHO, bytes(&block)));
        for answer in isola_events::future::join_all(calls).await {
            assert!(answer.unwrap().to_vec() == block);
        }
        // More than may be under way at once: the others wait, and none is refused.
        let calls = (0..100).map(|_| call(MachineId::FIRST, SLOW, Chain::new()));
        assert!(isola_events::future::join_all(calls).await.iter().all(Result::is_ok));
        let too_long = call(MachineId::FIRST, HUGE, Chain::new()).await;
        assert_eq!(too_long, Err(CallError::Refused(Refusal::TooLong)));
    });
}

#[test]
fn the_id_map_keeps_what_any_machine_sets() {
    pair(Loss::Never, serve_all, || async {
        join_first().await;
        assert_eq!(id_map::get(ECHO).await, Ok(None));
        id_map::set(ECHO, b"value").await.unwrap();
        id_map::set(NOBODY, b"").await.unwrap();
        assert_eq!(id_map::get(ECHO).await, Ok(Some(b"value".to_vec())));
        assert_eq!(id_map::get(NOBODY).await, Ok(Some(Vec::new())));
        id_map::set(ECHO, b"other").await.unwrap();
        assert_eq!(id_map::get(ECHO).await, Ok(Some(b"other".to_vec())));
        assert_eq!(id_map::set(ECHO, &[0; 4097]).await, Err(CallError::TooLong));
    });
}

/// Adds numbers up, in one place.
struct Adder;

struct Number(u64);

impl Message for Number {
    fn into_chain(self) -> Chain {
        bytes(&self.0.to_be_bytes())
    }

    fn from_chain(chain: Chain) -> Option<Self> {
        let number = <[u8; 8]>::try_from(chain.to_vec()).ok()?;
        Some(Self(u64::from_be_bytes(number)))
    }
}

impl Interface for Adder {
    type Request = Number;
    type Answer = Number;
}

static ADDER: SharedEbb<Adder> = SharedEbb::new(ebb_id!(ADDER));
static HOMELESS: SharedEbb<Adder> = SharedEbb::new(ebb_id!(HOMELESS));

#[test]
fn a_shared_ebb_is_asked_wherever_it_is() {
    pair(
        Loss::Never,
        || async {
            serve_all().await;
            // It is the other machine's, and found by the map once it is there.
            let sum = loop {
                match ADDER.ask(Number(40)).await {
                    Ok(Number(sum)) => break sum,
                    Err(AskError::NoHome) => sleep(Duration::from_millis(5)).await,
                    Err(error) => panic!("{error}"),
                }
            };
            assert_eq!(sum, 41);
        },
        || async {
            join_first().await;
            let handler = |_, Number(number)| async move { Ok(Number(number + 1)) };
            let serving = ADDER.serve(handler).await.unwrap().unwrap();
            assert_eq!(ADDER.ask(Number(1)).await.map(|Number(sum)| sum), Ok(2), "here as well");
            assert_eq!(HOMELESS.ask(Number(1)).await.err(), Some(AskError::NoHome));
            let nonsense = call(MachineId::here(), ebb_id!(ADDER), bytes(b"1")).await;
            assert_eq!(nonsense, Err(CallError::Refused(Refusal::Malformed)));
            std::mem::forget(serving);
        },
    );
}

#[test]
fn calls_to_a_machine_that_goes_away_end_and_it_may_come_back() {
    let [a, b] = switch(Loss::Never);
    let done = Arc::new(AtomicUsize::new(0));
    let machines = [
        machine(1, 1, a, &done, 2, || async {
            let listening = host(PORT).unwrap();
            let second = MachineId::new(2).unwrap();
            first_answer(second, ECHO).await;
            // It never answers this one, and is cut off meanwhile.
            let lost = call(second, SLOW, Chain::new()).await;
            assert_eq!(lost, Err(CallError::Refused(Refusal::Gone)));
            drop(listening);
        }),
        machine(2, 1, b, &done, 2, || async {
            // What it does not speak ends the connection, and nothing else.
            let mut stream = dial().await;
            stream.write(bytes(&[0xff; 64])).await.unwrap();
            assert!(matches!(stream.read().await, Ok(None) | Err(_)));
            // Nor is the rest of a long frame waited for of who has not said who it is.
            let mut stream = dial().await;
            let mut long = hello().to_vec();
            long[..4].copy_from_slice(&(MAX_PAYLOAD as u32).to_be_bytes());
            stream.write(bytes(&long)).await.unwrap();
            let ended = timeout(Duration::from_secs(5), stream.read()).await;
            assert!(matches!(ended, Ok(Ok(None) | Err(_))));
            // A raw connection, so that it can be cut.
            let mut raw = dial().await;
            raw.write(hello()).await.unwrap();
            let mut come = Chain::new();
            let mut answered = 0;
            while answered < 2 {
                let Ok(Some(data)) = raw.read().await else { panic!("the first machine ended it") };
                come.append(data);
                while come.len() >= 32 {
                    let length = come.cursor().read_u32_be().unwrap() as usize + 4;
                    if come.len() < length {
                        break;
                    }
                    let frame = come.split_to(length).unwrap().to_vec();
                    // A call: the first is answered, the second never.
                    if frame[7] == 3 {
                        answered += 1;
                        if answered == 1 {
                            let mut answer = frame.clone();
                            answer[7] = 4;
                            answer.copy_within(8..12, 12);
                            answer[8..12].copy_from_slice(&1_u32.to_be_bytes());
                            answer[24..32].fill(0);
                            raw.write(bytes(&answer)).await.unwrap();
                        }
                    }
                }
            }
            raw.abort();
        }),
    ];
    machines.into_iter().for_each(|machine| machine.join().unwrap());
}

#[test]
fn a_machine_that_does_not_read_is_left_and_who_asks_it_is_told() {
    static JOINED: AtomicBool = AtomicBool::new(false);
    static TOLD: AtomicBool = AtomicBool::new(false);
    let [a, b, c] = switch(Loss::Never);
    let done = Arc::new(AtomicUsize::new(0));
    let is_set = |flag: &'static AtomicBool| async move {
        while !flag.load(Ordering::Acquire) {
            sleep(Duration::from_millis(2)).await;
        }
    };
    let machines = [
        machine(1, 1, a, &done, 3, serve_all),
        machine(2, 1, b, &done, 3, move || async move {
            let mut raw = dial().await;
            raw.write(hello()).await.unwrap();
            // The welcome, and nothing behind it.
            assert!(raw.read().await.unwrap().is_some());
            JOINED.store(true, Ordering::Release);
            is_set(&TOLD).await;
        }),
        machine(3, 1, c, &done, 3, move || async move {
            is_set(&JOINED).await;
            join_first().await;
            let second = MachineId::new(2).unwrap();
            let block = bytes(&vec![7; MAX_PAYLOAD]);
            let calls = (0..MAX_CALLS).map(|_| call(second, ECHO, block.clone()));
            let answers = isola_events::future::join_all(calls).await;
            TOLD.store(true, Ordering::Release);
            // The machine has left, for those of the calls that came late.
            let is_told = |answer: &Result<_, _>| {
                matches!(answer, Err(CallError::Refused(Refusal::Gone | Refusal::NoSuchMachine)))
            };
            assert!(answers.iter().all(is_told), "{answers:?}");
        }),
    ];
    machines.into_iter().for_each(|machine| machine.join().unwrap());
}

async fn dial() -> TcpStream {
    loop {
        match connect(first()).await {
            Ok(stream) => return stream,
            Err(StreamError::Failed(FailReason::Refused)) => sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

fn hello() -> Chain {
    let mut frame = 28_u32.to_be_bytes().to_vec();
    frame.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend(0_u64.to_be_bytes());
    frame.extend(b"isola\0\0\x01");
    bytes(&frame)
}
