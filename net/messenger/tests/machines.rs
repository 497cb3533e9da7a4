//! Calls between the machines of one application, on a switch in memory.

mod common;

use common::{
    ECHO, HUGE, NOT_SERVED, PORT, SLOW, SharedMachineId, bytes, echo, first_answer, join_first, machine,
    pair, run_cells, serve_all,
};
use isola_ebbs::ebb_id;
use isola_events::future::join_all;
use isola_events::sleep;
use isola_hosted::{Loss, switch};
use isola_iobuf::{Chain, IoBuf};
use isola_messenger::{
    AskError, CallError, Interface, MAX_PAYLOAD, MachineId, Message, Refusal, ServeError, SharedEbb, call,
    host, id_map, serve,
};
use isola_platform::CoreIndex;
use isola_test_cells::TestCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn every_machine_calls_every_other_and_itself_from_any_core() {
    static SECOND: SharedMachineId = SharedMachineId::new();
    static THIRD: SharedMachineId = SharedMachineId::new();
    static DONE: AtomicUsize = AtomicUsize::new(0);
    async fn call_all() {
        let here = MachineId::here();
        let all = [MachineId::FIRST, SECOND.get().await, THIRD.get().await];
        for there in all {
            first_answer(there, ECHO).await;
            for turn in 0..50_u32 {
                let text = format!("{here:?} to {there:?}: {turn}").into_bytes();
                let request = bytes(&text);
                let core = CoreIndex(turn % 2);
                let answer = isola_events::elsewhere(core, move || call(there, ECHO, request)).await;
                assert_eq!(answer.unwrap().to_vec(), text);
            }
            assert_eq!(
                call(there, NOT_SERVED, Chain::new()).await,
                Err(CallError::Refused(Refusal::NoSuchEbb))
            );
        }
        let absent = (2..).filter_map(MachineId::new).find(|machine| !all.contains(machine)).unwrap();
        let expected = if here == MachineId::FIRST {
            CallError::NoSuchMachine
        } else {
            CallError::Refused(Refusal::NoSuchMachine)
        };
        assert_eq!(call(absent, ECHO, Chain::new()).await, Err(expected));
        let too_long = Chain::from(IoBuf::from(vec![0; MAX_PAYLOAD + 1]));
        assert_eq!(call(here, ECHO, too_long).await, Err(CallError::TooLong));
        DONE.fetch_add(1, Ordering::AcqRel);
        while DONE.load(Ordering::Acquire) < 3 {
            sleep(Duration::from_millis(2)).await;
        }
    }
    async fn joined(shared_id: &'static SharedMachineId) {
        let number = join_first().await;
        assert_eq!(number, MachineId::here());
        let _echo = serve(ECHO, echo).unwrap();
        shared_id.set(number);
        call_all().await;
    }
    let [a, b, c] = switch(Loss::Never);
    run_cells(
        machine(),
        [
            TestCell::new(1, 2, a, || async {
                let _listening = host(PORT).unwrap();
                let _echo = serve(ECHO, echo).unwrap();
                assert_eq!(serve(ECHO, echo).err(), Some(ServeError::Taken));
                call_all().await;
            }),
            TestCell::new(2, 2, b, || joined(&SECOND)),
            TestCell::new(3, 2, c, || joined(&THIRD)),
        ],
    );
}

#[test]
fn large_and_many_calls_succeed_on_a_lossy_network() {
    pair(Loss::EveryNth(101), serve_all, || async {
        join_first().await;
        let block: Vec<u8> = (0..MAX_PAYLOAD as u32).map(|n| (n * 7 % 251) as u8).collect();
        let calls = (0..4).map(|_| call(MachineId::FIRST, ECHO, bytes(&block)));
        for answer in join_all(calls).await {
            assert!(answer.unwrap().to_vec() == block);
        }
        // More than the limit of concurrent calls: the others wait, and none is refused.
        let calls = (0..100).map(|_| call(MachineId::FIRST, SLOW, Chain::new()));
        assert!(join_all(calls).await.iter().all(Result::is_ok));
        let too_long = call(MachineId::FIRST, HUGE, Chain::new()).await;
        assert_eq!(too_long, Err(CallError::Refused(Refusal::TooLong)));
    });
}

#[test]
fn the_id_map_stores_the_values_of_any_machine() {
    pair(Loss::Never, serve_all, || async {
        join_first().await;
        assert_eq!(id_map::get(ECHO).await, Ok(None));
        id_map::set(ECHO, b"value").await.unwrap();
        id_map::set(NOT_SERVED, b"").await.unwrap();
        assert_eq!(id_map::get(ECHO).await, Ok(Some(b"value".to_vec())));
        assert_eq!(id_map::get(NOT_SERVED).await, Ok(Some(Vec::new())));
        id_map::set(ECHO, b"other").await.unwrap();
        assert_eq!(id_map::get(ECHO).await, Ok(Some(b"other".to_vec())));
        assert_eq!(id_map::set(ECHO, &[0; 4097]).await, Err(CallError::TooLong));
        id_map::remove(ECHO).await.unwrap();
        assert_eq!(id_map::get(ECHO).await, Ok(None));
    });
}

/// Adds numbers, at one home.
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
static MOVED: SharedEbb<Adder> = SharedEbb::new(ebb_id!(MOVED));
static HOMELESS: SharedEbb<Adder> = SharedEbb::new(ebb_id!(HOMELESS));

/// Returns the Ebb's answer once a machine serves it.
async fn ask(ebb: &SharedEbb<Adder>, number: u64) -> u64 {
    loop {
        match ebb.ask(Number(number)).await {
            Ok(Number(sum)) => return sum,
            Err(AskError::NoHome | AskError::Call(CallError::Refused(Refusal::NoSuchEbb))) => {
                sleep(Duration::from_millis(5)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_shared_ebb_answers_wherever_its_home_is() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    pair(
        Loss::Never,
        || async {
            // The home is the other machine, which the id map names once it serves.
            isola_events::spawn_task(async {
                assert_eq!(ask(&ADDER, 40).await, 41);
                CALLS.fetch_add(1, Ordering::AcqRel);
            })
            .detach();
            serve_all().await;
        },
        || async {
            join_first().await;
            let handler = |_, Number(number)| async move { Ok(Number(number + 1)) };
            let _serving = ADDER.serve(handler).await.unwrap().unwrap();
            assert_eq!(ADDER.ask(Number(1)).await.map(|Number(sum)| sum), Ok(2), "also at its home");
            assert_eq!(HOMELESS.ask(Number(1)).await.err(), Some(AskError::NoHome));
            let nonsense = call(MachineId::here(), ebb_id!(ADDER), bytes(b"1")).await;
            assert_eq!(nonsense, Err(CallError::Refused(Refusal::Malformed)));
            while CALLS.load(Ordering::Acquire) == 0 {
                sleep(Duration::from_millis(2)).await;
            }
        },
    );
}

#[test]
fn a_home_belongs_to_its_machine_until_that_stops_serving() {
    let plus = |more| move |_, Number(number)| async move { Ok(Number(number + more)) };
    let [a, b, c] = switch(Loss::Never);
    static CALLER: SharedMachineId = SharedMachineId::new();
    static REFUSED: SharedMachineId = SharedMachineId::new();
    run_cells(
        machine(),
        [
            TestCell::new(1, 1, a, serve_all).until_others_end(),
            TestCell::new(2, 1, b, move || async move {
                let number = join_first().await;
                let serving = MOVED.serve(plus(1)).await.unwrap().unwrap();
                CALLER.set(number);
                REFUSED.get().await;
                assert_eq!(ask(&MOVED, 1).await, 2, "the home has not changed");
                drop(serving);
                // Now the other machine becomes the home.
                while ask(&MOVED, 1).await != 11 {
                    sleep(Duration::from_millis(2)).await;
                }
            }),
            TestCell::new(3, 1, c, move || async move {
                let number = join_first().await;
                CALLER.get().await;
                let not_yours = Some(CallError::Refused(Refusal::NotYours));
                assert_eq!(MOVED.serve(plus(10)).await.err(), not_yours);
                assert_eq!(id_map::set(ebb_id!(MOVED), b"mine").await.err(), not_yours);
                assert_eq!(id_map::remove(ebb_id!(MOVED)).await.err(), not_yours);
                REFUSED.set(number);
                let _serving = loop {
                    match MOVED.serve(plus(10)).await {
                        Ok(serving) => break serving.unwrap(),
                        Err(error) => assert_eq!(Some(error), not_yours),
                    }
                    sleep(Duration::from_millis(2)).await;
                };
                std::future::pending::<()>().await;
            })
            .until_others_end(),
        ],
    );
}
