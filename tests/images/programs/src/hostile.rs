//! Registers that no program can have: `run` corrects them, or returns an exception of the program.

use crate::program::{CODE, Program, STACK_TOP, call, run};
use isola::prelude::*;
use isola::user_mode::{Access, Trap, USER_END};
use isola_abi::user_context::UserContext;

const PROTECTION: Trap = Trap::Exception { vector: 13, error_code: 0 };

pub async fn check() {
    let program = Program::new(&[0x0f, 0x05]);
    let thread = |change: &dyn Fn(&mut UserContext)| {
        let mut thread = program.thread();
        change(thread.context_mut());
        thread
    };
    for rip in [1 << 47, 1 << 63, !(u64::MAX >> 16) >> 1, (1 << 47) + CODE] {
        let mut thread = thread(&|context| context.registers.rip = rip);
        assert_eq!(run(&mut *thread).await, PROTECTION, "{rip:#x}");
    }
    for rip in [USER_END, USER_END - 1, (1 << 47) - 1] {
        // As after a system call: SYSRET must not be used.
        let mut thread = thread(&|context| {
            (context.registers.rip, context.registers.rcx) = (rip, rip);
            (context.registers.rflags, context.registers.r11) = (0x202, 0x202);
        });
        let trap = run(&mut *thread).await;
        assert!(matches!(trap, Trap::PageFault { access: Access::Execute, .. }), "{trap:?} at {rip:#x}");
    }
    for base in [1 << 47, u64::MAX >> 1, 1 << 63] {
        let mut with_fs = thread(&|context| context.registers.fs_base = base);
        assert_eq!(run(&mut *with_fs).await, PROTECTION, "{base:#x}");
        let mut with_gs = thread(&|context| context.registers.gs_base = base);
        assert_eq!(run(&mut *with_gs).await, PROTECTION, "{base:#x}");
    }
    for base in [isola_abi::layout::STACKS, u64::MAX] {
        let mut thread = thread(&|context| {
            (context.registers.fs_base, context.registers.gs_base) = (base, base);
        });
        call(&mut *thread).await;
        assert_eq!(thread.context().registers.gs_base, base);
    }
    // Alignment check, single step, direction, nested task, I/O privilege level, virtual 8086 mode and more.
    let mut thread_with_flags = thread(&|context| context.registers.rflags = !(1 << 8));
    call(&mut *thread_with_flags).await;
    let flags = thread_with_flags.context().registers.rflags;
    assert_eq!(
        flags & 0x1a_3000,
        0,
        "{flags:#x} has I/O privilege level, virtual mode or virtual interrupts"
    );
    assert_eq!(flags & 0x202, 0x202, "interrupts are on");
    let mut thread_with_all = thread(&|context| {
        context.registers.rflags = u64::MAX;
        context.mxcsr = u32::MAX;
        context.registers.rsp = 1 << 63;
    });
    call(&mut *thread_with_all).await;
    assert_eq!(thread_with_all.context().registers.rsp, 1 << 63);
    assert_eq!(thread_with_all.context().mxcsr & 0xffff_0000, 0);
    let mut thread = thread(&|context| context.registers.rsp = STACK_TOP);
    call(&mut *thread).await;

    // in (%dx), %al with the I/O privilege level of ring 3 set.
    let mut thread = Program::new(&[0xec]).thread();
    thread.context_mut().registers.rflags = 0x3202;
    assert_eq!(run(&mut *thread).await, PROTECTION);
    println!("programs: hostile registers are harmless");
}
