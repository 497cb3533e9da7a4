//! The queue over drivers that come and go, with requests executed, and not, and executed without an answer.

extern crate std;

use super::*;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;
use isola_block::{BlockDevice, BlockError, BlockSettings};
use isola_events::{spawn_task, yield_now};
use isola_iobuf::{IoBuf, IoBufMut};
use isola_platform::block::BlockPort;
use isola_storage_sim::limits;
use isola_test_task::run_task;

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;

/// A disk whose drivers execute requests when the test says so.
#[derive(Clone)]
struct Disk(Arc<Mutex<DiskState>>);

struct DiskState {
    contents: Vec<u8>,
    waiting: Vec<(u64, BlockRequest)>,
    completed: VecDeque<BlockCompletion>,
    has_failed: bool,
    /// The number of requests that were executed without an answer.
    unanswered: usize,
}

impl Disk {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(DiskState {
            contents: vec![0; BLOCKS * BLOCK],
            waiting: Vec::new(),
            completed: VecDeque::new(),
            has_failed: false,
            unanswered: 0,
        })))
    }

    fn driver(&self) -> Driver {
        let mut state = self.0.lock();
        (state.waiting, state.completed, state.has_failed) = (Vec::new(), VecDeque::new(), false);
        Box::new(DiskDriver(self.clone()))
    }

    /// Executes up to `most` requests, in any order.
    fn complete(&self, most: usize, random: &mut fastrand::Rng) {
        let mut state = self.0.lock();
        for _ in 0..most.min(state.waiting.len()) {
            let index = random.usize(..state.waiting.len());
            let (id, mut request) = state.waiting.swap_remove(index);
            state.execute(&mut request);
            state.completed.push_back(without_device(id, request, BlockOutcome::Done));
        }
    }

    /// Executes some of the requests without an answer, as a service that ends before it can give one.
    fn execute_unanswered(&self, random: &mut fastrand::Rng) {
        let mut state = self.0.lock();
        let mut waiting = core::mem::take(&mut state.waiting);
        for (_, request) in waiting.iter_mut().filter(|_| random.bool()) {
            state.execute(request);
            state.unanswered += 1;
        }
        state.waiting = waiting;
    }
}

impl DiskState {
    fn execute(&mut self, request: &mut BlockRequest) {
        match request {
            BlockRequest::Read { sector, into } => {
                let mut at = *sector as usize * 512;
                for buffer in into {
                    let len = buffer.len();
                    buffer.data_mut().copy_from_slice(&self.contents[at..at + len]);
                    at += len;
                }
            }
            BlockRequest::Write { sector, from } => {
                let at = *sector as usize * 512;
                self.contents[at..at + from.len()].copy_from_slice(&from.to_vec());
            }
            _ => {}
        }
    }
}

struct DiskDriver(Disk);

impl BlockQueue for DiskDriver {
    fn vector(&self) -> Option<u8> {
        None
    }

    fn attach(&mut self) {}

    fn submit(&mut self, request: BlockRequest, id: u64) -> Result<(), RejectedBlockRequest> {
        let mut state = self.0.0.lock();
        if state.waiting.len() + state.completed.len() >= 6 {
            return Err(RejectedBlockRequest { request, reason: BlockRefusal::Full });
        }
        state.waiting.push((id, request));
        Ok(())
    }

    fn flush(&mut self) {}

    fn take_completion(&mut self) -> Option<BlockCompletion> {
        let mut state = self.0.0.lock();
        if let Some(completion) = state.completed.pop_front() {
            return Some(completion);
        }
        let (id, request) = state.has_failed.then(|| state.waiting.pop())??;
        Some(without_device(id, request, BlockOutcome::DeviceFailed))
    }

    fn give_up(&mut self) {
        self.0.0.lock().has_failed = true;
    }

    fn in_flight(&self) -> u16 {
        let state = self.0.0.lock();
        (state.waiting.len() + state.completed.len()) as u16
    }

    fn enable_interrupts(&mut self) -> CompletionsPending {
        let state = self.0.0.lock();
        if state.completed.is_empty() { CompletionsPending::No } else { CompletionsPending::Yes }
    }

    fn disable_interrupts(&mut self) {}
}

fn start(disk: &Disk) -> (Arc<Mutex<Reconnecting>>, BlockDevice) {
    let state = Reconnecting::new(limits(), disk.driver());
    let control = Box::new(ServedControl { sectors: (BLOCKS * BLOCK / 512) as u64 });
    let queue = Box::new(ReconnectingQueue(state.clone())) as Driver;
    let port = BlockPort { limits: limits(), control, queues: vec![queue] };
    (state, BlockDevice::start(port, BlockSettings::default()).unwrap())
}

async fn read(device: &BlockDevice, block: usize) -> Result<Vec<u8>, BlockError> {
    let mut buffer = IoBufMut::with_room(0, BLOCK);
    buffer.extend();
    let buffers = device.read((block * BLOCK / 512) as u64, vec![buffer]).await?;
    Ok(buffers[0].to_vec())
}

/// Lets the cell's tasks run, as after a doorbell.
async fn turn(state: &Arc<Mutex<Reconnecting>>) {
    for _ in 0..4 {
        state.lock().wake_taker();
        yield_now().await;
    }
}

/// Writers and readers see each block as the latest write left it, whatever of their requests a driver has executed when it
/// is replaced. A request completes once.
#[test]
fn requests_outlive_their_drivers() {
    run_task(|| async {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut replaced, mut unanswered) = (0, 0);
        for _ in 0..20 {
            let disk = Disk::new();
            let (state, device) = start(&disk);
            let done = Rc::new(Cell::new(0));
            for task in 0..8_usize {
                let (device, done) = (device.clone(), done.clone());
                spawn_task(async move {
                    for round in 0..10_u8 {
                        let block = task * 8 + usize::from(round % 8);
                        let fill = round.wrapping_mul(17).wrapping_add(task as u8 + 1);
                        let data = IoBuf::from(vec![fill; BLOCK]);
                        device.write((block * BLOCK / 512) as u64, data.into()).await.unwrap();
                        assert_eq!(read(&device, block).await.unwrap(), vec![fill; BLOCK]);
                    }
                    done.set(done.get() + 1);
                })
                .detach();
            }
            let (mut here, mut turns) = (0, 0);
            while done.get() < 8 {
                turns += 1;
                assert!(turns < 100_000, "a request has no completion");
                disk.complete(random.usize(0..4), &mut random);
                if random.bool() {
                    turn(&state).await;
                }
                if random.u8(0..4) == 0 {
                    disk.execute_unanswered(&mut random);
                    state.lock().detach();
                    turn(&state).await;
                    assert!(state.lock().attach(&limits(), disk.driver()));
                    here += 1;
                }
                turn(&state).await;
            }
            assert_eq!(state.lock().reconnections, here);
            (replaced, unanswered) = (replaced + here, unanswered + disk.0.lock().unanswered);
        }
        assert!(replaced > 100 && unanswered > 100, "{replaced} drivers, {unanswered} requests");
    });
}

#[test]
fn requests_without_a_driver_wait_and_fail_when_the_device_is_another() {
    run_task(|| async {
        let disk = Disk::new();
        let (state, device) = start(&disk);
        state.lock().detach();
        let reading = {
            let device = device.clone();
            spawn_task(async move { read(&device, 3).await })
        };
        turn(&state).await;
        assert_eq!(state.lock().again.len(), 1);
        let other = BlockLimits { physical_block_len: 8192, ..limits() };
        assert!(!state.lock().attach(&other, disk.driver()));
        assert_eq!(state.lock().need(Waker::noop()), Need::End);
        turn(&state).await;
        assert_eq!(reading.await, Err(BlockError::DeviceFailed));
        assert_eq!(read(&device, 3).await, Err(BlockError::DeviceFailed));
    });
}

#[test]
fn a_violation_asks_for_a_connection_and_loses_no_request() {
    run_task(|| async {
        let mut random = fastrand::Rng::with_seed(1);
        let disk = Disk::new();
        let (state, device) = start(&disk);
        let reading = {
            let device = device.clone();
            spawn_task(async move { read(&device, 3).await })
        };
        turn(&state).await;
        assert_eq!(state.lock().need(Waker::noop()), Need::Nothing);
        disk.0.lock().has_failed = true;
        turn(&state).await;
        assert_eq!(state.lock().need(Waker::noop()), Need::Connection);
        disk.0.lock().contents[3 * BLOCK..4 * BLOCK].fill(9);
        state.lock().detach();
        assert!(state.lock().attach(&limits(), disk.driver()));
        turn(&state).await;
        disk.complete(9, &mut random);
        turn(&state).await;
        assert_eq!(reading.await.unwrap(), vec![9; BLOCK]);
        drop(device);
        yield_now().await;
        assert_eq!(state.lock().need(Waker::noop()), Need::End, "the device is not in use any more");
    });
}
