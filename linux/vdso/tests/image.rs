//! The image: the structure that programs and the mapping rely on, and its clock beside the cell's.

use elf::ElfBytes;
use elf::abi::{DT_REL, DT_RELA, PF_R, PF_X, PT_DYNAMIC, PT_LOAD};
use elf::endian::LittleEndian;
use isola_linux_vdso::{ClockPage, IMAGE};
use isola_platform::Clock;

fn image() -> ElfBytes<'static, LittleEndian> {
    ElfBytes::minimal_parse(IMAGE).unwrap()
}

#[test]
fn the_image_is_one_segment_that_needs_no_relocation() {
    let image = image();
    let segments: Vec<_> = image.segments().unwrap().iter().collect();
    let loaded: Vec<_> = segments.iter().filter(|segment| segment.p_type == PT_LOAD).collect();
    assert_eq!(loaded.len(), 1);
    let segment = loaded[0];
    assert_eq!((segment.p_vaddr, segment.p_offset, segment.p_flags), (0, 0, PF_R | PF_X));
    assert_eq!(segment.p_memsz, segment.p_filesz, "there is no memory beyond the file");
    let dynamic = segments.iter().find(|segment| segment.p_type == PT_DYNAMIC).unwrap();
    // The C library relocates the addresses of a section that can be written.
    assert_eq!(dynamic.p_flags, PF_R);
    let has_relocations =
        image.dynamic().unwrap().unwrap().iter().any(|entry| [DT_REL, DT_RELA].contains(&entry.d_tag));
    assert!(!has_relocations);
}

#[test]
fn the_functions_have_linux_s_names_and_version() {
    let image = image();
    let (symbols, names) = image.dynamic_symbol_table().unwrap().unwrap();
    let versions = image.symbol_version_table().unwrap().unwrap();
    for name in ["clock_getres", "clock_gettime", "getcpu", "gettimeofday", "time"] {
        let name = format!("__vdso_{name}");
        let is_named = |symbol: &elf::symbol::Symbol| {
            names.get(symbol.st_name as usize).is_ok_and(|other| other == name)
        };
        let index = symbols.iter().position(|symbol| is_named(&symbol)).unwrap();
        assert!(symbols.get(index).unwrap().st_value > 0, "{name}");
        let version = versions.get_definition(index).unwrap().unwrap();
        assert_eq!(version.names.map(Result::unwrap).collect::<Vec<_>>(), ["LINUX_2.6"], "{name}");
    }
}

#[test]
fn the_clock_is_the_cell_s() {
    for tsc_hz in [1_000_000_000, 2_099_999_123, 33_000_000] {
        let clock = isola_abi::descriptor::Clock {
            tsc_hz,
            apic_timer_hz: 0,
            tsc_at_epoch: 1_000_000,
            unix_ns_at_epoch: 1_700_000_000_000_000_000,
        };
        let clock = Clock::new(&clock);
        let (zero_cycles, ns_per_cycle, unix_ns_at_zero) = clock.parameters();
        let page = ClockPage { sequence: 0, is_usable: 1, zero_cycles, ns_per_cycle, unix_ns_at_zero };
        for cycles in [0, 999_999, 1_000_000, 1_000_001, 77_777_777_777, u64::MAX] {
            let instant = clock.instant(cycles);
            assert_eq!(page.monotonic_ns(cycles), instant.as_ns(), "{cycles} at {tsc_hz} Hz");
        }
        assert_eq!(clock.unix_ns(clock.instant(1_000_000)), unix_ns_at_zero);
    }
}

#[test]
fn the_page_has_the_structure_s_bytes() {
    let page = ClockPage { sequence: 1, is_usable: 2, zero_cycles: 3, ns_per_cycle: 4, unix_ns_at_zero: 5 };
    let bytes = page.bytes();
    assert_eq!((bytes[0], bytes[4], bytes[8], bytes[16], bytes[24]), (1, 2, 3, 4, 5));
    assert_eq!(ClockPage::LEN, 32);
}
