//! An application that forbids unsafe code has no other way around the names: neither a transmuted value, nor a symbol, nor
//! instructions of its own.
#![forbid(unsafe_code)]

/// A function of the image by its symbol, declared safe.
unsafe extern "C" { //~ unsafe_code
    safe fn isola_exception();
}

/// A symbol that the library OS calls.
#[unsafe(no_mangle)] //~ unsafe_code
fn isola_application_begin() {}

core::arch::global_asm!("out 0xf4, al"); //~ unsafe_code

fn transmute() {
    let _: isola::ebbs::EbbId = core::mem::transmute(1_u64); //~ E0133
}

fn instruction() {
    core::arch::asm!("out 0xf4, al"); //~ E0133
}

fn main() {}
