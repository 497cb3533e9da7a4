//! Programs, traps and TLBs as on a processor.

use isola_abi::user_context::{UserContext, UserRegisters};
use isola_linux_sim::{
    EXTENDED_STATE_SIZE, Program, STEP_SIZE, SimulatedSpace, SimulatedThread, SimulatedUserMode,
};
use isola_memory::frame::Frame;
use isola_user_mode::{
    Access, AddressSpace, InvalidState, MapError, PAGE_SIZE, PageRights, QuickAnswers, QuickCalls,
    QuickNumbers, Trap, TrapAnswer, USER_END, UserThread,
};
use std::sync::Arc;

const CODE: u64 = 0x40_0000;
const DATA: u64 = 0x50_0000;
const WRITABLE: PageRights = PageRights { writable: true, executable: false };
const READ_ONLY: PageRights = PageRights { writable: false, executable: false };

fn thread(space: &Arc<SimulatedSpace>) -> SimulatedThread {
    let mut context = UserContext::default();
    context.registers.rip = CODE;
    SimulatedThread::new(Arc::clone(space), context)
}

#[test]
fn a_program_runs_until_its_traps_and_repeats_faults() {
    let platform = SimulatedUserMode::new();
    let program = Program::new()
        .store(DATA, b"hello")
        .call(1, [2, 3, 4, 5, 6, 7])
        .expect(DATA + 1, b"ello")
        .interrupt()
        .exception(0, 0);
    platform.place(CODE, program);
    let space = platform.space();
    let mut thread = thread(&space);
    let fault = |access| Trap::PageFault { address: DATA, access };
    assert_eq!(thread.run(), fault(Access::Write));
    space.map(DATA, Frame::zeroed(), READ_ONLY).expect("it is free");
    assert_eq!(thread.run(), fault(Access::Write), "the page is not writable");
    space.protect(DATA, DATA + PAGE_SIZE, &mut |_, _| WRITABLE);
    assert_eq!(thread.run(), Trap::SystemCall);
    let registers = thread.context().registers;
    assert_eq!((registers.rax, registers.rdi, registers.r9), (1, 2, 7));
    assert_eq!((registers.rip, registers.rcx), (CODE + 2 * STEP_SIZE, CODE + 2 * STEP_SIZE));
    assert!(space.page_at(DATA + 7).is_some_and(|page| page.is_dirty));
    // The call is restarted as on a processor.
    thread.context_mut().registers.rip -= STEP_SIZE;
    assert_eq!((thread.run(), thread.run()), (Trap::SystemCall, Trap::Interrupt));
    let divide = Trap::Exception { vector: 0, error_code: 0 };
    assert_eq!((thread.run(), thread.run()), (divide, divide));
    thread.context_mut().registers.rip += STEP_SIZE;
    let address = CODE + 5 * STEP_SIZE;
    assert_eq!(thread.run(), Trap::PageFault { address, access: Access::Execute });
}

#[test]
fn a_program_continues_after_traps_that_are_served() {
    let platform = SimulatedUserMode::new();
    let program =
        Program::new().store(DATA, b"x").call(1, [0; 6]).call(4, [0; 6]).call(2, [0; 6]).call(3, [0; 6]);
    platform.place(CODE, program);
    let space = platform.space();
    let mut thread = thread(&space);
    let mut numbers = Vec::new();
    let mut serve = |trap, registers: &UserRegisters| match (trap, registers.rax) {
        (Trap::PageFault { address, .. }, _) => {
            space.map(address, Frame::zeroed(), WRITABLE).expect("it is free");
            TrapAnswer::Resume(99)
        }
        (_, number) => {
            numbers.push(number);
            match number {
                1 => TrapAnswer::Resume(11),
                2 => TrapAnswer::Stop(22),
                _ => TrapAnswer::Unserved,
            }
        }
    };
    static NUMBERS: QuickNumbers = QuickNumbers::new(&[(4, 7)]);
    let answers = QuickAnswers::default();
    let quick = QuickCalls { numbers: &NUMBERS, answers: &answers };
    assert_eq!(thread.run_with(quick, &mut serve), Trap::Served);
    assert_eq!(thread.context().registers.rax, 22);
    assert_eq!(thread.run_with(quick, &mut serve), Trap::SystemCall);
    assert_eq!((thread.context().registers.rax, numbers), (3, vec![1, 2, 3]));
}

#[test]
fn a_tlb_keeps_translations_until_the_flush_is_over() {
    let platform = SimulatedUserMode::new();
    platform.hold_flushes();
    let space = platform.space();
    let old = Frame::zeroed();
    space.map(DATA, old.clone(), WRITABLE).expect("it is free");
    let mut thread = thread(&space);
    let mut processor = thread.processor();
    processor.store(DATA, b"1").expect("it is writable");
    space.replace(DATA, Frame::zeroed(), READ_ONLY).expect("it is mapped");
    processor.store(DATA, b"2").expect("the TLB has the old page");
    assert_eq!(old.load(0), u32::from(b'2'));
    let generation = space.flush();
    processor.store(DATA, b"3").expect("the flush is not over");
    assert!(!space.is_flushed(generation));
    assert_eq!(platform.end_flushes(), 1);
    assert!(space.is_flushed(generation));
    let address = DATA;
    assert_eq!(processor.store(DATA, b"4"), Err(Trap::PageFault { address, access: Access::Write }));
    assert_eq!(old.load(0), u32::from(b'3'));
}

#[test]
fn a_frame_stays_until_the_flush_of_its_removal_is_over() {
    let platform = SimulatedUserMode::new();
    platform.hold_flushes();
    let space = platform.space();
    let (first, second) = (Frame::zeroed(), Frame::zeroed());
    space.map(DATA, first.clone(), WRITABLE).expect("it is free");
    space.map(CODE, second.clone(), WRITABLE).expect("it is free");
    space.unmap(DATA, DATA + PAGE_SIZE, &mut |_, page| assert!(page.frame.is(&first)));
    assert_eq!((space.free_flushed(9), first.is_shared()), (0, true), "no flush has begun");
    space.flush();
    assert_eq!((space.free_flushed(9), first.is_shared()), (0, true), "the flush is not over");
    space.unmap(CODE, CODE + PAGE_SIZE, &mut |_, page| assert!(page.frame.is(&second)));
    platform.end_flushes();
    assert_eq!((space.free_flushed(9), first.is_shared()), (1, false));
    assert!(second.is_shared(), "its flush has not begun");
    drop(space);
    assert!(!second.is_shared());
}

#[test]
fn pages_are_refused_as_by_page_tables() {
    let platform = SimulatedUserMode::new();
    let space = platform.space();
    let map = |address| space.map(address, Frame::zeroed(), WRITABLE);
    assert_eq!(map(DATA + 1), Err(MapError::NoPage(DATA + 1)));
    assert_eq!(map(USER_END), Err(MapError::NoPage(USER_END)));
    assert_eq!((map(DATA), map(DATA)), (Ok(()), Err(MapError::Occupied(DATA))));
    platform.limit_pages(Some(1));
    assert_eq!(map(CODE), Err(MapError::OutOfTables));
    assert_eq!((space.mapped(), space.stale()), (1, 0));
}

#[test]
fn a_duplicate_has_the_registers_and_the_state_of_the_thread() {
    let platform = SimulatedUserMode::new();
    let space = platform.space();
    let mut first = thread(&space);
    first.context_mut().registers.rbx = 7;
    let mut state = vec![0; EXTENDED_STATE_SIZE];
    state[0] = 9;
    assert_eq!(first.set_extended_state(&state), Ok(()));
    state[EXTENDED_STATE_SIZE - 1] = 1;
    assert_eq!(first.set_extended_state(&state), Err(InvalidState));
    assert_eq!(first.set_extended_state(&state[..100]), Err(InvalidState));
    let mut second = first.duplicate(platform.space());
    assert_eq!(second.context(), first.context());
    assert_eq!(second.extended_state(), first.extended_state());
}
