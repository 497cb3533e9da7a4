//! Valid images, images with one defect, and random bytes.

use super::*;
use alloc::vec;
use isola_supervisor_fake::image::Builder;
use proptest::prelude::*;

const R: u32 = constants::PF_R;
const W: u32 = constants::PF_W;
const X: u32 = constants::PF_X;
const CODE: u64 = IMAGE + 0x10_0000;

fn fault(change: impl FnOnce(&mut Builder)) -> ImageFault {
    let mut builder = Builder::default();
    change(&mut builder);
    ImagePlan::check(&builder.build()).unwrap_err()
}

#[test]
fn a_valid_image_is_accepted() {
    let bytes = Builder::default().build();
    let plan = ImagePlan::check(&bytes).unwrap();
    assert_eq!((plan.entry, plan.vectors), (CODE + 0x1000, CODE));
    let rights: Vec<Rights> = plan.segments.iter().map(|segment| segment.rights).collect();
    assert_eq!(rights, [Rights::ReadExecute, Rights::Read, Rights::ReadWrite]);
    assert_eq!(plan.memory_bytes(Source::Copied), 0x2000 + 0x1000 + 0x5000);
    let data = &plan.segments[2];
    assert_eq!((&bytes[data.file.clone()], data.memory_len), (&[2u8; 10][..], 0x5000));
}

#[test]
fn segments_for_standalone_boot_are_not_loaded_in_a_cell() {
    let mut image = Builder::default();
    image.segments.push((CODE + 0x8000, R | W | BOOT_ALONE, Vec::new(), 0xf000));
    let plan = ImagePlan::check(&image.build()).unwrap();
    assert_eq!(plan, ImagePlan { segments: plan.segments[..3].to_vec(), ..plan.clone() });
    assert_eq!(plan.memory_bytes(Source::Copied), 0x2000 + 0x1000 + 0x5000);
    // The entry points cannot be in such a segment.
    image.segments[0].1 |= BOOT_ALONE;
    assert_eq!(ImagePlan::check(&image.build()), Err(ImageFault::EntryPlacement));
}

#[test]
fn a_file_that_is_not_elf_is_rejected() {
    for bytes in [&b""[..], b"\x7fEL", b"#!/bin/sh\nexit 1\n", &[0; 4096]] {
        assert_eq!(ImagePlan::check(bytes), Err(ImageFault::NotElf));
    }
    let good = Builder::default().build();
    for (offset, value) in [(4, 1), (5, 2), (18, 0xb7)] {
        let mut bytes = good.clone();
        bytes[offset] = value;
        assert_eq!(ImagePlan::check(&bytes), Err(ImageFault::NotElf), "byte {offset}");
    }
}

#[test]
fn an_image_that_is_not_static_is_rejected() {
    assert_eq!(fault(|image| image.elf_type = constants::ET_DYN), ImageFault::NotStatic);
    assert_eq!(fault(|image| image.extra_header = Some(constants::PT_INTERP)), ImageFault::NotStatic);
    assert_eq!(fault(|image| image.extra_header = Some(constants::PT_DYNAMIC)), ImageFault::NotStatic);
}

#[test]
fn a_truncated_image_is_rejected() {
    let bytes = Builder::default().build();
    for len in 0..bytes.len() {
        assert!(ImagePlan::check(&bytes[..len]).is_err(), "cut to {len}");
    }
}

#[test]
fn an_image_without_a_note_or_of_another_version_is_rejected() {
    assert_eq!(fault(|image| image.note = None), ImageFault::NoNote);
    assert_eq!(fault(|image| image.note = Some((77, CODE, CODE))), ImageFault::Version(77));
}

#[test]
fn segments_must_be_disjoint_and_within_the_image_area() {
    for virt in [0, 0x10_0000, IMAGE - 0x1000, IMAGE + IMAGE_MAX_SIZE - 0x1000, u64::MAX - 0x1000] {
        let fault = fault(|image| image.segments[2].0 = virt);
        assert_eq!(fault, ImageFault::SegmentPlacement, "{virt:#x}");
    }
    let mut last = Builder::default();
    last.segments[2].0 = IMAGE + IMAGE_MAX_SIZE - last.segments[2].3;
    assert!(ImagePlan::check(&last.build()).is_ok(), "the end of the area");
    // On the page on which the segment before ends, and within that segment.
    for virt in [CODE + 0x2800, CODE + 0x1000] {
        assert_eq!(fault(|image| image.segments[2].0 = virt), ImageFault::SegmentPlacement);
    }
}

#[test]
fn code_must_not_be_writable() {
    assert_eq!(fault(|image| image.segments[0].1 = R | W | X), ImageFault::WritableCode);
}

#[test]
fn entry_points_must_be_code() {
    for (entry, vectors) in [
        (CODE + 0x2000, CODE),
        (CODE + 0x3000, CODE),
        (0, CODE),
        (u64::MAX, CODE),
        (CODE, CODE + 0x1008),
        (CODE, u64::MAX - 8),
    ] {
        let fault = fault(|image| image.note = Some((isola_abi::VERSION, entry, vectors)));
        assert_eq!(fault, ImageFault::EntryPlacement, "{entry:#x} {vectors:#x}");
    }
}

#[test]
fn the_last_byte_of_code_can_be_the_entry_point() {
    let image = Builder { note: Some((isola_abi::VERSION, CODE + 0x1fff, CODE)), ..Builder::default() };
    assert_eq!(ImagePlan::check(&image.build()).unwrap().entry, CODE + 0x1fff);
}

#[test]
fn segments_may_be_in_any_order_in_the_file() {
    let mut image = Builder::default();
    image.segments.reverse();
    let plan = ImagePlan::check(&image.build()).unwrap();
    let addresses: Vec<u64> = plan.segments.iter().map(|segment| segment.virt).collect();
    assert_eq!(addresses, [CODE, CODE + 0x2000, CODE + 0x3000]);
}

#[test]
fn an_image_that_takes_too_much_memory_is_rejected() {
    assert_eq!(fault(|image| image.segments[2].3 = MAX_IMAGE), ImageFault::TooLarge);
    assert_eq!(ImagePlan::check(&vec![0; MAX_IMAGE as usize + 1]), Err(ImageFault::TooLarge));
}

#[test]
fn a_segment_with_more_bytes_than_memory_is_rejected() {
    assert_eq!(fault(|image| image.segments[0].3 = 0x1fff), ImageFault::Malformed);
}

/// Returns the sources of the segments' memory, for an image whose last page is filled with zeros.
fn sources(change: impl FnOnce(&mut Builder)) -> Vec<Source> {
    let mut builder = Builder::default();
    change(&mut builder);
    let mut bytes = builder.build();
    let plan = ImagePlan::check(&bytes).unwrap();
    bytes.resize(bytes.len().next_multiple_of(PAGE_SIZE as usize), 0);
    let plan = plan.sharing(&bytes);
    holds(&plan, &bytes);
    plan.segments.iter().map(|segment| segment.source).collect()
}

#[test]
fn read_only_segments_are_shared_if_the_file_can_be_mapped() {
    use Source::{Copied, Shared};
    assert_eq!(sources(|_| {}), [Shared, Shared, Copied]);
    let plan = ImagePlan::check(&Builder::default().build()).unwrap();
    assert!(plan.segments.iter().all(|segment| segment.source == Copied), "before a call of sharing");
    assert_eq!(plan.clone().copied(), plan);
    assert_eq!(sources(|image| image.page_bytes = 1), [Copied; 3], "another offset within the page");
    assert_eq!(sources(|image| image.segments[1].3 = 101), [Shared, Copied, Copied], "it ends with zeros");
    // A linker ends code with traps.
    let trap = |image: &mut Builder| image.segments[0].2.truncate(0x1801);
    assert_eq!(
        sources(|image| {
            trap(image);
            image.segments[0].3 = 0x1801;
        }),
        [Shared, Shared, Copied]
    );
}

#[test]
fn a_page_with_other_contents_of_the_file_is_not_shared() {
    let bytes = Builder::default().build();
    let plan = ImagePlan::check(&bytes).unwrap();
    let constants = plan.segments[1].file.clone();
    for (at, filler, source) in [
        (constants.end, 0xcc, Source::Shared),
        (constants.end, 1, Source::Copied),
        (constants.end + 0xf00 - 1, 1, Source::Copied),
        (constants.start, 1, Source::Shared),
    ] {
        let mut pages = bytes.clone();
        pages[at] = filler;
        assert_eq!(plan.clone().sharing(&pages).segments[1].source, source, "{at:#x}");
    }
    assert_eq!(
        plan.clone().sharing(&bytes[..constants.end + 10]).segments[1].source,
        Source::Copied,
        "the page is incomplete"
    );
}

/// Checks the guarantees of a plan to its users.
fn holds(plan: &ImagePlan, bytes: &[u8]) {
    assert!(!plan.segments.is_empty() && plan.memory_bytes(Source::Copied) <= MAX_IMAGE);
    for segment in plan.segments.iter().filter(|segment| segment.source == Source::Shared) {
        let (pages, file) = (segment.file_pages(), segment.file.clone());
        assert!(segment.rights != Rights::ReadWrite && pages.start % PAGE_SIZE as usize == 0);
        assert_eq!(bytes[pages.clone()].len() as u64, segment.pages().end - segment.pages().start);
        assert_eq!((file.start - pages.start) as u64, segment.virt - segment.pages().start);
        assert!(
            bytes[pages.start..file.start]
                .iter()
                .chain(&bytes[file.end..pages.end])
                .all(|byte| matches!(byte, 0 | 0xcc))
        );
    }
    for segment in &plan.segments {
        assert!(bytes[segment.file.clone()].len() as u64 <= segment.memory_len);
        assert!(segment.pages().start >= IMAGE && segment.pages().end <= IMAGE + IMAGE_MAX_SIZE);
    }
    assert!(plan.segments.windows(2).all(|pair| pair[0].pages().end <= pair[1].pages().start));
    assert!(plan.executes(plan.entry..plan.entry + 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_images_are_rejected_or_safe(
        damage in proptest::collection::vec((0usize..0x200, any::<u8>()), 1..8)
    ) {
        let mut bytes = Builder::default().build();
        for (offset, value) in damage {
            bytes[offset] = value;
        }
        if let Ok(plan) = ImagePlan::check(&bytes) {
            holds(&plan, &bytes);
            holds(&plan.sharing(&bytes), &bytes);
        }
    }

    #[test]
    fn random_bytes_are_rejected(noise in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(ImagePlan::check(&noise).is_err());
        let mut bytes = Builder::default().build();
        bytes.truncate(16);
        bytes.extend(noise);
        prop_assert!(ImagePlan::check(&bytes).is_err());
    }
}
