//! Regions of cells: pagers fill them, on one core and on several, and fatal faults are reported with the region's
//! name.

use isola_tests::isola::Isola;
use isola_tests::qemu::{MACHINE_TYPES, Machine, MachineType, Outcome};
use isola_tests::wait;
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn regions(cores: usize, memory_mib: usize, cpu: &str, fault: &str) -> Outcome {
    let machine = Machine::new(MachineType::Q35, "regions").cores(cores).memory_mib(memory_mib).cpu(cpu);
    machine.command_line(&format!("-- {fault}")).run()
}

#[test]
fn pagers_fill_regions_on_1_2_and_4_cores() {
    for cores in [1, 2, 4] {
        let outcome = regions(cores, 128, "max", "check");
        assert_eq!(outcome.exit_code, Some(0), "{cores} cores:\n{}", outcome.serial);
    }
}

#[test]
fn pagers_fill_regions_on_every_machine_type() {
    for kind in MACHINE_TYPES {
        let machine = Machine::new(kind, "regions").cores(2).memory_mib(128);
        let outcome = machine.command_line("-- check").run();
        assert_eq!(outcome.exit_code, Some(0), "{kind:?}:\n{}", outcome.serial);
    }
}

#[test]
fn pages_of_1_gib_are_used_if_the_processor_has_them() {
    let outcome = regions(2, 4096, "max", "check");
    assert!(outcome.serial.contains("1 GiB page: ok"), "{}", outcome.serial);
    assert_eq!(outcome.exit_code, Some(0), "{}", outcome.serial);
    let outcome = regions(1, 128, "qemu64", "check");
    assert!(outcome.serial.contains("1 GiB page: there are no pages of"), "{}", outcome.serial);
    assert_eq!(outcome.exit_code, Some(0), "{}", outcome.serial);
}

#[test]
fn an_unresolvable_page_fault_ends_the_cell_and_names_the_region() {
    for (fault, reported) in [
        ("guard", "region \"guarded\": nothing is there: a guard page was hit"),
        ("lazy", "region \"lazy\": its pager has not filled the page"),
        ("refused", "region \"refused\": no page that its pager may fill begins at offset 0x10000"),
        ("nested", "a pager has touched a region, which it must not"),
        ("exhaust", "region \"too much\": memory ran out: a page of 4096 bytes was wanted"),
        ("gone", "no region is there"),
    ] {
        let outcome = regions(1, 64, "max", fault);
        let crash = outcome.serial.lines().find(|line| line.contains("crashed")).unwrap_or_default();
        assert!(crash.contains(reported), "{fault}:\n{}", outcome.serial);
        assert_eq!(outcome.exit_code, Some(101), "{fault}:\n{}", outcome.serial);
    }
}

/// Shrinks a cell. Returns the last answer, and the migrated bytes of all requests. Pages migrate for a second of a
/// request at most, in which a busy host may let the cell do little: each request begins where the one before ended.
fn shrink(isola: &Isola, cell: &str, mib: u64) -> (Value, u64) {
    let (mut memory, mut moved_bytes) = (Value::Null, 0);
    for _ in 0..4 {
        memory = isola.json(&["resize", cell, "--memory", &format!("{mib}M")])["memory"].clone();
        moved_bytes += memory["moved_bytes"].as_u64().expect("the answer has the migrated bytes");
        if memory["has_bytes"] == mib * MIB {
            break;
        }
    }
    (memory, moved_bytes)
}

/// With one to three cores; the image writes to some pages all the time.
#[test]
fn page_migration_frees_chunks_and_preserves_every_byte() {
    let isola = Isola::up(&["--memory", "256M"]);
    let before = isola.inventory();
    for cores in ["1", "2", "3"] {
        let cell = ["run", "-d", "--name", "sparse", "--cores", cores, "--memory", "64M"];
        isola.run(&[&cell[..], &["regions", "sparse", "48", "24"]].concat()).ok();
        wait::until_true("the regions are sparsely filled", || {
            isola.run(&["logs", "sparse"]).ok().contains("sparse: filled")
        });
        let (memory, moved_bytes) = shrink(&isola, "sparse", 24);
        assert_eq!(memory["has_bytes"], 24 * MIB, "{cores} cores: {memory}");
        // Of the 20 chunks unplugged, less than half were free as a whole; an eighth of each other chunk was in use.
        assert!(moved_bytes > 2 * MIB, "{cores} cores: {memory}");
        let ended = isola.wait_for_end("sparse");
        assert_eq!((&ended["state"], &ended["exit_code"]), (&"exited".into(), &0.into()), "{ended:#}");
        assert!(isola.run(&["logs", "sparse"]).ok().contains("pages are right"));
        isola.run(&["rm", "sparse"]).ok();
        isola.wait_for_inventory(&before);
    }
}
