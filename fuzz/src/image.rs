//! Image files, as the host tool and the supervisor check them.

use isola_abi::layout::{IMAGE, IMAGE_MAX_SIZE};
use isola_abi::management::MAX_IMAGE;
use isola_host::image::elf::ElfImage;
use isola_supervisor_core::image::{ImagePlan, Source};

/// Checks an image as the supervisor does. An accepted image must be loadable within the file and the image's part of
/// the address space.
pub fn supervisor(bytes: &[u8]) {
    let Ok(plan) = ImagePlan::check(bytes) else { return };
    let sources = [Source::Copied, Source::Shared].map(|source| plan.memory_bytes(source));
    assert!(sources.iter().sum::<u64>() <= IMAGE_MAX_SIZE);
    for segment in plan.segments() {
        assert!(bytes[segment.file.clone()].len() as u64 <= segment.memory_len);
        assert!(segment.pages().start >= IMAGE && segment.pages().end <= IMAGE + IMAGE_MAX_SIZE);
    }
    assert!(plan.segments().windows(2).all(|pair| pair[0].pages().end <= pair[1].pages().start));
}

/// Checks an image as the host tool does. A trimmed image must be no longer than the whole one, and acceptable to the
/// supervisor if the whole one is.
pub fn host(bytes: &[u8]) {
    let Ok(image) = ElfImage::parse(bytes) else { return };
    let noted = image.check_note().is_ok();
    let Ok(trimmed) = image.trimmed() else { return };
    assert!(trimmed.len() <= bytes.len() && trimmed.len() as u64 <= MAX_IMAGE);
    let again = ElfImage::parse(&trimmed).expect("a trimmed image is an image");
    assert_eq!(again.check_note().is_ok(), noted);
    let [whole, short] = [bytes, &trimmed].map(|image| ImagePlan::check(image).is_ok());
    assert!(short || !whole, "the supervisor takes the whole image, but not the trimmed one");
}
