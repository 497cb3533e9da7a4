//! Shares and limits of Linux processes in cells.

use isola_need::{Need, need};
use isola_tests::isola::Isola;
use isola_tests::linux_root::LinuxRoot;

/// A script for a cell with one core: two programs with the weights 3 and 1, one with a fifth of a core, and one that leaks.
const SCRIPT: &str = r#"
cd /sys/fs/cgroup
echo "+cpu +memory" > cgroup.subtree_control
for group in heavy light slow; do /bin/busybox mkdir $group; done
echo 300 > heavy/cpu.weight
echo "20000 100000" > slow/cpu.max
run() { sh -c "echo 0 > $1/cgroup.procs; exec scheduling $2 2"; }
run heavy spin > /tmp/heavy & run light spin > /tmp/light & wait
echo weights $(cat /tmp/heavy) $(cat /tmp/light)
echo limited $(run slow spin)
scheduling leak
echo leak $?
cat /proc/self/cgroup
"#;

#[test]
fn processes_get_their_shares_and_no_more_than_their_limits() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) {
        return;
    }
    let root = LinuxRoot::new();
    root.compile("scheduling", "scheduling", &["-static"]);
    let isola = Isola::up(&["--cores", "2", "--memory", "512M"]);
    let volume = root.volume(&isola, "48M");
    let options = ["--cores", "1", "--network", "none", "--memory", "64M"];
    let outcome = volume.run_with(&isola, &options, &["--", "sh", "-c", SCRIPT]).ended_with(0);
    let numbers = |name: &str| -> Vec<f64> {
        let line = outcome.out.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{outcome:?}"))
            .split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect()
    };
    // Milliseconds of processor time in two seconds.
    let [heavy, light] = numbers("weights ")[..] else { panic!("{outcome:?}") };
    let share = heavy / (heavy + light);
    assert!((0.68..0.82).contains(&share), "{share}: {outcome:?}");
    let limited = numbers("limited ")[0];
    assert!((200.0..600.0).contains(&limited), "a fifth of two seconds is 400 ms: {outcome:?}");
    assert!(outcome.out.contains("out of memory: killed process"), "{outcome:?}");
    assert!(outcome.out.contains("leak 137\n0::/\n"), "the shell continues: {outcome:?}");
}
