//! Images of any bytes: refused, or loadable without leaving the file or the image's part of the address space.
#![no_main]

use isola_abi::layout::{IMAGE, IMAGE_MAX_SIZE};
use isola_abi::management::MAX_IMAGE;
use isola_supervisor::image::ImagePlan;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(plan) = ImagePlan::check(bytes) else { return };
    assert!(plan.memory_bytes() <= MAX_IMAGE);
    for segment in &plan.segments {
        assert!(bytes[segment.file.clone()].len() as u64 <= segment.memory_len);
        assert!(segment.pages().start >= IMAGE && segment.pages().end <= IMAGE + IMAGE_MAX_SIZE);
    }
    assert!(plan.segments.windows(2).all(|pair| pair[0].pages().end <= pair[1].pages().start));
});
