//! Two stacks that talk over a line on which somebody changes what they say.
#![no_main]

#[path = "../conversation.rs"]
mod conversation;

libfuzzer_sys::fuzz_target!(|data: &[u8]| conversation::conversation(data));
