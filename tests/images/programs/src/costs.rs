//! The costs of a system call and of a page fault, on the cycle counter.

use crate::program::{Program, WRITE};
use isola::ebbs::cycles;
use isola::events::yield_now;
use isola::memory::Frame;
use isola::prelude::*;
use isola::user_mode::Trap;

/// 1: inc %rbx; syscall; jmp 1b
const CALLS: [u8; 7] = [0x48, 0xff, 0xc3, 0x0f, 0x05, 0xeb, 0xf9];

/// 1: mov %rax, (%rdi); add $4096, %rdi; jmp 1b
const FAULTS: [u8; 12] = [0x48, 0x89, 0x07, 0x48, 0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, 0xeb, 0xf4];

/// The instructions of the program in a round of each loop.
const OWN_OF_CALL: u64 = 3;
const OWN_OF_FAULT: u64 = 3;

const ROUNDS: u64 = 1000;
const AREA: u64 = 0x1_0000_0000;

pub async fn print() {
    let program = Program::new(&CALLS);
    let mut thread = program.thread();
    // The core's other work, such as a frame from the network, is done between two system calls.
    let mut call = async || {
        while thread.run() != Trap::SystemCall {
            yield_now().await;
        }
        thread.context_mut().registers.rax = 0;
    };
    for _ in 0..ROUNDS {
        call().await;
    }
    yield_now().await;
    let began = cycles();
    for _ in 0..ROUNDS {
        call().await;
    }
    let of_call = (cycles() - began) / ROUNDS - OWN_OF_CALL;

    let program = Program::new(&FAULTS);
    let mut thread = program.thread();
    thread.context_mut().registers.rdi = AREA;
    let mut fault = async || loop {
        if let Trap::PageFault { address, .. } = thread.run() {
            break program.space.map(address & !4095, Frame::zeroed(), WRITE).expect("a fresh page");
        }
        yield_now().await;
    };
    for _ in 0..ROUNDS {
        fault().await;
    }
    yield_now().await;
    let began = cycles();
    for _ in 0..ROUNDS {
        fault().await;
    }
    let of_fault = (cycles() - began) / ROUNDS - OWN_OF_FAULT;
    println!("system call: {of_call}");
    println!("page fault: {of_fault}");
}
