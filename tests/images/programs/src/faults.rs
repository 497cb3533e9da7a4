//! Faults of programs become traps.

use crate::program::{CODE, DATA, NOTHING, PAGE, Program, READ_ONLY, WRITE, run};
use isola::memory::Frame;
use isola::prelude::*;
use isola::user_mode::{Access, Trap};
use isola_abi::layout::{DESCRIPTOR, DIRECT_MAP, IMAGE, REGIONS, STACKS};

/// mov (%rdi), %rax; mov %rax, (%rdi); jmp *%rdi
const READ: &[u8] = &[0x48, 0x8b, 0x07];
const WRITE_TO: &[u8] = &[0x48, 0x89, 0x07];
const JUMP: &[u8] = &[0xff, 0xe7];

const DIVISION: u8 = 0;
const DEBUG: u8 = 1;
const BREAKPOINT: u8 = 3;
const INVALID_INSTRUCTION: u8 = 6;
const STACK_SEGMENT: u8 = 12;
const PROTECTION: u8 = 13;
const SIMD: u8 = 19;

/// An error code that names a gate. The emulator and processors differ in its number.
const OF_GATE: u64 = 1 << 1;

/// A non-canonical address.
const NON_CANONICAL: u64 = 1 << 47;

fn fault(address: u64, access: Access) -> Trap {
    Trap::PageFault { address, access }
}

fn exception(vector: u8, error_code: u64) -> Trap {
    Trap::Exception { vector, error_code }
}

/// Runs code with rdi set.
async fn trap_of(code: &[u8], rdi: u64) -> Trap {
    let mut thread = Program::new(code).thread();
    thread.context_mut().registers.rdi = rdi;
    let trap = run(&mut *thread).await;
    let is_at_jump = matches!(trap, Trap::PageFault { access: Access::Execute, .. });
    let before = thread.context().registers.rip;
    assert!(is_at_jump || (CODE..CODE + PAGE).contains(&before), "{trap:?} at {before:#x}");
    trap
}

pub async fn check() {
    let kernel = [DIRECT_MAP, REGIONS, STACKS, DESCRIPTOR, IMAGE, u64::MAX - 4095, 0xffff_8000_0000_0000];
    for address in [0, NOTHING, NOTHING + 4095 - 7].into_iter().chain(kernel) {
        assert_eq!(trap_of(READ, address).await, fault(address, Access::Read));
        assert_eq!(trap_of(WRITE_TO, address).await, fault(address, Access::Write));
        assert_eq!(trap_of(JUMP, address).await, fault(address, Access::Execute));
    }
    for address in [READ_ONLY, CODE + 8] {
        assert_eq!(trap_of(WRITE_TO, address).await, fault(address, Access::Write));
    }
    for address in [READ_ONLY, DATA] {
        assert_eq!(trap_of(JUMP, address).await, fault(address, Access::Execute));
    }
    for address in [NON_CANONICAL, u64::MAX >> 1, !(u64::MAX >> 16) >> 1] {
        assert_eq!(trap_of(READ, address).await, exception(PROTECTION, 0), "{address:#x}");
    }
    println!("programs: page faults are traps");

    let cases: &[(&str, &[u8], Trap)] = &[
        ("xor %ecx, %ecx; div %ecx", &[0x31, 0xc9, 0xf7, 0xf1], exception(DIVISION, 0)),
        ("ud2", &[0x0f, 0x0b], exception(INVALID_INSTRUCTION, 0)),
        ("int3", &[0xcc], exception(BREAKPOINT, 0)),
        ("int $3", &[0xcd, 3], exception(BREAKPOINT, 0)),
        ("int $0x80", &[0xcd, 0x80], exception(PROTECTION, OF_GATE)),
        ("int $2", &[0xcd, 2], exception(PROTECTION, OF_GATE)),
        ("int $8", &[0xcd, 8], exception(PROTECTION, OF_GATE)),
        ("int $14", &[0xcd, 14], exception(PROTECTION, OF_GATE)),
        ("int $0xf1", &[0xcd, 0xf1], exception(PROTECTION, OF_GATE)),
        ("hlt", &[0xf4], exception(PROTECTION, 0)),
        ("cli", &[0xfa], exception(PROTECTION, 0)),
        ("sti", &[0xfb], exception(PROTECTION, 0)),
        ("in (%dx), %al", &[0xec], exception(PROTECTION, 0)),
        ("out %al, (%dx)", &[0xee], exception(PROTECTION, 0)),
        ("mov %cr3, %rax", &[0x0f, 0x20, 0xd8], exception(PROTECTION, 0)),
        ("mov %rax, %cr3", &[0x0f, 0x22, 0xd8], exception(PROTECTION, 0)),
        ("mov %rax, %dr7", &[0x0f, 0x23, 0xf8], exception(PROTECTION, 0)),
        ("wrmsr", &[0x0f, 0x30], exception(PROTECTION, 0)),
        ("rdmsr", &[0x0f, 0x32], exception(PROTECTION, 0)),
        ("lgdt (%rdi)", &[0x0f, 0x01, 0x17], exception(PROTECTION, 0)),
        ("ltr %ax", &[0x0f, 0x00, 0xd8], exception(PROTECTION, 0)),
        ("invlpg (%rdi)", &[0x0f, 0x01, 0x3f], exception(PROTECTION, 0)),
        ("clts", &[0x0f, 0x06], exception(PROTECTION, 0)),
        ("swapgs", &[0x0f, 0x01, 0xf8], exception(PROTECTION, 0)),
        ("sysretq", &[0x48, 0x0f, 0x07], exception(PROTECTION, 0)),
        ("xsetbv", &[0x0f, 0x01, 0xd1], exception(PROTECTION, 0)),
        ("stac", &[0x0f, 0x01, 0xcb], exception(INVALID_INSTRUCTION, 0)),
    ];
    for (name, code, expected) in cases {
        let trap = match trap_of(code, DATA).await {
            Trap::Exception { vector, error_code } if error_code & OF_GATE != 0 => exception(vector, OF_GATE),
            trap => trap,
        };
        assert_eq!(trap, *expected, "{name}");
    }

    // pushq $8; push %rdi; lretq, and pushq $0x10; push %rsp; pushfq; pushq $8; push %rdi; iretq: returns to ring 0. The
    // emulator reads the stack with the rights of ring 0, which SMAP rejects.
    for code in [&[0x6a, 8, 0x57, 0x48, 0xcb][..], &[0x6a, 0x10, 0x54, 0x9c, 0x6a, 8, 0x57, 0x48, 0xcf]] {
        let trap = trap_of(code, DATA).await;
        let is_emulators = matches!(trap, Trap::PageFault { access: Access::Read, .. });
        assert!(is_emulators || trap == exception(PROTECTION, 8), "{trap:?}");
    }

    // A single step: after the first of two nops.
    let mut thread = Program::new(&[0x90, 0x90, 0xf4]).thread();
    thread.context_mut().registers.rflags = 1 << 8;
    assert_eq!(run(&mut *thread).await, exception(DEBUG, 0));
    assert_eq!(thread.context().registers.rip, CODE + 1);
    assert_eq!(run(&mut *thread).await, exception(DEBUG, 0));
    assert_eq!(thread.context().registers.rip, CODE + 2);
    // A step over a system call returns behind it.
    let mut thread = Program::new(&[0x0f, 0x05, 0x90, 0x90]).thread();
    thread.context_mut().registers.rflags = 1 << 8;
    assert_eq!(run(&mut *thread).await, Trap::SystemCall);
    assert_eq!(run(&mut *thread).await, exception(DEBUG, 0));

    // divps %xmm0, %xmm1; syscall, with division by zero unmasked, which the emulator ignores. Ring 0 has its own MXCSR.
    let mut thread = Program::new(&[0x0f, 0x5e, 0xc8, 0x0f, 0x05]).thread();
    thread.context_mut().mxcsr = 0x1d80;
    thread.context_mut().xmm[1] = [0x3f; 16];
    let trap = run(&mut *thread).await;
    assert!(trap == exception(SIMD, 0) || trap == Trap::SystemCall, "{trap:?}");
    assert!(core::hint::black_box(1.0) / core::hint::black_box(0.0) > core::hint::black_box(f64::MAX));

    // push %rax on a stack that is nowhere.
    for (stack, expected) in [
        (NOTHING + PAGE, fault(NOTHING + PAGE - 8, Access::Write)),
        (STACKS + PAGE, fault(STACKS + PAGE - 8, Access::Write)),
    ] {
        let mut thread = Program::new(&[0x50]).thread();
        thread.context_mut().registers.rsp = stack;
        assert_eq!(run(&mut *thread).await, expected, "{stack:#x}");
    }
    // The emulator raises a general protection exception instead.
    let mut thread = Program::new(&[0x50]).thread();
    thread.context_mut().registers.rsp = NON_CANONICAL + 8;
    let trap = run(&mut *thread).await;
    assert!(trap == exception(STACK_SEGMENT, 0) || trap == exception(PROTECTION, 0), "{trap:?}");
    println!("programs: exceptions are traps");

    // A fault is served, and the instruction executes again.
    let program = Program::new(&[0x48, 0x89, 0x07, 0x0f, 0x05]);
    let mut thread = program.thread();
    (thread.context_mut().registers.rdi, thread.context_mut().registers.rax) = (NOTHING + 16, 0x1234_5678);
    assert_eq!(run(&mut *thread).await, fault(NOTHING + 16, Access::Write));
    let frame = Frame::zeroed();
    program.space.map(NOTHING, frame.clone(), WRITE).expect("nothing is mapped there");
    assert_eq!(run(&mut *thread).await, Trap::SystemCall);
    assert_eq!(frame.load(16), 0x1234_5678);
    assert!(program.space.page_at(NOTHING).is_some_and(|page| page.is_dirty && page.frame.is(&frame)));
    println!("programs: a served fault is repeated");
}
