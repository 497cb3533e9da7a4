//! Random requests to a device that follows the protocol, compared with a disk in ordinary memory.

use super::*;
use crate::fake::disk::{IO_ERROR, SeenRequest};
use crate::fake::ring::Chain;
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
enum Step {
    /// Blocks from the first on, each a segment, or half of it and the rest.
    Read {
        block: u64,
        blocks: usize,
    },
    Write {
        block: u64,
        blocks: usize,
        fill: u8,
    },
    Zero {
        block: u64,
        blocks: u32,
    },
    Flush,
    Publish,
    DeviceTakes,
    /// The device executes or fails one of its requests.
    DeviceExecutes(usize),
    DeviceFails(usize),
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0_u64..28, 1_usize..5);
    prop_oneof![
        3 => place().prop_map(|(block, blocks)| Step::Read { block, blocks }),
        3 => (place(), any::<u8>()).prop_map(|((block, blocks), fill)| Step::Write { block, blocks, fill }),
        1 => (0_u64..28, 1_u32..5).prop_map(|(block, blocks)| Step::Zero { block, blocks }),
        1 => Just(Step::Flush),
        3 => Just(Step::Publish),
        5 => Just(Step::DeviceTakes),
        5 => (0_usize..8).prop_map(Step::DeviceExecutes),
        1 => (0_usize..8).prop_map(Step::DeviceFails),
        3 => Just(Step::Take),
    ]
}

struct Model {
    rig: Rig,
    _device: BlockDevice,
    queue: Queue,
    disk: FakeDisk,
    held: Vec<(Chain, SeenRequest)>,
    next: u32,
    /// The tags of the requests in the queue with their first sectors and lengths.
    waiting: HashMap<u32, (u64, usize)>,
    /// By first sector and length of a read, the outcomes in the order of their execution.
    executed: Vec<(Outcome, Vec<u8>)>,
    completed: usize,
}

impl Model {
    fn new(offered: u64) -> Self {
        let rig = Rig::new(offered);
        let (device, queue, disk) = rig.start_one();
        Self {
            rig,
            _device: device,
            queue,
            disk,
            held: vec![],
            next: 0,
            waiting: HashMap::new(),
            executed: vec![],
            completed: 0,
        }
    }

    fn submit(&mut self, request: Request<Buffer>, sector: u64, len: usize) -> Result<(), TestCaseError> {
        let ahead = self.queue.in_flight();
        prop_assert_eq!(usize::from(ahead), self.waiting.len());
        match self.queue.submit(request, self.next) {
            Ok(()) => {
                self.waiting.insert(self.next, (sector, len));
                self.next += 1;
            }
            Err(refused) => {
                prop_assert_eq!(refused.reason, RequestRefusal::Queue(Refusal::Full));
                prop_assert_eq!(refused.tag, self.next);
                prop_assert!(self.queue.room() < 6);
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Read { block, blocks } => {
                let request = self.rig.read(block * 2, &vec![1024; blocks]);
                self.submit(request, block * 2, blocks * 1024)?;
            }
            Step::Write { block, blocks, fill } => {
                let request = self.rig.write(block * 2, &vec![1024; blocks], fill);
                self.submit(request, block * 2, blocks * 1024)?;
            }
            Step::Zero { block, blocks } => {
                let (sector, sectors) = (block * 2, blocks * 2);
                self.submit(Request::WriteZeroes { sector, sectors, unmap: Unmap::Never }, sector, 0)?;
            }
            Step::Flush => self.submit(Request::Flush, 0, 0)?,
            Step::Publish => self.queue.publish(),
            Step::DeviceTakes => self.held.extend(self.disk.take()),
            Step::DeviceExecutes(nth) if !self.held.is_empty() => {
                let (chain, seen) = self.held.swap_remove(nth % self.held.len());
                self.disk.execute(&chain, &seen);
                let at = seen.sector as usize * 512;
                let read = self.disk.bytes[at..at + seen.wanted].to_vec();
                self.executed.push((Outcome::Done, read));
            }
            Step::DeviceFails(nth) if !self.held.is_empty() => {
                let (chain, _) = self.held.swap_remove(nth % self.held.len());
                self.disk.refuse(&chain, IO_ERROR, 1);
                self.executed.push((Outcome::IoError, vec![]));
            }
            Step::DeviceExecutes(_) | Step::DeviceFails(_) => {}
            Step::Take => self.take()?,
        }
        prop_assert_eq!(self.queue.has_completed(), self.completed < self.executed.len());
        Ok(())
    }

    fn take(&mut self) -> Result<(), TestCaseError> {
        let Some(done) = self.queue.take_completed() else {
            prop_assert_eq!(self.completed, self.executed.len());
            return Ok(());
        };
        let (outcome, read) = &self.executed[self.completed];
        self.completed += 1;
        prop_assert_eq!(done.outcome, *outcome);
        let (sector, len) = self.waiting.remove(&done.tag).expect("a tag in the queue");
        prop_assert_eq!(done.data_len as usize, len);
        if let Some(Request::Read { sector: first, into }) = &done.request {
            prop_assert_eq!(*first, sector);
            if *outcome == Outcome::Done {
                prop_assert_eq!(&bytes(into), read);
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn driver_and_disk_agree_for_any_sequence_of_requests(
        indirect in any::<bool>(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut model = Model::new(if indirect { EVERYTHING } else { EVERYTHING & !INDIRECT });
        for step in &steps {
            model.step(step)?;
        }
        model.step(&Step::Publish)?;
        while !model.waiting.is_empty() {
            for step in [Step::DeviceTakes, Step::DeviceExecutes(0), Step::Take] {
                model.step(&step)?;
            }
        }
        prop_assert_eq!((model.queue.in_flight(), model.queue.room()), (0, 16));
    }
}
