//! Random sequences of steps of driver and device, compared with a simple model.

use super::*;
use crate::fake::ring::Chain;
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
enum Step {
    Lend { pieces: usize, what: What },
    Publish,
    DeviceTakes,
    DeviceReturns { nth: usize, written: u32 },
    DriverTakes,
    Arm(WakeWhen),
    Disarm,
    DeviceSleeps,
    DeviceBusy,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Read,
    Write,
    WithHeader,
}

fn step() -> impl Strategy<Value = Step> {
    let what = prop_oneof![Just(What::Read), Just(What::Write), Just(What::WithHeader)];
    prop_oneof![
        4 => (1_usize..7, what).prop_map(|(pieces, what)| Step::Lend { pieces, what }),
        2 => Just(Step::Publish),
        4 => Just(Step::DeviceTakes),
        4 => (0_usize..8, 0_u32..12).prop_map(|(nth, written)| Step::DeviceReturns { nth, written }),
        3 => Just(Step::DriverTakes),
        1 => prop_oneof![Just(WakeWhen::Returned), Just(WakeWhen::MostReturned)].prop_map(Step::Arm),
        1 => Just(Step::Disarm),
        1 => Just(Step::DeviceSleeps),
        1 => Just(Step::DeviceBusy),
    ]
}

/// A side's expectation of the other.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expects {
    /// A wake-up at the next step of the other side.
    WakeUp,
    /// A wake-up before the device has returned everything.
    WakeUpInTime,
    /// No wake-up.
    Quiet,
    Anything,
}

/// A lent buffer, by the segments that the device should see.
type LentChain = (Vec<(u64, u32)>, What);

struct Model {
    rig: Rig<Vec<SharedBuffer>>,
    spare: Vec<SharedBuffer>,
    staged: VecDeque<LentChain>,
    shown: VecDeque<LentChain>,
    held: Vec<(Chain, LentChain)>,
    returned: VecDeque<(LentChain, u32)>,
    device: Expects,
    driver: Expects,
}

const PIECE: usize = 8;
const POOL: usize = 64;

impl Model {
    fn new(start: u16, size: u16, suppression: Suppression, indirection: Indirection) -> Self {
        let options = QueueOptions { suppression, indirection, headers: Headers::Room };
        let rig = Rig::after(start, size, options);
        let spare = (0..POOL).map(|_| rig.buffer(&[0; PIECE])).collect();
        let mut model = Self {
            rig,
            spare,
            staged: VecDeque::new(),
            shown: VecDeque::new(),
            held: Vec::new(),
            returned: VecDeque::new(),
            device: Expects::Quiet,
            driver: Expects::Quiet,
        };
        model.rig.ring.refuse_notice();
        model.rig.queue.disarm();
        model
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Lend { pieces, what } => self.lend(pieces, what)?,
            Step::Publish => self.publish()?,
            Step::DeviceTakes => self.device_takes()?,
            Step::DeviceReturns { nth, written } if !self.held.is_empty() => {
                self.device_returns(nth % self.held.len(), written)?;
            }
            Step::DeviceReturns { .. } => {}
            Step::DriverTakes => self.driver_takes()?,
            Step::Arm(when) => {
                let pending = self.rig.queue.arm(when);
                self.driver = match (pending, when, self.rig.queue.suppression) {
                    (Pending::Yes, ..) => Expects::Anything,
                    (Pending::No, WakeWhen::MostReturned, Suppression::EventIndex) => Expects::WakeUpInTime,
                    (Pending::No, ..) => Expects::WakeUp,
                };
                if when == WakeWhen::Returned {
                    prop_assert_eq!(pending == Pending::Yes, !self.returned.is_empty());
                }
            }
            Step::Disarm => {
                self.rig.queue.disarm();
                self.driver = Expects::Quiet;
            }
            Step::DeviceSleeps => {
                self.rig.ring.ask_for_notice();
                let awake = self.rig.ring.has_available();
                prop_assert_eq!(awake, !self.shown.is_empty());
                self.device = if awake { Expects::Anything } else { Expects::WakeUp };
            }
            Step::DeviceBusy => {
                self.rig.ring.refuse_notice();
                self.device = Expects::Quiet;
            }
        }
        prop_assert_eq!(self.rig.queue.has_returned(), !self.returned.is_empty());
        let outstanding = self.staged.len() + self.shown.len() + self.held.len() + self.returned.len();
        prop_assert_eq!(usize::from(self.rig.queue.outstanding()), outstanding);
        Ok(())
    }

    fn lend(&mut self, pieces: usize, what: What) -> Result<(), TestCaseError> {
        if self.spare.len() < pieces {
            return Ok(());
        }
        let buffer = self.spare.split_off(self.spare.len() - pieces);
        let places = segments(&buffer);
        let room = self.rig.queue.room();
        let result = match what {
            What::Read => self.rig.queue.lend(buffer, Access::DeviceReads),
            What::Write => self.rig.queue.lend(buffer, Access::DeviceWrites),
            What::WithHeader => self.rig.queue.lend_with_header([0xab; HEADER_LEN], buffer),
        };
        let needed = pieces as u16 + u16::from(what == What::WithHeader);
        match result {
            Ok(()) => {
                let taken = room - self.rig.queue.room();
                prop_assert!(taken == needed || taken == 1 && !self.rig.queue.tables.is_empty());
                self.staged.push_back((places, what));
            }
            Err(refused) => {
                let size = self.rig.queue.size();
                let without_tables = self.rig.queue.tables.is_empty();
                match refused.reason {
                    Refusal::Full => {
                        prop_assert!(needed > room && (needed <= size || !without_tables || room == 0));
                    }
                    Refusal::TooManySegments => prop_assert!(needed > size && without_tables),
                    other => prop_assert!(false, "refused: {}", other),
                }
                prop_assert_eq!(segments(&refused.buffer), places);
                prop_assert_eq!(self.rig.queue.room(), room);
                self.spare.extend(refused.buffer);
            }
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<(), TestCaseError> {
        let before = self.rig.notices();
        self.rig.queue.publish();
        let notified = self.rig.notices() - before;
        match self.device {
            Expects::WakeUp if !self.staged.is_empty() => {
                prop_assert_eq!(notified, 1, "lost notification");
                self.device = Expects::Anything;
            }
            Expects::WakeUp | Expects::Quiet => prop_assert_eq!(notified, 0, "unwanted notification"),
            _ => prop_assert!(notified <= 1),
        }
        self.shown.append(&mut self.staged);
        Ok(())
    }

    fn device_takes(&mut self) -> Result<(), TestCaseError> {
        let Some(chain) = self.rig.ring.take() else {
            prop_assert!(self.shown.is_empty());
            return Ok(());
        };
        let (places, what) = self.shown.pop_front().expect("the device was shown something");
        let mut seen = chain.segments.iter();
        if what == What::WithHeader {
            prop_assert_eq!(&self.rig.ring.read(&chain)[..HEADER_LEN], [0xab; HEADER_LEN]);
            seen.next();
        }
        let seen: Vec<_> = seen.map(|segment| (segment.address, segment.len)).collect();
        prop_assert_eq!(&seen, &places);
        prop_assert!(chain.segments.iter().all(|segment| segment.writable == (what == What::Write)));
        // After the device has taken a chain, its event index is in the past.
        if self.device == Expects::WakeUp {
            self.device = Expects::Anything;
        }
        self.held.push((chain, (places, what)));
        Ok(())
    }

    fn device_returns(&mut self, nth: usize, written: u32) -> Result<(), TestCaseError> {
        let (chain, lent) = self.held.swap_remove(nth);
        let written = if lent.1 == What::Write { written.min((lent.0.len() * PIECE) as u32) } else { 0 };
        self.rig.ring.give_back(chain.head, written);
        self.returned.push_back((lent, written));
        let interrupt = self.rig.ring.wants_interrupt();
        let last = self.held.is_empty() && self.shown.is_empty();
        match self.driver {
            Expects::WakeUp => prop_assert!(interrupt, "lost interrupt"),
            Expects::WakeUpInTime => prop_assert!(interrupt || !last, "lost interrupt"),
            Expects::Quiet => prop_assert!(!interrupt, "unwanted interrupt"),
            Expects::Anything => {}
        }
        if interrupt {
            self.driver = Expects::Anything;
        }
        Ok(())
    }

    fn driver_takes(&mut self) -> Result<(), TestCaseError> {
        match self.rig.queue.take_returned() {
            Ok(Some(back)) => {
                let ((places, _), written) = self.returned.pop_front().expect("something was returned");
                prop_assert_eq!(segments(&back.buffer), places);
                prop_assert_eq!(back.written, written);
                self.spare.extend(back.buffer);
            }
            Ok(None) => prop_assert!(self.returned.is_empty()),
            Err(fault) => prop_assert!(false, "fault without a violation: {}", fault),
        }
        Ok(())
    }

    /// Returns all buffers; all descriptors and tables are free then.
    fn drain(mut self) -> Result<(), TestCaseError> {
        self.publish()?;
        while !self.shown.is_empty() {
            self.device_takes()?;
        }
        while !self.held.is_empty() {
            self.device_returns(0, 0)?;
        }
        while !self.returned.is_empty() {
            self.driver_takes()?;
        }
        prop_assert_eq!(self.rig.queue.room(), self.rig.queue.size());
        prop_assert_eq!(self.spare.len(), POOL);
        Ok(())
    }
}

proptest! {
    #[test]
    fn driver_and_device_agree_for_any_sequence_of_steps(
        start in prop_oneof![Just(0), Just(0x7ff8), 0xffe0_u16..=0xffff],
        size in prop_oneof![Just(2_u16), Just(4), Just(16)],
        suppression in prop_oneof![Just(Suppression::Flags), Just(Suppression::EventIndex)],
        indirection in prop_oneof![Just(Indirection::Never), Just(Indirection::LongChains)],
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut model = Model::new(start, size, suppression, indirection);
        for step in &steps {
            model.step(step)?;
        }
        model.drain()?;
    }
}
