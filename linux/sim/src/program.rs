//! Simulated programs.

use crate::Processor;
use isola_user_mode::Trap;
use std::sync::Arc;

/// The length of a step in the address space: that of the instruction SYSCALL, so that the personality restarts a call as
/// on a processor.
pub const STEP_SIZE: u64 = 2;

/// A step of a program. On a trap other than a system call or an interrupt, RIP stays at the step, which is executed again
/// in the next run.
pub type Step = Arc<dyn Fn(&mut Processor<'_>) -> Result<(), Trap> + Send + Sync>;

/// A program: steps, each at the address [`STEP_SIZE`] behind that of the one before.
#[derive(Clone, Default)]
pub struct Program {
    pub(crate) steps: Vec<Step>,
}

impl Program {
    /// Creates a program without steps. A thread that runs beyond the last step gets an invalid opcode.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a step.
    #[must_use]
    pub fn step(
        mut self,
        step: impl Fn(&mut Processor<'_>) -> Result<(), Trap> + Send + Sync + 'static,
    ) -> Self {
        self.steps.push(Arc::new(step));
        self
    }

    /// Adds a system call with the registers as they are.
    #[must_use]
    pub fn system_call(self) -> Self {
        self.step(|_| Err(Trap::SystemCall))
    }

    /// Adds a system call: RAX is its number, the arguments are in RDI, RSI, RDX, R10, R8, R9.
    #[must_use]
    pub fn call(self, number: u64, arguments: [u64; 6]) -> Self {
        self.step(move |processor| {
            let registers = processor.registers();
            registers.rax = number;
            let [rdi, rsi, rdx, r10, r8, r9] = arguments;
            (registers.rdi, registers.rsi, registers.rdx) = (rdi, rsi, rdx);
            (registers.r10, registers.r8, registers.r9) = (r10, r8, r9);
            Err(Trap::SystemCall)
        })
    }

    /// Adds a step that stores these bytes.
    #[must_use]
    pub fn store(self, address: u64, bytes: &[u8]) -> Self {
        let bytes = bytes.to_vec();
        self.step(move |processor| processor.store(address, &bytes))
    }

    /// Adds a step that loads as many bytes, and fails the test if they differ from these.
    ///
    /// # Panics
    /// The step, if the bytes differ.
    #[must_use]
    pub fn expect(self, address: u64, bytes: &[u8]) -> Self {
        let bytes = bytes.to_vec();
        self.step(move |processor| {
            let mut loaded = vec![0; bytes.len()];
            processor.load(address, &mut loaded)?;
            assert_eq!(loaded, bytes, "the bytes at {address:#x}");
            Ok(())
        })
    }

    /// Adds an exception, such as a division by zero. It happens again in each run unless the personality changes RIP.
    #[must_use]
    pub fn exception(self, vector: u8, error_code: u64) -> Self {
        self.step(move |_| Err(Trap::Exception { vector, error_code }))
    }

    /// Adds an interrupt, after which the program continues.
    #[must_use]
    pub fn interrupt(self) -> Self {
        self.step(|_| Err(Trap::Interrupt))
    }

    /// Adds a jump to the step with this index, of the same program at `base`.
    #[must_use]
    pub fn jump(self, base: u64, index: u64) -> Self {
        self.step(move |processor| {
            processor.registers().rip = base + index * STEP_SIZE;
            Ok(())
        })
    }
}
