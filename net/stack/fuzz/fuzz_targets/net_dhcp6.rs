//! Answers of a DHCPv6 server to a stack whose router offers addresses.
#![no_main]

#[path = "../entries.rs"]
#[allow(dead_code)] // Each target runs one of them.
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::dhcp6(data));
