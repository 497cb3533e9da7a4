//! Rights and programs of the host that some tests need.
//!
//! A test calls [`need`] before anything else. Where the host lacks the need, the test fails, and the message names the
//! command that mends the host. `ISOLA_SKIP=tap,valgrind` skips the tests of these needs instead, on any host.
//!
//! libtest cannot report at run time that a test was skipped: a skipped test returns and counts as passed. So [`need`]
//! appends a line to the file that `ISOLA_SKIPPED` names; `cargo xtask test` sets the variable, reads the file with
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

/// Names the needs whose tests are skipped, separated by commas.
pub const SKIP: &str = "ISOLA_SKIP";
/// Names the file to which skipped tests append a line each.
pub const SKIPPED: &str = "ISOLA_SKIPPED";
/// Tests that can take a long time do so where this variable is set.
pub const LONG: &str = "ISOLA_LONG";

/// The device of TAP interfaces.
const TUN: &str = "/dev/net/tun";

/// A right or a program of the host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Need {
    /// A network namespace with TAP interfaces.
    Tap,
    /// The server that the key-value server is compared with.
    Memcached,
    /// The client tools of libmemcached.
    Libmemcached,
    /// The emulator that finds wrong accesses to memory.
    Valgrind,
    /// HTTP clients: programs for load, languages' libraries, a browser.
    HttpClients,
    /// Servers of IPv4 and IPv6 addresses.
    AddressServers,
}

/// A host without a [`Need`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// The need.
    pub need: Need,
    /// The reason, as a sentence without a full stop.
    pub reason: String,
    /// The command that mends the host.
    pub mend: String,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = self.need.word();
        write!(f, "{}; to mend it: {}; to skip the tests that need it: {SKIP}={word}", self.reason, self.mend)
    }
}

impl Need {
    /// All needs.
    pub const ALL: [Self; 6] = [
        Self::Tap,
        Self::Memcached,
        Self::Libmemcached,
        Self::Valgrind,
        Self::HttpClients,
        Self::AddressServers,
    ];

    /// Returns the need's name in [`SKIP`].
    pub fn word(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::Memcached => "memcached",
            Self::Libmemcached => "libmemcached",
            Self::Valgrind => "valgrind",
            Self::HttpClients => "http-clients",
            Self::AddressServers => "address-servers",
        }
    }

    /// Returns the tests that need it, in a few words.
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
        }
    }

    /// Returns the Debian packages that have the programs.
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
        }
    }

    /// Whether a program of [`packages`](Self::packages) is missing on this host.
    pub fn lacks_a_program(self) -> bool {
        self.programs().iter().any(|program| !is_on_path(program))
    }

    /// Returns the reason why this host does not meet the need; `None` where it does.
    pub fn missing(self) -> Option<Missing> {
        let missing = |reason: String, mend: String| Some(Missing { need: self, reason, mend });
        if let Some(program) = self.programs().iter().find(|program| !is_on_path(program)) {
            let mend = format!("apt-get install -y --no-install-recommends {}", self.packages().join(" "));
            return missing(format!("{program} is not installed"), mend);
        }
        if self != Self::Tap {
            return None;
        }
        // Opened without effect: an interface is made by a request on the open file.
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

/// Reads the words of [`SKIP`].
///
/// # Errors
///
/// The message for the user where a word names no need.
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

/// Returns the needs that [`SKIP`] names in this process's environment.
///
/// # Errors
///
/// As [`skips`].
pub fn skips_of_environment() -> Result<BTreeSet<Need>, String> {
    skips(&env::var(SKIP).unwrap_or_default())
}

/// Returns whether the calling test can use `need`, and whether it is to return at once otherwise.
///
/// # Panics
///
/// Where the host lacks `need` and [`SKIP`] does not name it: the test fails.
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

/// Appends the line of the calling test to the file of [`SKIPPED`].
fn record(need: Need, location: &Location<'_>) {
    let thread = thread::current();
    // libtest names a test's thread as the test, except with one thread, where tests run on the main thread.
    let test = thread.name().filter(|name| *name != "main").map(str::to_owned);
    let test = test.unwrap_or_else(|| format!("line {}", location.line()));
    let line = format!("{}: {test} ({})\n", location.file(), need.word());
    eprint!("skipped: {line}");
    let Some(path) = env::var_os(SKIPPED) else { return };
    let file = OpenOptions::new().append(true).create(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("{SKIPPED}={}: {error}", path.display()));
}

/// Returns the tests that appended a line to the file `path`, each once; none where there is no file.
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
    fn a_word_that_names_no_need_is_an_error_with_the_words_to_use() {
        let error = skips("tap,tpa").unwrap_err();
        assert!(
            error.contains("\"tpa\"") && error.contains("tap, memcached, libmemcached, valgrind"),
            "{error}"
        );
    }

    /// Runs this test program's test `name` with `environment`; returns whether it passed, and its output.
    fn run_again(name: &str, environment: &[(&str, &str)]) -> (bool, String) {
        let mut command = Command::new(env::current_exe().expect("a test program"));
        command.args(["--ignored", "--exact", name, "--nocapture"]).env_remove(SKIP).env_remove(SKIPPED);
        let output = command.envs(environment.iter().copied()).output().expect("it starts");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// Run by the tests below in an environment of theirs.
    #[test]
    #[ignore = "a helper of the other tests"]
    fn needs_memcached() {
        println!("{}", if need(Need::Memcached) { "it is there" } else { "left out" });
    }

    #[test]
    fn a_test_fails_where_its_need_is_missing_and_names_the_mend() {
        let (passed, text) = run_again("tests::needs_memcached", &[("PATH", "/nowhere")]);
        assert!(!passed, "{text}");
        assert!(text.contains("apt-get install -y --no-install-recommends memcached"), "{text}");
        assert!(text.contains("ISOLA_SKIP=memcached"), "{text}");
    }

    #[test]
    fn a_test_is_skipped_by_the_word_alone_and_counted() {
        let path = env::temp_dir().join(format!("isola-need-{}", std::process::id()));
        let file = path.to_str().expect("a path in UTF-8");
        let environment = [("PATH", "/nowhere"), (SKIP, "valgrind,memcached"), (SKIPPED, file)];
        for _ in 0..2 {
            let (passed, text) = run_again("tests::needs_memcached", &environment);
            assert!(passed && text.contains("left out"), "{text}");
        }
        let skipped = skipped_tests(&path).expect("the file");
        fs::remove_file(&path).expect("the file is there");
        assert_eq!(
            skipped.into_iter().collect::<Vec<_>>(),
            [format!("{}: tests::needs_memcached (memcached)", file!())]
        );
    }

    #[test]
    fn a_wrong_word_fails_every_test_that_has_a_need() {
        let (passed, text) = run_again("tests::needs_memcached", &[(SKIP, "memcache")]);
        assert!(!passed && text.contains("\"memcache\""), "{text}");
    }
}
