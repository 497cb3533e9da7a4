//! Prerequisites of tests: permissions and programs of the host.
//!
//! A test calls [`need`] as its first statement. If the host lacks the prerequisite, the test fails, and the message
//! names the command that installs it. `ISOLA_SKIP=tap,valgrind` skips the tests with these prerequisites instead, on
//! any host.
//!
//! libtest cannot report a skipped test at run time: a skipped test returns and counts as passed. [`need`] therefore
//! appends a line to the file that `ISOLA_SKIPPED` names. `cargo xtask test` sets the variable, reads the file with
//! [`skipped_tests`], and counts and names these tests apart from those that passed.
//!
//! Not here: QEMU, a C linker and the Rust toolchain, without which no test is built (`./isola` installs them).

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::panic::Location;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs, io, thread};

/// The environment variable with the prerequisites whose tests are skipped, separated by commas.
pub const SKIP: &str = "ISOLA_SKIP";
/// The environment variable with the path of the file to which each skipped test appends a line.
pub const SKIPPED: &str = "ISOLA_SKIPPED";
/// The environment variable that makes tests with a long variant run it.
pub const LONG: &str = "ISOLA_LONG";

/// The device of TAP interfaces.
const TUN: &str = "/dev/net/tun";

/// A prerequisite of tests: a permission or a program of the host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Need {
    /// A network namespace with TAP interfaces.
    Tap,
    /// The server with whose answers tests compare the key-value server's.
    Memcached,
    /// The client tools of libmemcached.
    Libmemcached,
    /// Valgrind, whose memcheck finds invalid memory accesses.
    Valgrind,
    /// HTTP clients: load generators, libraries of several languages, a browser.
    HttpClients,
    /// Servers of IPv4 and IPv6 addresses.
    AddressServers,
    /// The Prometheus server, and its tool that checks metrics.
    Prometheus,
    /// The programs that make and check ext4 file systems.
    E2fsprogs,
    /// Programs of Linux that cells run: busybox, linked statically.
    Busybox,
    /// Programs of Debian that cells run, with their libraries.
    DebianPrograms,
    /// Servers of Linux that cells run: redis with its client, memcached, nginx.
    LinuxServers,
    /// Servers and language runtimes that cells run, with their clients: apache2, Go, node, openjdk, postgresql.
    LinuxRuntimes,
}

/// A prerequisite that the host lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// The prerequisite.
    pub need: Need,
    /// The reason, as a sentence without a full stop.
    pub reason: String,
    /// The command that installs it.
    pub mend: String,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = self.need.word();
        write!(f, "{}; to fix it: {}; to skip the tests that need it: {SKIP}={word}", self.reason, self.mend)
    }
}

impl Need {
    /// All prerequisites.
    pub const ALL: [Self; 12] = [
        Self::Tap,
        Self::Memcached,
        Self::Libmemcached,
        Self::Valgrind,
        Self::HttpClients,
        Self::AddressServers,
        Self::Prometheus,
        Self::E2fsprogs,
        Self::Busybox,
        Self::DebianPrograms,
        Self::LinuxServers,
        Self::LinuxRuntimes,
    ];

    /// Returns the prerequisite's name in [`SKIP`].
    pub fn word(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::Memcached => "memcached",
            Self::Libmemcached => "libmemcached",
            Self::Valgrind => "valgrind",
            Self::HttpClients => "http-clients",
            Self::AddressServers => "address-servers",
            Self::Prometheus => "prometheus",
            Self::E2fsprogs => "e2fsprogs",
            Self::Busybox => "busybox",
            Self::DebianPrograms => "debian-programs",
            Self::LinuxServers => "linux-servers",
            Self::LinuxRuntimes => "linux-runtimes",
        }
    }

    /// Returns a short description of the tests with this prerequisite.
    pub fn tests(self) -> &'static str {
        match self {
            Self::Tap => {
                "the stack against Linux's over a TAP interface (net/stack/tests/linux), hostile clients, crowds of \
                 connections, cores that move under load (services in tests/), TAP devices of hosted cells"
            }
            Self::Memcached => {
                "the key-value server's answers against memcached's (apps/kv/tests/differential.rs)"
            }
            Self::Libmemcached => {
                "libmemcached's tools as clients of the key-value server (apps/kv, services in tests/)"
            }
            Self::Valgrind => "the conformance checks under valgrind's memcheck (the stage memcheck)",
            Self::HttpClients => "HTTP clients of others against web (interoperability in tests/)",
            Self::AddressServers => "DHCP servers and routers of others (interoperability in tests/)",
            Self::Prometheus => "isola metrics against Prometheus (host/tests/command/prometheus.rs)",
            Self::E2fsprogs => {
                "volumes with ext4 file systems, and e2fsck's and mke2fs's opinion of them (storage)"
            }
            Self::Busybox => "Linux programs in cells (tests/tests/linux.rs)",
            Self::DebianPrograms => "Debian's programs in cells (tests/tests/linux_programs.rs)",
            Self::LinuxServers => "Linux servers in cells (tests/tests/linux_network.rs)",
            Self::LinuxRuntimes => {
                "servers and language runtimes of Debian in cells (tests/tests/linux_runtimes.rs)"
            }
        }
    }

    /// Returns the Debian packages of the programs.
    pub fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Tap => &["iproute2", "util-linux"],
            Self::Memcached => &["memcached"],
            Self::Libmemcached => &["libmemcached-tools"],
            Self::Valgrind => &["valgrind"],
            Self::HttpClients => &["apache2-utils", "chromium", "curl", "golang-go", "python3", "wrk"],
            Self::AddressServers => {
                &["dnsmasq-base", "iputils-ping", "kea-dhcp4-server", "kea-dhcp6-server", "radvd"]
            }
            Self::Prometheus => &["prometheus"],
            Self::E2fsprogs => &["e2fsprogs"],
            Self::Busybox => &["busybox-static"],
            Self::DebianPrograms => &[
                "bash",
                "dash",
                "gcc-12",
                "gdb",
                "git",
                "libc6-dev",
                "perl-base",
                "python3.11",
                "sqlite3",
                "strace",
                "xz-utils",
            ],
            Self::LinuxServers => &["memcached", "nginx", "redis-server", "redis-tools"],
            Self::LinuxRuntimes => &[
                "apache2-bin",
                "apache2-utils",
                "curl",
                "golang-go",
                "nodejs",
                "openjdk-17-jre-headless",
                "postgresql-15",
            ],
        }
    }

    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Tap => &["ip", "ss", "unshare"],
            Self::Memcached => &["memcached"],
            Self::Libmemcached => &[
                "memccapable",
                "memccat",
                "memccp",
                "memcexist",
                "memcflush",
                "memcping",
                "memcrm",
                "memcstat",
                "memctouch",
            ],
            Self::Valgrind => &["valgrind"],
            Self::HttpClients => &["ab", "chromium", "curl", "go", "python3", "wrk"],
            Self::AddressServers => &["dnsmasq", "kea-dhcp4", "kea-dhcp6", "ping", "radvd"],
            Self::Prometheus => &["prometheus", "promtool"],
            Self::E2fsprogs => &["debugfs", "e2fsck", "mke2fs"],
            Self::Busybox => &["busybox"],
            Self::DebianPrograms => {
                &["bash", "dash", "gcc-12", "git", "mawk", "perl", "python3.11", "sqlite3", "xz"]
            }
            Self::LinuxServers => &["memcached", "nginx", "redis-cli", "redis-server"],
            Self::LinuxRuntimes => &["ab", "apache2", "curl", "go", "java", "node", "psql"],
        }
    }

    /// Returns whether a program of [`packages`](Self::packages) is missing on this host.
    pub fn lacks_a_program(self) -> bool {
        self.programs().iter().any(|program| !is_on_path(program))
    }

    /// Returns the reason why this host does not meet the prerequisite, or `None` if it does.
    pub fn missing(self) -> Option<Missing> {
        let missing = |reason: String, mend: String| Some(Missing { need: self, reason, mend });
        if let Some(program) = self.programs().iter().find(|program| !is_on_path(program)) {
            let mend = format!("apt-get install -y --no-install-recommends {}", self.packages().join(" "));
            return missing(format!("{program} is not installed"), mend);
        }
        if self != Self::Tap {
            return None;
        }
        // Opening the device has no effect; only an ioctl on the open file creates an interface.
        if let Err(error) = File::options().read(true).write(true).open(TUN) {
            let mend = match error.kind() {
                io::ErrorKind::NotFound => "modprobe tun (a container: start it with --device /dev/net/tun)",
                _ => "run the tests as root",
            };
            return missing(format!("TAP interfaces cannot be made: {TUN}: {error}"), mend.into());
        }
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "ip", "link", "set", "lo", "up"]).stdin(Stdio::null());
        match unshare.output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => {
                let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                missing(
                    format!("a network namespace cannot be made: {error}"),
                    "run the tests as root".into(),
                )
            }
            Err(error) => missing(format!("unshare does not start: {error}"), "run the tests as root".into()),
        }
    }
}

fn is_on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Parses the value of [`SKIP`].
///
/// # Errors
///
/// A message for the user, if a word names no prerequisite.
pub fn skips(words: &str) -> Result<BTreeSet<Need>, String> {
    let words = words.split(',').map(str::trim).filter(|word| !word.is_empty());
    words
        .map(|word| {
            Need::ALL.into_iter().find(|need| need.word() == word).ok_or_else(|| {
                let known: Vec<&str> = Need::ALL.iter().map(|need| need.word()).collect();
                format!(
                    "{SKIP} names {word:?}, which is no need of a test; the words are: {}",
                    known.join(", ")
                )
            })
        })
        .collect()
}

/// Returns the prerequisites that [`SKIP`] names in this process's environment.
///
/// # Errors
///
/// As [`skips`].
pub fn skips_of_environment() -> Result<BTreeSet<Need>, String> {
    skips(&env::var(SKIP).unwrap_or_default())
}

/// Returns whether the host meets `need`. If it returns `false`, the test is skipped and must return at once.
///
/// # Panics
///
/// If the host lacks `need` and [`SKIP`] does not name it: the test fails.
#[track_caller]
#[must_use = "a test that is skipped returns"]
pub fn need(need: Need) -> bool {
    let skips = skips_of_environment().unwrap_or_else(|error| panic!("{error}"));
    if skips.contains(&need) {
        record(need, Location::caller());
        return false;
    }
    if let Some(missing) = need.missing() {
        panic!("{missing}");
    }
    true
}

/// Appends a line for the calling test to the file that [`SKIPPED`] names.
fn record(need: Need, location: &Location<'_>) {
    let thread = thread::current();
    // libtest gives a test's thread the name of the test. With a single thread, tests run on the main thread.
    let test = thread.name().filter(|name| *name != "main").map(str::to_owned);
    let test = test.unwrap_or_else(|| format!("line {}", location.line()));
    let line = format!("{}: {test} ({})\n", location.file(), need.word());
    eprint!("skipped: {line}");
    let Some(path) = env::var_os(SKIPPED) else { return };
    let file = OpenOptions::new().append(true).create(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("{SKIPPED}={}: {error}", path.display()));
}

/// Returns the lines that skipped tests appended to the file `path`, without duplicates. Without a file there are none.
///
/// # Errors
///
/// As reading the file.
pub fn skipped_tests(path: &Path) -> io::Result<BTreeSet<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_names_a_need() {
        for need in Need::ALL {
            assert_eq!(skips(need.word()), Ok(BTreeSet::from([need])));
        }
        assert_eq!(skips(" tap,, valgrind "), Ok(BTreeSet::from([Need::Tap, Need::Valgrind])));
        assert_eq!(skips(""), Ok(BTreeSet::new()));
    }

    #[test]
    fn an_unknown_word_is_an_error_that_lists_the_known_words() {
        let error = skips("tap,tpa").unwrap_err();
        assert!(
            error.contains("\"tpa\"") && error.contains("tap, memcached, libmemcached, valgrind"),
            "{error}"
        );
    }

    /// Runs the test `name` of this test program with `environment`; returns whether it passed, and its output.
    fn run_again(name: &str, environment: &[(&str, &str)]) -> (bool, String) {
        let mut command = Command::new(env::current_exe().expect("a test program"));
        command.args(["--ignored", "--exact", name, "--nocapture"]).env_remove(SKIP).env_remove(SKIPPED);
        let output = command.envs(environment.iter().copied()).output().expect("it starts");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// Run by the tests below, each with its own environment.
    #[test]
    #[ignore = "a helper of the other tests"]
    fn needs_memcached() {
        println!("{}", if need(Need::Memcached) { "it is there" } else { "skipped" });
    }

    #[test]
    fn a_test_fails_without_its_prerequisite_and_names_the_remedy() {
        let (passed, text) = run_again("tests::needs_memcached", &[("PATH", "/nowhere")]);
        assert!(!passed, "{text}");
        assert!(text.contains("apt-get install -y --no-install-recommends memcached"), "{text}");
        assert!(text.contains("ISOLA_SKIP=memcached"), "{text}");
    }

    #[test]
    fn a_skipped_test_passes_and_is_counted_once() {
        let path = env::temp_dir().join(format!("isola-need-{}", std::process::id()));
        let file = path.to_str().expect("a path in UTF-8");
        let environment = [("PATH", "/nowhere"), (SKIP, "valgrind,memcached"), (SKIPPED, file)];
        for _ in 0..2 {
            let (passed, text) = run_again("tests::needs_memcached", &environment);
            assert!(passed && text.contains("skipped"), "{text}");
        }
        let skipped = skipped_tests(&path).expect("the file");
        fs::remove_file(&path).expect("the file is there");
        assert_eq!(
            skipped.into_iter().collect::<Vec<_>>(),
            [format!("{}: tests::needs_memcached (memcached)", file!())]
        );
    }

    #[test]
    fn an_unknown_word_fails_every_test_with_a_prerequisite() {
        let (passed, text) = run_again("tests::needs_memcached", &[(SKIP, "memcache")]);
        assert!(!passed && text.contains("\"memcache\""), "{text}");
    }
}
