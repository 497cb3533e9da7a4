//! Any answers, one after the other, to a lookup.
#![no_main]

#[path = "../entries.rs"]
#[allow(dead_code)] // Each target runs one of them.
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::lookups(data));
