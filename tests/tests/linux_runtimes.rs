//! Servers and language runtimes of Debian in cells, unmodified, with their own clients: Go, Rust, node, openjdk, apache2,
//! postgresql.
//!
//! A program of `tests/programs` prints what its runtime gets from the system: it must print the same in a cell as on this
//! host. The tests run if one is asked for by name, or with `--long`, which adds the other numbers of cores, collectors, and
//! postgresql's recoveries.

use isola_need::{LONG, Need, need};
use isola_tests::isola::{Isola, Outcome};
use isola_tests::linux_root::LinuxRoot;
use isola_tests::service::published;
use isola_tests::wait;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const JAVA: &str = "/usr/lib/jvm/java-17-openjdk-amd64";
const POSTGRES: &str = "/usr/lib/postgresql/15";

fn is_long() -> bool {
    std::env::var_os(LONG).is_some()
}

/// Whether the tests run: the packages take a gigabyte, and are installed for `./isola test --long` only.
fn has_needs() -> bool {
    is_wanted() && [Need::E2fsprogs, Need::Busybox, Need::LinuxRuntimes].into_iter().all(need)
}

/// Whether the run is long, or has been asked for a test of this file by name.
fn is_wanted() -> bool {
    is_long() || std::env::args().skip(1).any(|argument| !argument.starts_with('-'))
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name)
}

/// Runs a command of this host to its end; returns its output and its exit code.
#[track_caller]
fn on_host(command: &mut Command) -> (String, Option<i32>) {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
}

/// Runs a command of this host, such as a compiler.
#[track_caller]
fn build(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a command in a cell of its own.
fn in_cell(root: &LinuxRoot, isola: &Isola, options: &[&str], command: &[&str]) -> Outcome {
    let folder = root.path("").display().to_string();
    isola.run(&[&["run", "--rm", "--rootfs", &folder], options, &["--"], command].concat())
}

/// Starts a server in a cell of the background; returns the address of its published port 80.
fn serve(root: &LinuxRoot, isola: &Isola, options: &[&str], command: &[&str]) -> SocketAddr {
    let folder = root.path("").display().to_string();
    let run = ["run", "-d", "--name", "server", "-p", "80", "--rootfs", &folder];
    published(&isola.json(&[&run[..], options, &["--"], command].concat()))
}

/// Returns the body of a page, once the server answers.
fn page(address: SocketAddr, path: &str) -> Vec<u8> {
    wait::until("the server answers", || {
        let url = format!("http://{address}/{path}");
        let output = Command::new("curl").args(["-sSf", "-m", "20", &url]).output().unwrap();
        output.status.success().then_some(output.stdout)
    })
}

/// Loads a page by `ab`, and verifies that all answers were right.
#[track_caller]
fn load(address: SocketAddr, path: &str, options: &[&str]) {
    let url = format!("http://{address}/{path}");
    let (text, code) = on_host(Command::new("ab").args(["-q", "-s", "60"]).args(options).arg(&url));
    assert_eq!(code, Some(0), "{text}");
    let count = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
        line.trim().parse::<u32>().unwrap()
    };
    let wanted = options.iter().skip_while(|option| **option != "-n").nth(1).unwrap().parse().unwrap();
    let found = (count("Complete requests:"), count("Failed requests:"), count("Non-2xx responses:"));
    assert_eq!(found, (wanted, 0, 0), "{text}");
}

/// Verifies that a command does in a cell what it did on this host.
#[track_caller]
fn compare(outcome: &Outcome, expected: &(String, Option<i32>), what: &str) {
    let is_note = |line: &&str| !line.starts_with("watchdog: ") && !line.starts_with("linux: process");
    let shown: String = outcome.out.lines().filter(is_note).map(|line| format!("{line}\n")).collect();
    assert_eq!((shown.as_str(), outcome.code), (expected.0.as_str(), expected.1), "{what}: {outcome:?}");
}

#[test]
fn a_static_go_program_runs_and_serves_files() {
    if !has_needs() {
        return;
    }
    let root = LinuxRoot::new();
    let program = root.path("bin/runtime");
    let mut go = Command::new("go");
    build(go.env("CGO_ENABLED", "0").arg("build").arg("-o").args([&program, &source("runtime.go")]));
    let expected = on_host(&mut Command::new(&program));
    assert_eq!(expected.1, Some(7), "{}", expected.0);
    let contents = vec![b'g'; 300_000];
    fs::create_dir(root.path("srv")).unwrap();
    fs::write(root.path("srv/file"), &contents).unwrap();
    let isola = Isola::up(&["--cores", "3", "--memory", "1G"]);
    for cores in if is_long() { &["1", "2"][..] } else { &["2"] } {
        let options = ["--cores", cores, "--memory", "256M", "--network", "none"];
        compare(&in_cell(&root, &isola, &options, &["runtime"]), &expected, cores);
    }
    let address = serve(&root, &isola, &["--cores", "2", "--memory", "256M"], &["runtime", "/srv"]);
    assert!(page(address, "file") == contents);
    load(address, "file", &["-n", "100", "-c", "8", "-k"]);
    let stopped = isola.json(&["stop", "server"]);
    assert_eq!(stopped[0]["exit_code"], 5, "{stopped:#}");
    assert!(isola.run(&["logs", "server"]).ok().contains("serving\nstopping\nhttp: Server closed\n"));
}

#[test]
fn a_static_rust_program_serves_files() {
    if !has_needs() {
        return;
    }
    let root = LinuxRoot::new();
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "-O", "-C", "target-feature=+crt-static", "-o"]);
    build(rustc.args([root.path("bin/static_server"), source("static_server.rs")]));
    let contents: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    fs::create_dir(root.path("srv")).unwrap();
    fs::write(root.path("srv/file"), &contents).unwrap();
    let isola = Isola::up(&["--cores", "3"]);
    let address = serve(&root, &isola, &["--cores", "2"], &["static_server", "/srv"]);
    assert!(page(address, "file") == contents);
    load(address, "file", &["-n", "40", "-c", "8"]);
    let _ = on_host(Command::new("curl").args(["-s", "-m", "20", &format!("http://{address}/stop")]));
    assert_eq!(isola.wait_for_end("server")["exit_code"], 3);
    let log = isola.run(&["logs", "server"]).ok();
    assert!(log.contains("serving true\n") && log.contains("answers: 41\n"), "{log}");
}

#[test]
fn node_does_in_a_cell_what_it_does_on_linux() {
    if !has_needs() {
        return;
    }
    let root = LinuxRoot::new();
    root.copy_program("/usr/bin/node");
    // Debian's node has some of its own modules in files.
    if Path::new("/usr/share/nodejs").exists() {
        root.copy_folder("/usr/share/nodejs");
    }
    fs::copy(source("runtime.js"), root.path("tmp/runtime.js")).unwrap();
    let expected = on_host(Command::new("/usr/bin/node").arg(source("runtime.js")));
    assert_eq!(expected.1, Some(6), "{}", expected.0);
    let isola = Isola::up(&["--cores", "3", "--memory", "2G"]);
    for cores in if is_long() { &["1", "2"][..] } else { &["2"] } {
        let options = ["--cores", cores, "--memory", "512M"];
        let outcome = in_cell(&root, &isola, &options, &["/usr/bin/node", "/tmp/runtime.js"]);
        compare(&outcome, &expected, cores);
    }
}

#[test]
fn a_java_machine_does_in_a_cell_what_it_does_on_linux() {
    if !has_needs() {
        return;
    }
    let root = LinuxRoot::new();
    let at = |name: &str| format!("{JAVA}/{name}");
    for folder in [&at("lib"), &at("conf"), "/etc/java-17-openjdk"] {
        root.copy_folder(folder);
    }
    let libraries =
        ["server/libjvm", "libjava", "libjli", "libjimage", "libnet", "libnio", "libverify", "libzip"];
    for name in libraries.map(|name| format!("lib/{name}.so")).iter().map(String::as_str).chain(["bin/java"])
    {
        root.copy_program(&at(name));
    }
    let java = at("bin/java");
    let classes = root.path("tmp").display().to_string();
    let mut compiler = Command::new(&java);
    compiler.args(["-m", "jdk.compiler/com.sun.tools.javac.Main", "-d", &classes]);
    build(compiler.arg(source("Machine.java")));
    let expected = on_host(Command::new(&java).args(["-Xmx64m", "-cp", &classes, "Machine"]));
    assert_eq!(expected.1, Some(8), "{}", expected.0);
    let isola = Isola::up(&["--cores", "3", "--memory", "2G"]);
    let all = [
        ("2", "-XX:+UseG1GC"),
        ("1", "-XX:+UseSerialGC"),
        ("2", "-XX:+UseZGC"),
        ("2", "-XX:+UseParallelGC"),
        ("2", "-XX:+UseShenandoahGC"),
        ("2", "-Xint"),
    ];
    for (cores, option) in &all[..if is_long() { all.len() } else { 1 }] {
        let options = ["--cores", cores, "--memory", "512M"];
        let outcome = in_cell(&root, &isola, &options, &[&java, "-Xmx64m", option, "-cp", "/tmp", "Machine"]);
        compare(&outcome, &expected, option);
    }
}

/// The configuration of apache2, but for its modules of processes and threads.
const APACHE: &str = "
ServerRoot /tmp
PidFile /tmp/pid
Listen 80
ServerName localhost
User www-data
Group www-data
ErrorLog /tmp/error.log
StartServers 2
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule mime_module /usr/lib/apache2/modules/mod_mime.so
LoadModule dir_module /usr/lib/apache2/modules/mod_dir.so
LoadModule alias_module /usr/lib/apache2/modules/mod_alias.so
LoadModule deflate_module /usr/lib/apache2/modules/mod_deflate.so
LoadModule filter_module /usr/lib/apache2/modules/mod_filter.so
LoadModule status_module /usr/lib/apache2/modules/mod_status.so
LoadModule reqtimeout_module /usr/lib/apache2/modules/mod_reqtimeout.so
TypesConfig /etc/mime.types
DocumentRoot /srv
ScriptAlias /cgi/ /usr/lib/cgi/
<Location /status>
SetHandler server-status
</Location>
";

#[test]
fn apache_serves_files_and_scripts_by_all_of_its_process_models() {
    if !has_needs() {
        return;
    }
    let root = LinuxRoot::new();
    root.copy_program("/usr/sbin/apache2");
    // The C library loads it when a thread ends.
    root.copy("/lib/x86_64-linux-gnu/libgcc_s.so.1");
    for module in
        ["authz_core", "mime", "dir", "alias", "deflate", "filter", "status", "reqtimeout", "cgi", "cgid"]
            .iter()
            .chain(&["mpm_event", "mpm_prefork", "mpm_worker"])
    {
        root.copy_program(&format!("/usr/lib/apache2/modules/mod_{module}.so"));
    }
    for folder in ["srv", "usr/lib/cgi"] {
        fs::create_dir_all(root.path(folder)).unwrap();
    }
    fs::write(root.path("etc/passwd"), "root:x:0:0::/root:/bin/sh\nwww-data:x:33:33::/srv:/bin/sh\n")
        .unwrap();
    fs::write(root.path("etc/group"), "root:x:0:\nwww-data:x:33:\n").unwrap();
    fs::write(root.path("etc/mime.types"), "text/html html\n").unwrap();
    fs::write(root.path("srv/index.html"), "<p>a page</p>\n".repeat(40)).unwrap();
    let contents: Vec<u8> = (0..2_000_000_u32).map(|number| (number % 253) as u8).collect();
    fs::write(root.path("srv/big"), &contents).unwrap();
    let script = root.path("usr/lib/cgi/script");
    fs::write(&script, "#!/bin/sh\necho Content-type: text/plain; echo; echo $QUERY_STRING by $(id -u)\n")
        .unwrap();
    build(Command::new("chmod").arg("755").arg(&script));
    symlink("busybox", root.path("bin/id")).unwrap();
    let isola = Isola::up(&["--cores", "3", "--memory", "1G"]);
    for (model, scripts) in [("event", "cgid"), ("prefork", "cgi"), ("worker", "cgid")] {
        let modules: String = [format!("mpm_{model}"), scripts.into()]
            .iter()
            .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"))
            .collect();
        let sock = if scripts == "cgid" { "ScriptSock /tmp/cgi\n" } else { "" };
        fs::write(root.path("etc/apache.conf"), format!("{modules}{APACHE}{sock}")).unwrap();
        let command = ["/usr/sbin/apache2", "-DFOREGROUND", "-f", "/etc/apache.conf"];
        let address = serve(&root, &isola, &["--cores", "2", "--memory", "256M"], &command);
        assert_eq!(page(address, ""), "<p>a page</p>\n".repeat(40).as_bytes(), "{model}");
        assert!(page(address, "big") == contents, "{model}");
        assert_eq!(page(address, "cgi/script?hello"), b"hello by 33\n", "{model}");
        let rounds = if is_long() { "2000" } else { "100" };
        load(address, "", &["-n", rounds, "-c", "16", "-k"]);
        load(address, "", &["-n", "50", "-c", "8"]);
        let status = String::from_utf8(page(address, "status?auto")).unwrap();
        assert!(status.contains(&format!("ServerMPM: {model}\n")), "{status}");
        // A graceful restart replaces the processes, and the server keeps its port.
        isola.run(&["exec", "server", "--", "sh", "-c", "kill -USR1 1"]).ok();
        wait::until_true("the restart", || {
            String::from_utf8_lossy(&page(address, "status?auto"))
                .contains("ParentServerConfigGeneration: 2\n")
        });
        let stopped = isola.json(&["stop", "server"]);
        assert_eq!(stopped[0]["exit_code"], 0, "{model}: {stopped:#}");
        isola.run(&["rm", "server"]).ok();
    }
}

/// What every script of postgresql begins with.
const POSTGRES_START: &str = "B=/usr/lib/postgresql/15/bin; D=/data/pg; P=\"$B/psql -h /tmp -qAt postgres\"
export LC_ALL=C TZ=UTC
start() { $B/pg_ctl -D $D -w -t 300 -l /tmp/log -o '-k /tmp' start > /dev/null; }
";

const POSTGRES_FIRST: &str = "set -e; $B/initdb -D $D -A trust > /tmp/initdb.log 2>&1; start
exec 2>&1
$P <<S
create table t(a int primary key, b text, c float);
insert into t select n, 'row ' || n % 37, n / 3.0 from generate_series(1, 5000) n;
create index on t(b);
select count(*), sum(a), count(distinct b) from t;
set max_parallel_workers_per_gather = 2; set parallel_setup_cost = 0; set parallel_tuple_cost = 0;
set min_parallel_table_scan_size = 0; set force_parallel_mode = on;
select sum(a) from t where c > 3;
begin; delete from t; rollback; select count(*) from t;
checkpoint; select a / 0 from t;
create function f(n int) returns int language plpgsql as 'begin return n * 2; end'; select f(21);
S
$B/pgbench -h /tmp -i -q postgres > /dev/null 2>&1
$B/pgbench -h /tmp -c 4 -j 2 -t 10 postgres 2> /dev/null | grep processed
$B/pg_ctl -D $D -m fast stop > /dev/null; grep -c 'could not' /tmp/log || true; tail -1 /tmp/log | sed 's/.*LOG/LOG/'
";

const POSTGRES_AGAIN: &str = "start
$P -c 'select count(*), sum(a) from t' -c 'select count(*) from pgbench_history'
$P -c \"insert into t select max(a) + 1, 'late', 0 from t\"
";

/// A backend is killed: the server recovers. Then the server itself.
const POSTGRES_KILLS: &str = "$P -c 'select pg_sleep(100)' > /dev/null 2>&1 & sleep 1
kill -9 $($P -c \"select pid from pg_stat_activity where query like '%sleep(100)%' and pid <> pg_backend_pid()\")
until $P -c \"select 'recovered'\" 2> /dev/null; do sleep 0.2; done
$B/pgbench -h /tmp -c 8 -j 2 -t 100 postgres 2> /dev/null | grep processed
kill -9 $(head -1 $D/postmaster.pid)
";

#[test]
fn postgresql_keeps_its_data_on_a_volume() {
    if !has_needs() {
        return;
    }
    let root = LinuxRoot::new();
    for folder in [POSTGRES, "/usr/share/postgresql/15", "/usr/share/zoneinfo/Etc"] {
        root.copy_folder(folder);
    }
    for folder in ["bin", "lib"] {
        for entry in fs::read_dir(format!("{POSTGRES}/{folder}")).unwrap() {
            let path = entry.unwrap().path();
            let is_program = folder == "bin" || path.extension().is_some_and(|extension| extension == "so");
            // The compiler of queries has libraries of more than 100 MB, and is not needed.
            if path.ends_with("llvmjit.so") {
                fs::remove_file(root.path(path.display().to_string().trim_start_matches('/'))).unwrap();
            } else if is_program {
                root.copy_program(&path.display().to_string());
            }
        }
    }
    root.copy("/usr/share/zoneinfo/UTC");
    for applet in ["su", "chown", "tail", "head", "sed"] {
        symlink("busybox", root.path("bin").join(applet)).unwrap();
    }
    fs::write(root.path("etc/passwd"), "root:x:0:0::/root:/bin/sh\npostgres:x:101:104::/tmp:/bin/sh\n")
        .unwrap();
    fs::write(root.path("etc/group"), "root:x:0:\npostgres:x:104:\n").unwrap();
    let isola = Isola::up(&["--cores", "3", "--memory", "2G"]);
    isola.run(&["volume", "create", "data", "--size", "300M"]).ok();
    let run = |script: &str, expected: &str| {
        fs::write(root.path("tmp/script"), format!("{POSTGRES_START}{script}")).unwrap();
        let options = ["--cores", "2", "--memory", "512M", "-v", "data:/data"];
        let command = "chown postgres /data; exec su postgres -c 'sh /tmp/script'";
        let outcome = in_cell(&root, &isola, &options, &["/bin/sh", "-c", command]);
        compare(&outcome, &(expected.into(), Some(0)), script);
    };
    run(
        POSTGRES_FIRST,
        "5000|12502500|37\n12502455\n5000\nERROR:  division by zero\n42\n\
         number of transactions actually processed: 40/40\n0\nLOG:  database system is shut down\n",
    );
    let stop = "$B/pg_ctl -D $D -m fast stop > /dev/null";
    run(&format!("{POSTGRES_AGAIN}{stop}"), "5000|12502500\n40\n");
    if is_long() {
        let processed = "number of transactions actually processed: 800/800\n";
        run(
            &format!("{POSTGRES_AGAIN}{POSTGRES_KILLS}"),
            &format!("5001|12507501\n40\nrecovered\n{processed}"),
        );
        // The cell has ended with the server, without a shutdown of either.
        run(&format!("{POSTGRES_AGAIN}{stop}"), "5002|12512503\n840\n");
    }
}
