//! No wake-up is lost, in any interleaving of the two steps of each side.
//!
//! The device's two steps take place before, within and after the driver's operation, which itself has two.

use super::*;
use core::cell::RefCell;

/// The time of a device's step.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Moment {
    Before,
    Within,
    After,
}

const MOMENTS: [Moment; 3] = [Moment::Before, Moment::Within, Moment::After];

/// Returns all ordered placements of two steps.
fn placements() -> impl Iterator<Item = [Moment; 2]> {
    MOMENTS.into_iter().flat_map(|first| MOMENTS.map(|second| [first, second])).filter(|[a, b]| a <= b)
}

/// Runs `operation` with the device's steps at `moments`.
fn interleave(
    moments: [Moment; 2],
    device: &RefCell<impl FnMut(usize)>,
    operation: impl FnOnce(&mut dyn FnMut()),
) {
    let run = |now| {
        for (step, moment) in moments.iter().enumerate() {
            if *moment == now {
                (device.borrow_mut())(step);
            }
        }
    };
    run(Moment::Before);
    operation(&mut || run(Moment::Within));
    run(Moment::After);
}

#[test]
fn a_device_that_sleeps_during_a_publish_is_notified_or_sees_the_buffers() {
    assert_eq!(placements().count(), 6);
    for options in BOTH {
        for start in [0, 1, 0x7fff, u16::MAX - 1, u16::MAX] {
            for earlier in [0, 1, 2] {
                for moments in placements() {
                    let mut rig = Rig::after(start, 8, options);
                    // Entries that the device has already taken, so that its last event is in the past.
                    rig.ring.refuse_notice();
                    for _ in 0..earlier {
                        let buffer = rig.buffer(b"x");
                        rig.queue.lend(buffer, Access::DeviceReads).unwrap();
                        rig.queue.publish();
                        rig.ring.take().unwrap();
                    }
                    let before = rig.notices();
                    for _ in 0..2 {
                        let buffer = rig.buffer(b"x");
                        rig.queue.lend(buffer, Access::DeviceReads).unwrap();
                    }
                    let mut sees = false;
                    let device = RefCell::new(|step| match step {
                        0 => rig.ring.ask_for_notice(),
                        _ => sees = rig.ring.has_available(),
                    });
                    interleave(moments, &device, |meanwhile| rig.queue.publish_around(meanwhile));
                    let notified = rig.notices.load(Ordering::Relaxed) > before;
                    assert!(
                        notified || sees,
                        "{moments:?} from {start}, {:?}: lost wake-up",
                        options.suppression
                    );
                }
            }
        }
    }
}

#[test]
fn a_driver_that_sleeps_during_a_return_is_interrupted_or_sees_the_buffer() {
    for options in BOTH {
        for start in [0, 1, 0x7fff, u16::MAX - 1, u16::MAX] {
            for earlier in [0, 1, 2] {
                for moments in placements() {
                    let mut rig = Rig::after(start, 8, options);
                    rig.queue.disarm();
                    for _ in 0..earlier + 1 {
                        let buffer = rig.buffer(b"x");
                        rig.queue.lend(buffer, Access::DeviceReads).unwrap();
                    }
                    rig.queue.publish();
                    for _ in 0..earlier {
                        let chain = rig.ring.take().unwrap();
                        rig.ring.give_back(chain.head, 0);
                        assert!(rig.queue.take_returned().unwrap().is_some());
                    }
                    assert!(!rig.ring.wants_interrupt(), "an interrupt was not requested");
                    let chain = rig.ring.take().unwrap();
                    let mut interrupted = false;
                    let device = RefCell::new(|step| match step {
                        0 => rig.ring.give_back(chain.head, 0),
                        _ => interrupted = rig.ring.wants_interrupt(),
                    });
                    let mut pending = Pending::No;
                    interleave(moments, &device, |meanwhile| {
                        pending = rig.queue.arm_around(WakeWhen::Returned, meanwhile);
                    });
                    assert!(
                        interrupted || pending == Pending::Yes,
                        "{moments:?} from {start}, {:?}: lost wake-up",
                        options.suppression
                    );
                }
            }
        }
    }
}

#[test]
fn a_sender_wakes_when_most_buffers_are_returned_and_not_before() {
    for start in [0, u16::MAX - 3] {
        let mut rig = Rig::after(start, 16, BY_INDEX);
        for _ in 0..16 {
            let buffer = rig.buffer(b"x");
            rig.queue.lend(buffer, Access::DeviceReads).unwrap();
        }
        rig.queue.publish();
        assert_eq!(rig.queue.arm(WakeWhen::MostReturned), Pending::No);
        let interrupts: Vec<bool> = (0..16)
            .map(|_| {
                let chain = rig.ring.take().unwrap();
                rig.ring.give_back(chain.head, 0);
                rig.ring.wants_interrupt()
            })
            .collect();
        let expected: Vec<bool> = (0..16).map(|nth| nth == 12).collect();
        assert_eq!(interrupts, expected);
        assert_eq!(rig.queue.arm(WakeWhen::MostReturned), Pending::Yes);
    }
}

#[test]
fn suppressed_notifications_and_interrupts_do_not_come() {
    for options in BOTH {
        let mut rig = Rig::new(8, options);
        rig.ring.refuse_notice();
        rig.queue.disarm();
        for _ in 0..1000 {
            rig.queue.add((), |(), chain| chain.push(0x1000, 1, Access::DeviceReads)).unwrap();
            rig.queue.publish();
            let chain = rig.ring.take().unwrap();
            rig.ring.give_back(chain.head, 0);
            assert!(!rig.ring.wants_interrupt());
            rig.queue.take_returned().unwrap().unwrap();
        }
        assert_eq!(rig.notices(), 0);
    }
}
