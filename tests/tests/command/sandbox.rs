//! The system call filter of a machine's QEMU.

use isola_tests::isola::Isola;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Returns the value of a line of QEMU's `/proc/PID/status`.
fn status(isola: &Isola, line: &str) -> String {
    let pid = isola.qemu("default").expect("the machine is up");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let found = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no {line} in {status}")).trim().to_owned()
}

#[test]
fn the_system_calls_of_qemu_are_filtered() {
    let isola = Isola::new();
    let up = isola.run(&["up", "--accel", "tcg"]);
    assert!(!up.err.contains("system call filter"), "{up:?}");
    up.ok();
    assert_eq!(status(&isola, "Seccomp"), "2", "SECCOMP_MODE_FILTER");
    isola.run(&["down"]).ok();
}

#[test]
fn a_machine_comes_up_with_a_notice_if_qemu_has_no_filter() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("qemu-without-seccomp");
    // QEMU rejects the option if it was configured without seccomp.
    let script = r#"#!/bin/sh
for word; do
    if [ "$word" = -sandbox ]; then
        echo "qemu-system-x86_64: -sandbox on: There is no option group 'sandbox'" >&2
        exit 1
    fi
done
exec qemu-system-x86_64 "$@"
"#;
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let isola = Isola::new();
    let up = isola.run_with(&["up", "--accel", "tcg"], &[("ISOLA_QEMU", &program)]);
    assert!(up.err.contains("without a system call filter"), "{up:?}");
    up.ok();
    assert_eq!(status(&isola, "Seccomp"), "0", "no filter");
    isola.run(&["down"]).ok();
}
