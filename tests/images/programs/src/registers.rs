//! All registers survive a system call, and changed registers arrive.

use crate::program::{CODE, DATA, Program, STACK_TOP, call};
use isola::events::yield_now;
use isola::prelude::*;
use isola::user_mode::{QuickAnswers, QuickCalls, QuickNumbers, Trap, TrapAnswer};
use isola_abi::user_context::{UserContext, UserRegisters};

extern crate alloc;
use alloc::vec::Vec;

/// syscall; syscall; syscall
const THREE_CALLS: [u8; 6] = [0x0f, 0x05, 0x0f, 0x05, 0x0f, 0x05];

/// wrfsbase %rax; wrgsbase %rbx; syscall; rdfsbase %rax; rdgsbase %rbx; syscall
const BASES: [u8; 24] = [
    0xf3, 0x48, 0x0f, 0xae, 0xd0, 0xf3, 0x48, 0x0f, 0xae, 0xdb, 0x0f, 0x05, 0xf3, 0x48, 0x0f, 0xae, 0xc0,
    0xf3, 0x48, 0x0f, 0xae, 0xcb, 0x0f, 0x05,
];

/// mov $0x1b, %eax; mov %eax, %ds; mov %eax, %fs; mov %eax, %gs; syscall
const SELECTORS: [u8; 13] = [0xb8, 0x1b, 0, 0, 0, 0x8e, 0xd8, 0x8e, 0xe0, 0x8e, 0xe8, 0x0f, 0x05];

/// std; syscall
const BACKWARDS: [u8; 3] = [0xfd, 0x0f, 0x05];

/// Carry, zero, sign, overflow, identification; and the flags that are always set.
const SOME_FLAGS: u64 = 0x20_08c1 | FIXED_FLAGS;
const FIXED_FLAGS: u64 = 0x202;

fn context(seed: u64) -> UserContext {
    let mut context = UserContext::default();
    let value = |number: u64| (seed + number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    context.registers = UserRegisters {
        rax: value(0),
        rbx: value(1),
        rcx: value(2),
        rdx: value(3),
        rsi: value(4),
        rdi: value(5),
        rbp: value(6),
        r8: value(7),
        r9: value(8),
        r10: value(9),
        r11: value(10),
        r12: value(11),
        r13: value(12),
        r14: value(13),
        r15: value(14),
        rip: CODE,
        rflags: SOME_FLAGS,
        rsp: STACK_TOP - seed % 4096,
        fs_base: DATA + seed,
        gs_base: DATA + 2 * seed,
    };
    for (number, register) in (20_u64..).zip(&mut context.xmm) {
        register[..8].copy_from_slice(&value(number).to_le_bytes());
        register[8..].copy_from_slice(&value(100 + number).to_le_bytes());
    }
    // Rounding towards zero, and the flag of an inexact result.
    context.mxcsr = 0x7fa0;
    context
}

/// Returns the context after a system call that ends at `rip`.
fn after_call(mut context: UserContext, rip: u64) -> UserContext {
    let registers = &mut context.registers;
    (registers.rip, registers.rcx, registers.r11) = (rip, rip, registers.rflags);
    context
}

pub async fn check() {
    let program = Program::new(&THREE_CALLS);
    let mut thread = program.space.clone().create_thread(context(1));
    call(&mut *thread).await;
    assert_eq!(*thread.context(), after_call(context(1), CODE + 2));
    // By SYSRET, as the context is as after a system call.
    thread.context_mut().registers.rax = 77;
    call(&mut *thread).await;
    let mut expected = after_call(context(1), CODE + 4);
    expected.registers.rax = 77;
    assert_eq!(*thread.context(), expected);
    // By IRETQ.
    *thread.context_mut() =
        UserContext { registers: UserRegisters { rip: CODE + 4, ..context(2).registers }, ..context(2) };
    call(&mut *thread).await;
    assert_eq!(*thread.context(), after_call(context(2), CODE + 6));
    println!("programs: registers survive system calls");

    // The first call is served, the second too but ends the run, the third is not.
    let program = Program::new(&THREE_CALLS);
    let mut thread = program.space.clone().create_thread(context(3));
    let mut served = Vec::new();
    let mut serve = |trap: Trap, registers: &UserRegisters| {
        served.push((trap, registers.rip - CODE));
        match served.len() {
            1 => TrapAnswer::Resume(11),
            2 => TrapAnswer::Stop(22),
            _ => TrapAnswer::Unserved,
        }
    };
    let answers = QuickAnswers::default();
    let quick = QuickCalls { numbers: QuickNumbers::NONE, answers: &answers };
    let ends = [(Trap::Served, 22, CODE + 4), (Trap::SystemCall, 22, CODE + 6)];
    for (trap, rax, rip) in ends {
        while thread.run_with(quick, &mut serve) != trap {
            yield_now().await;
        }
        let mut expected = after_call(context(3), rip);
        expected.registers.rax = rax;
        assert_eq!(*thread.context(), expected);
    }
    assert_eq!(served, [2, 4, 6].map(|rip| (Trap::SystemCall, rip)));
    println!("programs: registers survive system calls that are served at once");

    let program = Program::new(&BASES);
    let mut thread = program.thread();
    (thread.context_mut().registers.rax, thread.context_mut().registers.rbx) = (DATA + 8, u64::MAX - 7);
    call(&mut *thread).await;
    let registers = &mut thread.context_mut().registers;
    assert_eq!((registers.fs_base, registers.gs_base), (DATA + 8, u64::MAX - 7));
    (registers.fs_base, registers.gs_base) = (DATA + 16, DATA + 24);
    call(&mut *thread).await;
    let registers = &thread.context().registers;
    assert_eq!((registers.rax, registers.rbx), (DATA + 16, DATA + 24));

    let mut thread = Program::new(&SELECTORS).thread();
    thread.context_mut().registers.gs_base = DATA;
    call(&mut *thread).await;
    assert_eq!((thread.context().registers.fs_base, thread.context().registers.gs_base), (0, 0));

    let mut thread = Program::new(&BACKWARDS).thread();
    call(&mut *thread).await;
    assert_eq!(thread.context().registers.rflags & 1 << 10, 1 << 10);
    println!("programs: segments and flags are the program's");
}
