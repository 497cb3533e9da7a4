//! Simulated threads.

use crate::{STEP_SIZE, SimulatedSpace};
use isola_abi::user_context::{UserContext, UserRegisters};
use isola_memory::frame::Frame;
use isola_user_mode::{
    Access, AddressSpace, InvalidState, PAGE_SIZE, PageRights, QuickCalls, Trap, TrapAnswer, USER_END,
    UserThread,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The bytes of the simulated processor state: the legacy area and the header of XSAVE's format.
pub const EXTENDED_STATE_SIZE: usize = 576;

/// The most steps of one [`UserThread::run`]. Then an interrupt ends it.
const MOST_STEPS: usize = 10_000;

/// The vector of an invalid opcode.
const INVALID_OPCODE: u8 = 6;

/// A simulated thread. Its TLB keeps translations until a flush is over, as a processor's may.
pub struct SimulatedThread {
    space: Arc<SimulatedSpace>,
    context: UserContext,
    extended_state: Vec<u8>,
    tlb: Tlb,
}

#[derive(Default)]
struct Tlb {
    /// Flushes up to this one are included.
    flushed: u64,
    /// The address of the frame in memory and the rights, by page. The TLB has no references to frames.
    translations: BTreeMap<u64, (usize, PageRights)>,
}

impl SimulatedThread {
    /// Creates a thread with these registers.
    pub fn new(space: Arc<SimulatedSpace>, context: UserContext) -> Self {
        let extended_state = vec![0; EXTENDED_STATE_SIZE];
        Self { space, context, extended_state, tlb: Tlb::default() }
    }

    /// Returns the program's view of memory, for tests without a [`crate::Program`].
    pub fn processor(&mut self) -> Processor<'_> {
        Processor { space: &self.space, context: &mut self.context, tlb: &mut self.tlb }
    }

    fn execute_step(&mut self) -> Result<(), Trap> {
        let rip = self.context.registers.rip;
        let mut processor = self.processor();
        let Some(step) = processor.space.step_at(rip) else {
            processor.execute(rip)?;
            return Err(Trap::Exception { vector: INVALID_OPCODE, error_code: 0 });
        };
        // A step that jumps sets RIP itself.
        processor.context.registers.rip = rip + STEP_SIZE;
        let result = step(&mut processor);
        if !matches!(result, Ok(()) | Err(Trap::SystemCall | Trap::Interrupt)) {
            self.context.registers.rip = rip;
        }
        result
    }
}

impl UserThread for SimulatedThread {
    fn context(&self) -> &UserContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut UserContext {
        &mut self.context
    }

    fn run_with(
        &mut self,
        quick: QuickCalls<'_>,
        serve: &mut dyn FnMut(Trap, &UserRegisters) -> TrapAnswer,
    ) -> Trap {
        for _ in 0..MOST_STEPS {
            let Err(trap) = self.execute_step() else { continue };
            let registers = &mut self.context.registers;
            let answer = match trap {
                Trap::SystemCall => {
                    (registers.rcx, registers.r11) = (registers.rip, registers.rflags);
                    match quick.answer(registers.rax) {
                        Some(result) => TrapAnswer::Resume(result),
                        None => serve(trap, registers),
                    }
                }
                Trap::PageFault { .. } => serve(trap, registers),
                _ => TrapAnswer::Unserved,
            };
            let (result, ends) = match answer {
                TrapAnswer::Unserved => {
                    if trap == Trap::SystemCall {
                        self.space.count_unserved_call();
                    }
                    return trap;
                }
                TrapAnswer::Resume(result) => (result, false),
                TrapAnswer::Stop(result) => (result, true),
            };
            if trap == Trap::SystemCall {
                registers.rax = result;
            }
            if ends {
                return Trap::Served;
            }
        }
        Trap::Interrupt
    }

    fn extended_state(&mut self) -> &[u8] {
        &self.extended_state
    }

    fn set_extended_state(&mut self, bytes: &[u8]) -> Result<(), InvalidState> {
        // The reserved bytes of the header must be zero, as on a processor (Intel SDM 1, 13.4.2).
        let valid = bytes.len() >= EXTENDED_STATE_SIZE
            && bytes[528..EXTENDED_STATE_SIZE].iter().all(|byte| *byte == 0);
        if !valid {
            return Err(InvalidState);
        }
        self.extended_state.copy_from_slice(&bytes[..EXTENDED_STATE_SIZE]);
        Ok(())
    }

    fn duplicate(&mut self, space: Arc<dyn AddressSpace>) -> Box<dyn UserThread> {
        let mut thread = space.create_thread(self.context.clone());
        let valid = thread.set_extended_state(&self.extended_state);
        assert_eq!(valid, Ok(()), "the state came from a simulated thread");
        thread
    }
}

/// A processor that executes a step of a program.
pub struct Processor<'a> {
    space: &'a Arc<SimulatedSpace>,
    context: &'a mut UserContext,
    tlb: &'a mut Tlb,
}

impl Processor<'_> {
    /// Returns the registers.
    pub fn registers(&mut self) -> &mut UserRegisters {
        &mut self.context.registers
    }

    /// Loads bytes.
    ///
    /// # Errors
    /// A page fault.
    pub fn load(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Trap> {
        self.access(address, bytes.len(), Access::Read, |frame, offset, range| {
            frame.read(offset, &mut bytes[range]);
        })
    }

    /// Stores bytes. The pages before a page fault are written.
    ///
    /// # Errors
    /// A page fault.
    pub fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), Trap> {
        self.access(address, bytes.len(), Access::Write, |frame, offset, range| {
            frame.write(offset, &bytes[range]);
        })
    }

    /// Fetches an instruction.
    ///
    /// # Errors
    /// A page fault.
    pub fn execute(&mut self, address: u64) -> Result<(), Trap> {
        self.access(address, 1, Access::Execute, |_, _, _| ())
    }

    fn access(
        &mut self,
        start: u64,
        len: usize,
        access: Access,
        mut copy: impl FnMut(&Frame, usize, std::ops::Range<usize>),
    ) -> Result<(), Trap> {
        let mut done = 0;
        while done < len {
            let address = start.wrapping_add(done as u64);
            let page = address & !(PAGE_SIZE - 1);
            let frame = self.translate(page, access).ok_or(Trap::PageFault { address, access })?;
            let offset = (address - page) as usize;
            let now = (PAGE_SIZE as usize - offset).min(len - done);
            copy(&frame, offset, done..done + now);
            if access == Access::Write {
                self.space.mark_dirty(page, &frame);
            }
            done += now;
        }
        Ok(())
    }

    /// Returns the frame of a page from the TLB, or else from the page tables.
    fn translate(&mut self, page: u64, access: Access) -> Option<Frame> {
        let ended = self.space.ended();
        if self.tlb.flushed < ended {
            self.tlb.translations.clear();
            self.tlb.flushed = ended;
        }
        let permits = |rights: &PageRights| match access {
            Access::Read => true,
            Access::Write => rights.writable,
            Access::Execute => rights.executable,
        };
        if let Some((frame, rights)) = self.tlb.translations.get(&page)
            && permits(rights)
        {
            let frame = self.space.translated(page, *frame);
            return Some(frame.expect("a frame stays in memory until the flush is over"));
        }
        // A processor walks the page tables also if the TLB does not permit the access.
        let mapped = (page < USER_END).then(|| self.space.page_at(page)).flatten()?;
        self.tlb.translations.insert(page, (mapped.frame.address().addr().get(), mapped.rights));
        permits(&mapped.rights).then_some(mapped.frame)
    }
}
