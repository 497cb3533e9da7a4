//! A process in a simulated user mode.

#![allow(dead_code, reason = "each test uses a part")]

use isola_abi::user_context::UserContext;
use isola_linux_abi::numbers::{MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE};
use isola_linux_memory::{
    Errno, FaultError, FrameBudget, MapRequest, MemoryLayout, MemoryLimits, ProcessMemory,
};
use isola_linux_sim::{Processor, SimulatedThread, SimulatedUserMode, run_with};
use isola_user_mode::{PAGE_SIZE, Trap, UserMode};
use std::future::Future;
use std::sync::Arc;

pub const READ_WRITE: u32 = PROT_READ | PROT_WRITE;
pub const PRIVATE: u32 = MAP_PRIVATE | MAP_ANONYMOUS;

/// A process with one thread.
pub struct Process {
    pub platform: Arc<SimulatedUserMode>,
    pub budget: Arc<FrameBudget>,
    pub memory: Arc<ProcessMemory>,
    pub thread: SimulatedThread,
}

impl Process {
    pub fn new() -> Self {
        Self::with_limits(MemoryLimits::default())
    }

    pub fn with_limits(limits: MemoryLimits) -> Self {
        let platform = SimulatedUserMode::new();
        platform.hold_flushes();
        Self::on(platform, limits)
    }

    pub fn on(platform: SimulatedUserMode, limits: MemoryLimits) -> Self {
        let platform = Arc::new(platform);
        let budget = Arc::new(FrameBudget::new(1000));
        let space = platform.space();
        let layout = MemoryLayout::new(None, limits.stack);
        let memory = ProcessMemory::new(space.clone(), layout, limits, budget.clone());
        let thread = SimulatedThread::new(space, UserContext::default());
        Self { platform, budget, memory, thread }
    }

    /// Runs a call. Flushes end only when it waits.
    pub fn run<T>(&self, call: impl Future<Output = T>) -> T {
        run_with(call, || {
            self.platform.end_flushes();
        })
    }

    pub fn fork(&self) -> Self {
        let space = self.platform.space();
        let memory = self.run(self.memory.fork(space.clone())).expect("memory is left");
        let thread = SimulatedThread::new(space, UserContext::default());
        Self { platform: Arc::clone(&self.platform), budget: Arc::clone(&self.budget), memory, thread }
    }

    pub fn map_with(&self, request: MapRequest) -> Result<u64, Errno> {
        self.run(self.memory.map(request))
    }

    pub fn map(&self, address: u64, pages: u64, protection: u32, flags: u32) -> Result<u64, Errno> {
        let len = pages * PAGE_SIZE;
        self.map_with(MapRequest { address, len, protection, flags, ..MapRequest::default() })
    }

    pub fn map_anonymous(&self, pages: u64) -> u64 {
        self.map(0, pages, READ_WRITE, PRIVATE).expect("there is room")
    }

    pub fn unmap(&self, address: u64, pages: u64) -> Result<(), Errno> {
        self.run(self.memory.unmap(address, pages * PAGE_SIZE))
    }

    pub fn protect(&self, address: u64, pages: u64, protection: u32) -> Result<(), Errno> {
        self.run(self.memory.protect(address, pages * PAGE_SIZE, protection))
    }

    /// Executes an access, with its page faults.
    fn access(
        &mut self,
        mut step: impl FnMut(&mut Processor<'_>) -> Result<(), Trap>,
    ) -> Result<(), FaultError> {
        loop {
            match step(&mut self.thread.processor()) {
                Ok(()) => return Ok(()),
                Err(Trap::PageFault { address, access }) => self.run(self.memory.fault(address, access))?,
                Err(trap) => panic!("{trap:?}"),
            }
        }
    }

    pub fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), FaultError> {
        self.access(|processor| processor.store(address, bytes))
    }

    pub fn load(&mut self, address: u64) -> Result<u8, FaultError> {
        let mut byte = [0];
        self.access(|processor| processor.load(address, &mut byte))?;
        Ok(byte[0])
    }

    pub fn execute(&mut self, address: u64) -> Result<(), FaultError> {
        self.access(|processor| processor.execute(address))
    }

    pub fn mapped_at(&self, address: u64) -> bool {
        self.memory.mapping_at(address).is_some()
    }

    /// Returns the mappings as `/proc/PID/maps` shows their addresses and accesses.
    pub fn maps(&self) -> Vec<String> {
        self.memory.mappings().iter().map(|mapping| format!("{mapping:?}")).collect()
    }
}

/// Creates an address space of a platform that is dropped.
pub fn space() -> Arc<dyn isola_user_mode::AddressSpace> {
    SimulatedUserMode::new().create_space().expect("the simulation has memory")
}
