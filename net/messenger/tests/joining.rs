//! Machines that join, leave and return, including the first machine.

mod common;

use common::{
    ECHO, PORT, SLOW, SharedMachineId, bytes, dial, echo, first, hello, is_set, join_by_hand, join_first,
    machine, run_cells,
};
use common::{first_answer, pair, serve_all};
use isola_events::{sleep, timeout};
use isola_hosted::{Loss, switch};
use isola_iobuf::Chain;
use isola_messenger::{
    CallError, MAX_PAYLOAD, MachineId, Refusal, call, disconnected, host, id_map, rejoin, serve,
};
use isola_test_cells::{TestCell, dial_to};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

#[test]
fn calls_to_a_machine_that_leaves_fail() {
    static SECOND: SharedMachineId = SharedMachineId::new();
    pair(
        Loss::Never,
        || async {
            isola_events::spawn_task(serve_all()).detach();
            let second = SECOND.get().await;
            first_answer(second, ECHO).await;
            // The machine never answers this call, and disconnects meanwhile.
            let lost = call(second, SLOW, Chain::new()).await;
            assert_eq!(lost, Err(CallError::Refused(Refusal::Disconnected)));
            SECOND.set(MachineId::FIRST);
        },
        || async {
            // A raw connection, so that the test can end it.
            let mut raw = dial().await;
            SECOND.set(join_by_hand(&mut raw).await);
            let mut received = Chain::new();
            let mut answered = 0;
            while answered < 2 {
                let Some(data) = raw.read().await else { panic!("the first machine ended it") };
                received.append(data);
                while received.len() >= 32 {
                    let length = received.cursor().read_u32_be().unwrap() as usize + 4;
                    let Some(frame) = received.split_to(length) else { break };
                    let mut frame = frame.to_vec();
                    // A call: the first is answered, the second never.
                    assert_eq!(frame[7], 3);
                    answered += 1;
                    if answered == 1 {
                        frame[7] = 4;
                        frame.copy_within(8..12, 12);
                        frame[8..12].copy_from_slice(&1_u32.to_be_bytes());
                        frame[24..32].fill(0);
                        raw.write(bytes(&frame)).await.unwrap();
                    }
                }
            }
            raw.abort();
            while SECOND.get().await != MachineId::FIRST {
                sleep(Duration::from_millis(2)).await;
            }
        },
    );
}

#[test]
fn a_protocol_violation_ends_only_that_connection() {
    pair(Loss::Never, serve_all, || async {
        let mut stream = dial().await;
        stream.write(bytes(&[0xff; 64])).await.unwrap();
        assert!(stream.read().await.is_none());
        // Nor does the first machine wait for the rest of a long frame from an unidentified peer.
        let mut stream = dial().await;
        let mut long = hello().to_vec();
        long[..4].copy_from_slice(&(MAX_PAYLOAD as u32).to_be_bytes());
        stream.write(bytes(&long)).await.unwrap();
        let ended = timeout(Duration::from_secs(5), stream.read()).await;
        assert!(matches!(ended, Ok(None)));
        join_first().await;
        assert_eq!(call(MachineId::FIRST, ECHO, bytes(b"1")).await.unwrap().to_vec(), b"1");
    });
}

#[test]
fn silent_connections_are_replaced_and_do_not_keep_machines_out() {
    pair(Loss::Never, serve_all, || async {
        let mut silent = Vec::new();
        for _ in 0..65 {
            silent.push(dial_to(first()).await);
        }
        // The 65th connection has replaced the first, long before its time limit.
        let ended = timeout(Duration::from_secs(5), silent[0].read()).await;
        assert!(matches!(ended, Ok(Ok(None) | Err(_))), "{ended:?}");
        assert!(timeout(Duration::from_millis(50), silent[1].read()).await.is_err());
        // A machine that greets gets a slot among them.
        join_first().await;
        assert_eq!(call(MachineId::FIRST, ECHO, bytes(b"1")).await.unwrap().to_vec(), b"1");
        // A machine that has greeted keeps its connection.
        for _ in 0..70 {
            silent.push(dial_to(first()).await);
        }
        assert_eq!(call(MachineId::FIRST, ECHO, bytes(b"2")).await.unwrap().to_vec(), b"2");
    });
}

/// The first machine ends and another takes its place, without knowledge of the earlier machines.
#[test]
fn machines_rejoin_a_restarted_first_machine_under_their_numbers() {
    static BOTH: [SharedMachineId; 2] = [SharedMachineId::new(), SharedMachineId::new()];
    static MET: AtomicUsize = AtomicUsize::new(0);
    static HAS_LEFT: AtomicBool = AtomicBool::new(false);
    static DONE: AtomicBool = AtomicBool::new(false);
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let [a, b, c, d, anew] = switch(Loss::Never);
    let machine = machine();
    async fn both(count: &AtomicUsize) {
        while count.load(Ordering::Acquire) < 2 {
            sleep(Duration::from_millis(2)).await;
        }
    }
    async fn old(own: &'static SharedMachineId, other: &'static SharedMachineId) {
        let number = join_first().await;
        let _echo = serve(ECHO, echo).unwrap();
        own.set(number);
        first_answer(other.get().await, ECHO).await;
        MET.fetch_add(1, Ordering::AcqRel);
        disconnected().await;
        let disconnected_from = call(MachineId::FIRST, ECHO, Chain::new()).await;
        assert_eq!(disconnected_from, Err(CallError::NoSuchMachine));
        assert_eq!(rejoin(first()).await, number, "its own number");
        first_answer(MachineId::FIRST, ECHO).await;
        // The numbers of other earlier machines remain valid.
        first_answer(other.get().await, ECHO).await;
        // It must answer until the other has asked, too.
        CALLS.fetch_add(1, Ordering::AcqRel);
        both(&CALLS).await;
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            run_cells(
                machine,
                [TestCell::new(1, 1, a, || async {
                    let _listening = host(PORT).unwrap();
                    both(&MET).await;
                })],
            );
            HAS_LEFT.store(true, Ordering::Release);
            run_cells(
                machine,
                [TestCell::new(1, 1, anew, || async {
                    let _listening = host(PORT).unwrap();
                    let _map = id_map::serve().unwrap();
                    let _echo = serve(ECHO, echo).unwrap();
                    is_set(&DONE).await;
                })],
            );
        });
        run_cells(
            machine,
            [
                TestCell::new(2, 1, b, || old(&BOTH[0], &BOTH[1])),
                TestCell::new(3, 2, c, || old(&BOTH[1], &BOTH[0])),
                TestCell::new(4, 1, d, || async {
                    is_set(&HAS_LEFT).await;
                    // A new machine gets a number that none of the earlier ones has.
                    let number = rejoin(first()).await;
                    for shared_id in &BOTH {
                        assert_ne!(number, shared_id.get().await);
                    }
                }),
            ],
        );
        DONE.store(true, Ordering::Release);
    });
}
