//! Unmodified Linux programs in cells, compared with the same programs on this host.

use isola_need::{Need, need};
use isola_tests::isola::Isola;
use isola_tests::linux_root::LinuxRoot;

/// Programs of `tests/programs`.
const PROGRAMS: [&str; 9] =
    ["processes", "threads", "memory", "files", "timers", "ipc", "events", "rings", "unix_sockets"];

/// A root file system with the programs of `tests/programs`, linked statically and dynamically.
fn root() -> LinuxRoot {
    let root = LinuxRoot::new();
    for program in PROGRAMS {
        root.compile(program, program, &[]);
        root.compile(program, &format!("{program}-static"), &["-static"]);
    }
    root
}

#[test]
fn programs_do_in_a_cell_what_they_do_on_linux() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) {
        return;
    }
    let root = root();
    let isola = Isola::up(&["--cores", "3"]);
    let volume = root.volume(&isola, "48M");
    for program in PROGRAMS {
        let (expected, code) = root.on_host(program);
        // Some hosts forbid it.
        if expected == "no io_uring\n" {
            continue;
        }
        for (name, cores) in [(format!("{program}-static"), "1"), (program.into(), "2")] {
            let outcome = volume.run(&isola, cores, &[&name]);
            let shown = printed_by_programs(&outcome.out);
            assert_eq!((shown, outcome.code), (expected.clone(), code), "{name}: {outcome:?}");
        }
    }
}

/// Returns the output without the cell's own lines: ends of processes, and the watchdog's reports on a slow host.
fn printed_by_programs(output: &str) -> String {
    let is_own = |line: &&str| !line.starts_with("linux: process") && !line.starts_with("watchdog: ");
    output.lines().filter(is_own).map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_shell_runs_its_commands() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) {
        return;
    }
    let root = root();
    let isola = Isola::up(&["--cores", "2"]);
    let volume = root.volume(&isola, "48M");
    let script = "for i in 1 2 3; do echo $i | tr 123 abc; done; seq 1 1000 | wc -l; echo a > /tmp/x; cat /tmp/x /tmp/x; \
                  find /bin -name busybox; sleep 0.1; cat /proc/self/comm; exit 5";
    let outcome = volume.run(&isola, "1", &["--", "sh", "-c", script]);
    assert_eq!(printed_by_programs(&outcome.out), "a\nb\nc\n1000\na\na\n/bin/busybox\ncat\n", "{outcome:?}");
    outcome.ended_with(5);
    // The changes were in memory: the volume is as before.
    let outcome = volume.run(&isola, "1", &["cat", "/tmp/x"]);
    outcome.ended_with(1);
}

#[test]
fn mistakes_are_explained() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) {
        return;
    }
    let root = root();
    let isola = Isola::up(&["--cores", "2"]);
    let volume = root.volume(&isola, "48M");
    let error = |command: &[&str], code: i32, words: &str| {
        let outcome = volume.run(&isola, "1", command).ended_with(code);
        assert!(outcome.out.contains(words), "{outcome:?}");
    };
    error(&["nothing"], 127, "linux: nothing cannot be executed: ENOENT");
    error(&["/etc/passwd"], 126, "linux: /etc/passwd cannot be executed: EACCES");
    error(&["--nope", "sh"], 2, "--nope is no option");
    error(&["-w", "/none", "sh"], 127, "cannot be executed: ENOENT");
    let without = isola.run(&["run", "--rm", "--network", "none", "linux", "sh"]).ended_with(1);
    assert!(without.out.contains("no volume is mounted at /"), "{without:?}");
    // Calls that do not exist are counted.
    let outcome =
        volume.run(&isola, "1", &["--missing-calls", "busybox", "pivot_root", ".", "."]).ended_with(1);
    assert!(outcome.out.contains("linux: missing: call 155"), "{outcome:?}");
    let outcome = volume.run(&isola, "1", &["--trace", "cat", "/none"]).ended_with(1);
    assert!(outcome.out.contains("= -1 ENOENT"), "{outcome:?}");
}
