//! x87 and the upper halves of vector registers: two threads on a core do not see each other's.

use crate::program::{Program, call};
use isola::prelude::*;
use isola::user_mode::{InvalidState, UserThread};

/// vmovdqu (%rdi), %ymm7; fldt 32(%rdi); syscall; vmovdqu %ymm7, (%rsi); fstpt 32(%rsi); syscall
const CODE: [u8; 18] = [
    0xc5, 0xfe, 0x6f, 0x3f, 0xdb, 0x6f, 0x20, 0x0f, 0x05, 0xc5, 0xfe, 0x7f, 0x3e, 0xdb, 0x7e, 0x20, 0x0f,
    0x05,
];

/// The bytes that the program loads: a vector, and a number of x87.
const LEN: usize = 42;

fn bytes(seed: u8) -> [u8; LEN] {
    let mut bytes = core::array::from_fn(|index| seed.wrapping_mul(17).wrapping_add(index as u8));
    // A normal number: bit 63 of the mantissa is set.
    (bytes[39], bytes[40], bytes[41]) = (0x80, 0xff, 0x3f);
    bytes
}

fn stored(program: &Program) -> [u8; LEN] {
    let mut found = [0; LEN];
    program.data.read(64, &mut found);
    found
}

async fn started(seed: u8) -> (Program, Box<dyn UserThread>) {
    let program = Program::new(&CODE);
    program.data.write(0, &bytes(seed));
    let mut thread = program.thread();
    call(&mut *thread).await;
    (program, thread)
}

pub async fn check() {
    let mut threads = Vec::new();
    for seed in 1..6 {
        threads.push(started(seed).await);
    }
    for (program, thread) in threads.iter_mut().rev() {
        call(&mut **thread).await;
        let _ = program;
    }
    for (seed, (program, _)) in (1..).zip(&threads) {
        assert_eq!(stored(program), bytes(seed), "thread {seed}");
    }
    println!("programs: extended states are separate");

    // The state as bytes: of a thread, to another one.
    let (_, mut first) = started(9).await;
    let state = first.extended_state().to_vec();
    let (program, mut second) = started(10).await;
    assert_eq!(second.set_extended_state(&state[..100]), Err(InvalidState));
    let mut invalid = state.clone();
    invalid[519] = 0x80;
    assert_eq!(second.set_extended_state(&invalid), Err(InvalidState));
    assert_eq!(second.set_extended_state(&state), Ok(()));
    let mut third = second.duplicate(program.space.clone());
    call(&mut *second).await;
    assert_eq!(stored(&program), bytes(9));
    program.data.clear(0, 128);
    call(&mut *third).await;
    assert_eq!(stored(&program), bytes(9), "a duplicate has the state too");
    println!("programs: extended states can be copied");
}
