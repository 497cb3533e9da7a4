//! Programs: an address space with a few pages, and threads.

use isola::ebbs::CoreIndex;
use isola::events::{Task, elsewhere, spawn_task, yield_now};
use isola::prelude::*;
use isola::user_mode::{AddressSpace, PageRights, Trap, UserThread};
use isola_abi::user_context::UserContext;

extern crate alloc;
use alloc::sync::Arc;
use isola::memory::Frame;

/// The addresses of a program's pages.
pub const CODE: u64 = 0x40_0000;
pub const DATA: u64 = 0x50_0000;
pub const READ_ONLY: u64 = 0x60_0000;
pub const STACK: u64 = 0x70_0000;
pub const STACK_TOP: u64 = STACK + PAGE;

/// The address of no page.
pub const NOTHING: u64 = 0x123_4567_8000;

/// The size of a page.
pub const PAGE: u64 = 4096;

pub const READ: PageRights = PageRights { writable: false, executable: false };
pub const WRITE: PageRights = PageRights { writable: true, executable: false };
pub const EXECUTE: PageRights = PageRights { writable: false, executable: true };

/// A program.
#[derive(Clone)]
pub struct Program {
    pub space: Arc<dyn AddressSpace>,
    pub data: Frame,
}

impl Program {
    /// Creates a program with this code.
    pub fn new(code: &[u8]) -> Self {
        let space = isola::user_mode().and_then(|mode| mode.create_space().ok()).expect("memory for tables");
        let [text, data, constants, stack] = [(); 4].map(|()| Frame::zeroed());
        text.write(0, code);
        constants.write(0, b"constant");
        let pages = [
            (CODE, text, EXECUTE),
            (DATA, data.clone(), WRITE),
            (READ_ONLY, constants, READ),
            (STACK, stack, WRITE),
        ];
        for (address, frame, rights) in pages {
            space.map(address, frame, rights).expect("nothing is mapped there");
        }
        Self { space, data }
    }

    /// Returns a thread at the first instruction.
    pub fn thread(&self) -> Box<dyn UserThread> {
        let mut context = UserContext::default();
        context.registers.rip = CODE;
        context.registers.rsp = STACK_TOP;
        context.registers.rdi = DATA;
        context.registers.rsi = DATA + 64;
        self.space.clone().create_thread(context)
    }
}

/// Runs a future on a core.
pub fn on_core<T, F>(core: u32, make: impl FnOnce() -> F + Send + 'static) -> Task<T>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    spawn_task(elsewhere(CoreIndex(core), make))
}

/// Runs a thread until a trap of its own.
pub async fn run(thread: &mut dyn UserThread) -> Trap {
    loop {
        match thread.run() {
            Trap::Interrupt => yield_now().await,
            trap => return trap,
        }
    }
}

/// Runs a thread up to its next system call.
pub async fn call(thread: &mut dyn UserThread) {
    let trap = run(thread).await;
    assert_eq!(trap, Trap::SystemCall, "{:x?}", thread.context().registers);
}
