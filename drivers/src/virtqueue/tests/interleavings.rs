//! No wake-up is lost: every order in which the two steps of one side can fall among the two of the other.
//!
//! The device's two steps are placed before, within and after the driver's operation, which itself takes two.

use super::*;
use core::cell::RefCell;

/// Where a step of the device falls.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Moment {
    Before,
    Within,
    After,
}

const MOMENTS: [Moment; 3] = [Moment::Before, Moment::Within, Moment::After];

/// All ways to place two steps in order.
fn placements() -> impl Iterator<Item = [Moment; 2]> {
    MOMENTS.into_iter().flat_map(|first| MOMENTS.map(|second| [first, second])).filter(|[a, b]| a <= b)
}

/// Runs `operation` with the device's `steps` placed at `moments`.
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
fn a_device_that_goes_to_sleep_while_the_driver_publishes_is_told_or_sees_it() {
    assert_eq!(placements().count(), 6);
    for options in BOTH {
        for start in [0, 1, 0x7fff, u16::MAX - 1, u16::MAX] {
            for earlier in [0, 1, 2] {
                for moments in placements() {
                    let mut rig = Rig::after(start, 8, options);
                    // Entries that the device has taken already, so that its last event lies in the past.
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
                    let told = rig.notices.load(Ordering::Relaxed) > before;
                    assert!(
                        told || sees,
                        "{moments:?} from {start}, {:?}: asleep for ever",
                        options.suppression
                    );
                }
            }
        }
    }
}

#[test]
fn a_driver_that_goes_to_sleep_while_the_device_returns_is_interrupted_or_sees_it() {
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
                    assert!(!rig.ring.wants_interrupt(), "none was asked for");
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
                        "{moments:?} from {start}, {:?}: asleep for ever",
                        options.suppression
                    );
                }
            }
        }
    }
}

#[test]
fn who_waits_for_room_is_woken_when_most_is_returned_and_not_before() {
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
fn notices_and_interrupts_stay_away_where_nobody_wants_them() {
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
