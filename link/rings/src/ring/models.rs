use super::*;
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;

#[derive(Clone)]
struct Memory(Arc<alloc::vec::Vec<AtomicU64>>);

impl Deref for Memory {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

fn pair() -> (Ring<Memory, Memory>, Ring<Memory, Memory>) {
    let memory = || Memory(Arc::new((0..6 * LINE_WORDS).map(|_| AtomicU64::new(0)).collect()));
    let memories = [memory(), memory()];
    let half = |index: usize| Half::new(memories[index].clone()).unwrap();
    half(0).init();
    half(1).init();
    (Ring::new(half(0), half(1)), Ring::new(half(1), half(0)))
}

/// A receiver that arms itself and then waits for an interrupt misses no packet, and reads whole lines.
#[test]
fn a_packet_to_a_receiver_that_is_about_to_halt_notifies_it() {
    loom::model(|| {
        let (mut a, mut b) = pair();
        let interrupted = Arc::new(AtomicBool::new(false));
        let sender = thread::spawn({
            let interrupted = interrupted.clone();
            move || {
                let message = Message::new([5; LINE_WORDS - 1]);
                if a.send_message(&message) == Ok(MustNotify::Yes) {
                    interrupted.store(true, Ordering::Release);
                }
            }
        });
        if b.arm() == Ok(Armed::Yes) {
            while !interrupted.load(Ordering::Acquire) {
                thread::yield_now();
            }
        }
        assert_eq!(b.receive_message(), Ok(Some(Message::new([5; LINE_WORDS - 1]))));
        sender.join().unwrap();
    });
}

/// A sender without room that waits for an interrupt misses no release.
#[test]
fn a_release_to_a_sender_that_waits_for_room_notifies_it() {
    loom::model(|| {
        let (mut a, mut b) = pair();
        for _ in 0..2 {
            let _ = a.send_message(&Message::default()).unwrap();
        }
        let interrupted = Arc::new(AtomicBool::new(false));
        let receiver = thread::spawn({
            let interrupted = interrupted.clone();
            move || {
                assert!(b.receive_message().unwrap().is_some());
                if b.release() == MustNotify::Yes {
                    interrupted.store(true, Ordering::Release);
                }
            }
        });
        if a.await_room(8) == Ok(false) {
            while !interrupted.load(Ordering::Acquire) {
                thread::yield_now();
            }
        }
        assert!(a.send_message(&Message::default()).is_ok());
        receiver.join().unwrap();
    });
}
