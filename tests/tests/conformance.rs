//! The library OS on bare hardware keeps what it promises on every platform: the checks of `cell/conformance`, which
//! also run on threads, in an image alone on a machine and in a cell.

use isola_tests::images;
use isola_tests::isola::Isola;
use isola_tests::qemu::{MACHINE_TYPES, Machine};
use std::time::Duration;

#[test]
fn every_check_holds_alone_on_1_2_and_4_cores() {
    for (kind, cores) in MACHINE_TYPES.into_iter().zip([1, 2, 4]) {
        let machine = Machine::new(kind, "conformance-image").cores(cores).limit(Duration::from_secs(600));
        let outcome = machine.run();
        let serial = &outcome.serial;
        assert!(serial.contains(&format!(", 0 are broken, on {cores} cores")), "{serial}");
        assert_eq!(outcome.exit_code, Some(0), "{serial}");
    }
}

#[test]
fn every_check_holds_in_cells_of_1_and_3_cores() {
    let isola = Isola::up(&[]);
    let image = images::path("conformance-image").to_string_lossy().into_owned();
    for cores in ["1", "3"] {
        let run = ["run", "--rm", "--cores", cores, "--network", "none", &image];
        let said = isola.run(&run).ok();
        assert!(said.contains(&format!(", 0 are broken, on {cores} cores")), "{said}");
    }
}
