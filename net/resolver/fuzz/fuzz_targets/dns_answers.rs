//! Any bytes as an answer.
#![no_main]

#[path = "../entries.rs"]
#[allow(dead_code)] // Each target runs one of them.
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::answers(data));
