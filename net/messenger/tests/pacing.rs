//! Machines that send more than another takes at once.

mod common;

use common::{
    ECHO, SharedMachineId, bytes, dial, echo, is_set, join_by_hand, join_first, machine, pair, run_cells,
    serve_all,
};
use isola_ebbs::platform;
use isola_events::future::join_all;
use isola_events::{sleep, spawn_task};
use isola_hosted::{Loss, switch};
use isola_messenger::{CallError, MAX_CALLS, MAX_PAYLOAD, MachineId, Refusal, call, serve};
use isola_test_cells::TestCell;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn an_overloaded_callee_stays_connected() {
    static CALLEE: SharedMachineId = SharedMachineId::new();
    let [a, b, c, d] = switch(Loss::Never);
    async fn ask() {
        join_first().await;
        // Both callers send 8 MiB.
        let block = vec![7; MAX_PAYLOAD / 2];
        let callee = CALLEE.get().await;
        let calls = (0..MAX_CALLS).map(|_| call(callee, ECHO, bytes(&block)));
        for answer in join_all(calls).await {
            assert!(answer.unwrap().to_vec() == block);
        }
    }
    run_cells(
        machine(),
        [
            TestCell::new(1, 1, a, serve_all).until_others_end(),
            TestCell::new(2, 1, b, || async {
                let number = join_first().await;
                let _echo = serve(ECHO, echo).unwrap();
                CALLEE.set(number);
                std::future::pending::<()>().await;
            })
            .until_others_end(),
            TestCell::new(3, 1, c, ask),
            TestCell::new(4, 1, d, ask),
        ],
    );
}

#[test]
fn a_machine_that_does_not_read_is_disconnected_and_its_callers_get_errors() {
    static SILENT: SharedMachineId = SharedMachineId::new();
    static IS_SENT: AtomicBool = AtomicBool::new(false);
    let [a, b, c] = switch(Loss::Never);
    run_cells(
        machine(),
        [
            TestCell::new(1, 1, a, serve_all).until_others_end(),
            TestCell::new(2, 1, b, || async {
                let mut raw = dial().await;
                // Reads the welcome and no more.
                SILENT.set(join_by_hand(&mut raw).await);
                is_set(&IS_SENT).await;
            }),
            TestCell::new(3, 1, c, || async {
                let silent = SILENT.get().await;
                join_first().await;
                let block = bytes(&vec![7; MAX_PAYLOAD]);
                let calls = (0..MAX_CALLS).map(|_| call(silent, ECHO, block.clone()));
                let answers = join_all(calls).await;
                // Late calls find that the machine has left.
                let is_told = |answer: &Result<_, _>| {
                    matches!(answer, Err(CallError::Refused(Refusal::Disconnected | Refusal::NoSuchMachine)))
                };
                assert!(answers.iter().all(is_told), "{answers:?}");
                // All other machines are still connected.
                assert!(call(MachineId::FIRST, ECHO, bytes(b"1")).await.is_ok());
                IS_SENT.store(true, Ordering::Release);
            }),
        ],
    );
}

#[test]
fn incomplete_frames_do_not_exhaust_the_first_machine() {
    async fn serve_with_64_mib() {
        platform().report().memory.total_bytes.store(64 << 20, Ordering::Relaxed);
        serve_all().await;
    }
    pair(Loss::Never, serve_with_64_mib, || async {
        join_first().await;
        // The limit for 64 MiB is 8 MiB; the test sends incomplete frames of 14 MiB.
        let mut raws = Vec::new();
        for _ in 0..14 {
            let mut raw = dial().await;
            join_by_hand(&mut raw).await;
            let mut half = (MAX_PAYLOAD as u32).to_be_bytes().to_vec();
            half.resize(MAX_PAYLOAD - 1, 0);
            let _ = raw.write(bytes(&half)).await;
            raws.push(raw);
        }
        let ended = Rc::new(Cell::new(0));
        for mut raw in raws {
            let ended = ended.clone();
            spawn_task(async move {
                if raw.read().await.is_none() {
                    ended.set(ended.get() + 1);
                }
            })
            .detach();
        }
        while ended.get() < 6 {
            sleep(Duration::from_millis(2)).await;
        }
        assert!(call(MachineId::FIRST, ECHO, bytes(b"1")).await.is_ok());
        // Those that have ended have left room for the others.
        assert!(ended.get() < 14, "all connections have ended");
    });
}
