//! Machines that come, go and come back, the first among them.

mod common;

use common::{ECHO, Known, PORT, SLOW, bytes, dial, echo, first, hello, is_set, join_by_hand, join_first};
use common::{first_answer, pair, serve_all};
use isola_events::{sleep, timeout};
use isola_gateway::test_cells::{TestCell, run_cells};
use isola_hosted::{Loss, switch};
use isola_iobuf::Chain;
use isola_messenger::{
    CallError, MAX_PAYLOAD, MachineId, Refusal, call, disconnected, host, id_map, rejoin, serve,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

#[test]
fn calls_to_a_machine_that_goes_away_end_with_that() {
    static SECOND: Known = Known::new();
    pair(
        Loss::Never,
        || async {
            isola_events::spawn_task(serve_all()).detach();
            let second = SECOND.get().await;
            first_answer(second, ECHO).await;
            // It never answers this one, and is cut off meanwhile.
            let lost = call(second, SLOW, Chain::new()).await;
            assert_eq!(lost, Err(CallError::Refused(Refusal::Gone)));
            SECOND.tell(MachineId::FIRST);
        },
        || async {
            // A raw connection, so that it can be cut.
            let mut raw = dial().await;
            SECOND.tell(join_by_hand(&mut raw).await);
            let mut come = Chain::new();
            let mut answered = 0;
            while answered < 2 {
                let Ok(Some(data)) = raw.read().await else { panic!("the first machine ended it") };
                come.append(data);
                while come.len() >= 32 {
                    let length = come.cursor().read_u32_be().unwrap() as usize + 4;
                    let Some(frame) = come.split_to(length) else { break };
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
fn who_does_not_speak_the_protocol_is_let_go_of_and_nothing_else_happens() {
    pair(Loss::Never, serve_all, || async {
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
        join_first().await;
        assert_eq!(call(MachineId::FIRST, ECHO, bytes(b"1")).await.unwrap().to_vec(), b"1");
    });
}

#[test]
fn connections_that_say_nothing_keep_no_machine_out_and_the_oldest_go() {
    pair(Loss::Never, serve_all, || async {
        let mut silent = Vec::new();
        for _ in 0..65 {
            silent.push(dial().await);
        }
        // The 65th has come in the place of the first, long before its time is over.
        let ended = timeout(Duration::from_secs(5), silent[0].read()).await;
        assert!(matches!(ended, Ok(Ok(None) | Err(_))), "{ended:?}");
        assert!(timeout(Duration::from_millis(50), silent[1].read()).await.is_err());
        // Who says who it is has a place among them.
        join_first().await;
        assert_eq!(call(MachineId::FIRST, ECHO, bytes(b"1")).await.unwrap().to_vec(), b"1");
        // What has said so is no stranger any more.
        for _ in 0..70 {
            silent.push(dial().await);
        }
        assert_eq!(call(MachineId::FIRST, ECHO, bytes(b"2")).await.unwrap().to_vec(), b"2");
    });
}

/// The first machine goes and another comes in its place, which knows nothing of the machines before.
#[test]
fn machines_join_a_first_machine_that_has_started_anew_under_their_numbers() {
    static BOTH: [Known; 2] = [Known::new(), Known::new()];
    static MET: AtomicUsize = AtomicUsize::new(0);
    static GONE: AtomicBool = AtomicBool::new(false);
    static DONE: AtomicBool = AtomicBool::new(false);
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let [a, b, c, d, anew] = switch(Loss::Never);
    async fn both(count: &AtomicUsize) {
        while count.load(Ordering::Acquire) < 2 {
            sleep(Duration::from_millis(2)).await;
        }
    }
    async fn old(own: &'static Known, other: &'static Known) {
        let number = join_first().await;
        let _echo = serve(ECHO, echo).unwrap();
        own.tell(number);
        first_answer(other.get().await, ECHO).await;
        MET.fetch_add(1, Ordering::AcqRel);
        disconnected().await;
        let disconnected_from = call(MachineId::FIRST, ECHO, Chain::new()).await;
        assert_eq!(disconnected_from, Err(CallError::NoSuchMachine));
        assert_eq!(rejoin(first()).await, number, "and nobody else's");
        first_answer(MachineId::FIRST, ECHO).await;
        // What it knows of another machine of before holds.
        first_answer(other.get().await, ECHO).await;
        // It answers until the other has asked, too.
        ASKED.fetch_add(1, Ordering::AcqRel);
        both(&ASKED).await;
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            run_cells([TestCell::new(1, 1, a, || async {
                let _listening = host(PORT).unwrap();
                both(&MET).await;
            })]);
            GONE.store(true, Ordering::Release);
            run_cells([TestCell::new(1, 1, anew, || async {
                let _listening = host(PORT).unwrap();
                let _map = id_map::keep().unwrap();
                let _echo = serve(ECHO, echo).unwrap();
                is_set(&DONE).await;
            })]);
        });
        run_cells([
            TestCell::new(2, 1, b, || old(&BOTH[0], &BOTH[1])),
            TestCell::new(3, 2, c, || old(&BOTH[1], &BOTH[0])),
            TestCell::new(4, 1, d, || async {
                is_set(&GONE).await;
                // One that was not there before gets a number that none of them has.
                let number = rejoin(first()).await;
                for known in &BOTH {
                    assert_ne!(number, known.get().await);
                }
            }),
        ]);
        DONE.store(true, Ordering::Release);
    });
}
