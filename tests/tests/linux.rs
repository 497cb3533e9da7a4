//! Unmodified Linux programs in cells, compared with the same programs on this host.

use isola_need::{Need, need};
use isola_tests::isola::{Isola, Outcome};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Programs of `tests/programs`.
const PROGRAMS: [&str; 4] = ["processes", "threads", "files", "unix_sockets"];

/// A root file system for cells.
struct Root {
    folder: TempDir,
}

impl Root {
    /// Creates a root file system with busybox, and the programs of `tests/programs`, linked statically and dynamically.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Self { folder };
        for name in ["bin", "etc", "tmp", "lib64", "lib/x86_64-linux-gnu"] {
            fs::create_dir_all(root.path(name)).unwrap();
        }
        fs::set_permissions(root.path("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(root.path("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
        fs::copy("/bin/busybox", root.path("bin/busybox")).unwrap();
        for applet in
            ["sh", "ls", "cat", "tr", "seq", "wc", "sleep", "grep", "sort", "ps", "dd", "awk", "find"]
        {
            symlink("busybox", root.path("bin").join(applet)).unwrap();
        }
        for program in PROGRAMS {
            root.compile(program, program, &[]);
            root.compile(program, &format!("{program}-static"), &["-static"]);
        }
        fs::copy("/lib64/ld-linux-x86-64.so.2", root.path("lib64/ld-linux-x86-64.so.2")).unwrap();
        let libc = "lib/x86_64-linux-gnu/libc.so.6";
        fs::copy(Path::new("/").join(libc), root.path(libc)).unwrap();
        root
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("root").join(name)
    }

    fn compile(&self, source: &str, name: &str, options: &[&str]) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(format!("{source}.c"));
        let mut command = Command::new("gcc");
        command
            .args(["-O1", "-pthread"])
            .args(options)
            .arg("-o")
            .arg(self.path("bin").join(name))
            .arg(source);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs a program on this host.
    fn on_host(&self, name: &str) -> (String, Option<i32>) {
        let output = Command::new(self.path("bin").join(name)).output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.code())
    }

    /// Makes a volume of the file system.
    fn volume(&self, isola: &Isola) -> Volume<'_> {
        let store = self.folder.path().join("volumes");
        let from = self.folder.path().join("root").display().to_string();
        let create = ["volume", "create", "root", "--size", "48M", "--from", &from];
        isola.run_with(&create, &[("ISOLA_VOLUMES", &store)]).ok();
        Volume { store, _root: self }
    }
}

/// A volume with the root file system.
struct Volume<'a> {
    store: PathBuf,
    _root: &'a Root,
}

impl Volume<'_> {
    /// Runs a command in a cell of its own.
    fn run(&self, isola: &Isola, cores: &str, command: &[&str]) -> Outcome {
        let run = ["run", "--rm", "--cores", cores, "--network", "none", "-v", "root:/:ro", "linux"];
        isola.run_with(&[&run[..], command].concat(), &[("ISOLA_VOLUMES", &self.store)])
    }
}

#[test]
fn programs_do_in_a_cell_what_they_do_on_linux() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) {
        return;
    }
    let root = Root::new();
    let isola = Isola::up(&["--cores", "3"]);
    let volume = root.volume(&isola);
    for program in PROGRAMS {
        let (expected, code) = root.on_host(program);
        for (name, cores) in [(format!("{program}-static"), "1"), (program.into(), "2")] {
            let outcome = volume.run(&isola, cores, &[&name]);
            let shown: String = outcome
                .out
                .lines()
                .filter(|line| !line.starts_with("linux: process"))
                .map(|line| format!("{line}\n"))
                .collect();
            assert_eq!((shown, outcome.code), (expected.clone(), code), "{name}: {outcome:?}");
        }
    }
}

#[test]
fn a_shell_runs_its_commands() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) {
        return;
    }
    let root = Root::new();
    let isola = Isola::up(&["--cores", "2"]);
    let volume = root.volume(&isola);
    let script = "for i in 1 2 3; do echo $i | tr 123 abc; done; seq 1 1000 | wc -l; echo a > /tmp/x; cat /tmp/x /tmp/x; \
                  find /bin -name busybox; sleep 0.1; cat /proc/self/comm; exit 5";
    let outcome = volume.run(&isola, "1", &["--", "sh", "-c", script]);
    assert_eq!(outcome.out, "a\nb\nc\n1000\na\na\n/bin/busybox\ncat\n", "{outcome:?}");
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
    let root = Root::new();
    let isola = Isola::up(&["--cores", "2"]);
    let volume = root.volume(&isola);
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
    let outcome = volume.run(&isola, "1", &["--missing-calls", "processes-static"]).ended_with(7);
    assert!(outcome.out.contains("linux: missing: call 334"), "{outcome:?}");
    let outcome = volume.run(&isola, "1", &["--trace", "cat", "/none"]).ended_with(1);
    assert!(outcome.out.contains("= -1 ENOENT"), "{outcome:?}");
}
