//! Packets with good beginnings, about the link and in parts, to a stack that sets itself up.
#![no_main]

#[path = "../entries.rs"]
#[allow(dead_code)] // Each target runs one of them.
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::packets(data));
