//! Any answers to a stack that asks for its address.
#![no_main]

#[path = "../entries.rs"]
#[allow(dead_code)] // Each target runs one of them.
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::dhcp(data));
