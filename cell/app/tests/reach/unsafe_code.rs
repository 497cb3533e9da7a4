//! An application that forbids unsafe code cannot circumvent the names: it can use neither a transmuted value, nor a
//! symbol, nor inline assembly.
#![forbid(unsafe_code)]

/// A function of the image, declared safe by its symbol.
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
