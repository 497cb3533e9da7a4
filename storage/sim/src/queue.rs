//! The device's side of a disk.

use crate::{Logged, SimDisk, State, Timing, VECTOR};
use isola_hosted::core::HostedCore;
use isola_iobuf::{Chain, IoBufMut};
use isola_platform::Instant;
use isola_platform::block::{
    BlockCompletion, BlockControl, BlockOutcome, BlockQueue, BlockRefusal, BlockRequest, CompletionsPending,
    RejectedBlockRequest, SECTOR_LEN, Writability,
};

pub(crate) struct SimQueue(pub SimDisk);
pub(crate) struct SimControl(pub SimDisk);

impl BlockControl for SimControl {
    fn capacity(&mut self) -> u64 {
        self.0.lock().contents.len() as u64 / u64::from(SECTOR_LEN)
    }
}

fn bytes_of(request: &BlockRequest) -> (u64, usize) {
    let bytes_of = |sectors: u32| sectors as usize * SECTOR_LEN as usize;
    match request {
        BlockRequest::Read { sector, into } => (*sector, into.iter().map(|buffer| buffer.len()).sum()),
        BlockRequest::Write { sector, from } => (*sector, from.len()),
        BlockRequest::Discard { sector, sectors } | BlockRequest::WriteZeroes { sector, sectors, .. } => {
            (*sector, bytes_of(*sectors))
        }
        BlockRequest::Flush => (0, 0),
    }
}

impl SimDisk {
    fn check(&self, state: &State, request: &BlockRequest) -> Result<(), BlockRefusal> {
        let (sector, len) = bytes_of(request);
        let limits = &self.limits;
        if state.failed {
            return Err(BlockRefusal::DeviceFailed);
        }
        if state.submitted.len() + state.completed.len() >= state.queue_len {
            return Err(BlockRefusal::Full);
        }
        let (has_data, pieces, is_read) = match request {
            BlockRequest::Read { into, .. } => (true, into.len(), true),
            BlockRequest::Write { from, .. } => (true, from.parts().len(), false),
            _ => (false, 0, false),
        };
        if !is_read && limits.writability == Writability::ReadOnly {
            return Err(BlockRefusal::ReadOnly);
        }
        if has_data && (len == 0 || len % limits.block_len as usize != 0) {
            return Err(BlockRefusal::Misaligned);
        }
        if has_data && len > limits.data_len as usize {
            return Err(BlockRefusal::TooLong);
        }
        if pieces > usize::from(limits.pieces) {
            return Err(BlockRefusal::TooManyPieces);
        }
        let end = usize::try_from(sector).ok().and_then(|sector| sector.checked_mul(SECTOR_LEN as usize));
        match end.and_then(|start| start.checked_add(len)) {
            Some(end) if end <= state.contents.len() => Ok(()),
            _ => Err(BlockRefusal::OutsideDevice),
        }
    }
}

impl State {
    pub fn interrupt(&mut self) {
        if !self.completed.is_empty()
            && std::mem::take(&mut self.armed)
            && let Some(core) = self.core
        {
            core.interrupt(VECTOR);
        }
    }

    pub fn fail(&mut self) {
        self.failed = true;
        for mut completion in std::mem::take(&mut self.submitted) {
            completion.outcome = BlockOutcome::DeviceFailed;
            completion.request = None;
            self.completed.push(completion);
        }
    }

    /// Executes a random request of the submitted ones.
    pub fn execute_one(&mut self) {
        let index = self.random.usize(..self.submitted.len());
        let mut completion = self.submitted.remove(index);
        let Some(request) = completion.request.as_mut() else { return };
        let (sector, len) = bytes_of(request);
        let at = sector as usize * SECTOR_LEN as usize;
        let is_bad = self.bad.as_ref().is_some_and(|bad| at < bad.end && bad.start < at + len);
        if is_bad {
            completion.outcome = BlockOutcome::IoError;
        } else {
            self.execute(request, at, len);
        }
        self.completed.push(completion);
    }

    fn execute(&mut self, request: &mut BlockRequest, at: usize, len: usize) {
        match request {
            BlockRequest::Read { into, .. } => {
                self.counts.0 += 1;
                self.bytes.0 += len as u64;
                let mut at = at;
                for buffer in into.iter_mut().map(IoBufMut::data_mut) {
                    buffer.copy_from_slice(&self.contents[at..at + buffer.len()]);
                    at += buffer.len();
                }
            }
            BlockRequest::Write { from, .. } => {
                self.counts.1 += 1;
                self.bytes.1 += len as u64;
                let bytes = Chain::to_vec(from);
                self.contents[at..at + len].copy_from_slice(&bytes);
                self.log.push(Logged::Write { at, bytes });
            }
            BlockRequest::Flush => {
                self.counts.2 += 1;
                self.log.push(Logged::Flush);
            }
            BlockRequest::WriteZeroes { .. } => {
                self.counts.2 += 1;
                self.contents[at..at + len].fill(0);
                self.log.push(Logged::Write { at, bytes: vec![0; len] });
            }
            BlockRequest::Discard { .. } => {
                self.counts.2 += 1;
                let garbage: Vec<u8> = (0..len).map(|_| self.random.u8(..)).collect();
                self.contents[at..at + len].copy_from_slice(&garbage);
                self.log.push(Logged::Write { at, bytes: garbage });
            }
        }
    }
}

impl BlockQueue for SimQueue {
    fn vector(&self) -> Option<u8> {
        Some(VECTOR)
    }

    fn attach(&mut self) {
        self.0.lock().core = HostedCore::current();
    }

    fn submit(&mut self, request: BlockRequest, id: u64) -> Result<(), RejectedBlockRequest> {
        let mut state = self.0.lock();
        if let Err(reason) = self.0.check(&state, &request) {
            return Err(RejectedBlockRequest { request, reason });
        }
        let ahead = state.submitted.len() as u16;
        let data_len = bytes_of(&request).1 as u32;
        if let (BlockRequest::Read { sector, .. } | BlockRequest::Write { sector, .. }, Some(order)) =
            (&request, &mut state.order)
        {
            order.push(*sector);
        }
        state.submitted.push(BlockCompletion {
            id,
            outcome: BlockOutcome::Done,
            request: Some(request),
            data_len,
            submitted: Instant::default(),
            ahead,
        });
        Ok(())
    }

    fn flush(&mut self) {
        let mut state = self.0.lock();
        if state.timing == Timing::Immediate {
            while !state.submitted.is_empty() {
                state.execute_one();
            }
        }
    }

    fn take_completion(&mut self) -> Option<BlockCompletion> {
        let mut state = self.0.lock();
        (!state.completed.is_empty()).then(|| state.completed.remove(0))
    }

    fn give_up(&mut self) {
        self.0.lock().fail();
    }

    fn in_flight(&self) -> u16 {
        let state = self.0.lock();
        (state.submitted.len() + state.completed.len()) as u16
    }

    fn enable_interrupts(&mut self) -> CompletionsPending {
        let mut state = self.0.lock();
        if state.completed.is_empty() {
            state.armed = true;
            CompletionsPending::No
        } else {
            CompletionsPending::Yes
        }
    }

    fn disable_interrupts(&mut self) {
        self.0.lock().armed = false;
    }
}
