//! Isolation on a machine's network: of cells from each other, and of the host's services from cells.

use isola_tests::isola::Isola;
use isola_tests::{images, ports, wait};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Sends `request` to a key-value service, and returns the answer up to the line `end`.
fn ask(port: u16, request: &str, end: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut reader = BufReader::new(stream);
    let mut all = String::new();
    while !all.ends_with(end) {
        (reader.read_line(&mut all).ok()? > 0).then_some(())?;
    }
    Some(all)
}

/// Waits until a cell's log contains `words`, and returns the log.
fn printed(isola: &Isola, cell: &str, words: &str) -> String {
    wait::until(words, || Some(isola.run(&["logs", cell]).out).filter(|log| log.contains(words)))
}

fn run_intruder(isola: &Isola, arguments: &[&str]) {
    let image = images::path("intruder");
    let image = image.to_str().unwrap();
    let named = |word: &&str| if *word == "IMAGE" { image.to_owned() } else { (*word).to_owned() };
    let arguments: Vec<String> = ["run", "-d"].iter().chain(arguments).map(named).collect();
    isola.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).ended_with(0);
}

/// Returns the path of a QEMU in `folder` with these variables, whose connections begin late or, with `REFUSED`, fail.
fn qemu_with_interposed_connect(folder: &Path, variables: &str) -> PathBuf {
    let (library, wrapper) = (folder.join("connect.so"), folder.join("qemu"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/interposed_connect.c");
    let mut compiler = Command::new("gcc");
    let outcome = compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl").status();
    assert!(outcome.unwrap().success());
    let library = library.display();
    let script = format!("#!/bin/sh\n{variables} LD_PRELOAD={library} exec qemu-system-x86_64 \"$@\"\n");
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    wrapper
}

#[test]
fn a_machine_has_its_network_if_qemu_connects_to_the_switch_after_it_has_detached_itself() {
    let folder = tempfile::tempdir().unwrap();
    let qemu = qemu_with_interposed_connect(folder.path(), "");
    let isola = Isola::new();
    isola.run_with(&["up", "--accel", "tcg", "--cores", "2"], &[("ISOLA_QEMU", &qemu)]).ended_with(0);
    let port = ports::free();
    isola.run(&["run", "-d", "-p", &format!("{port}:11211"), "kv"]).ended_with(0);
    wait::until("an answer", || ask(port, "get key\r\n", "END\r\n"));
}

#[test]
fn a_machine_whose_qemu_does_not_connect_to_the_switch_does_not_come_up() {
    let folder = tempfile::tempdir().unwrap();
    let qemu = qemu_with_interposed_connect(folder.path(), "REFUSED=1");
    let isola = Isola::new();
    let up = isola.run_with(&["up", "--accel", "tcg", "--cores", "2"], &[("ISOLA_QEMU", &qemu)]);
    let message = up.failed(1, "network devices were not connected to the machine's switch");
    assert!(message.contains("QEMU has not connected"), "{message}");
}

#[test]
fn an_address_that_another_cell_claims_stays_with_its_owner() {
    let isola = Isola::up(&["--cores", "3"]);
    let port = ports::free();
    isola.run(&["run", "-d", "--name", "cache", "-p", &format!("{port}:11211"), "kv"]).ended_with(0);
    let stored = || ask(port, "set key 0 0 6\r\nsecret\r\n", "STORED\r\n");
    wait::until("the value is stored", stored);
    let own = isola.json(&["inspect", "cache"])["address"].as_str().unwrap().to_owned();
    // A cell with an assigned address cannot claim another one through the documented interface.
    run_intruder(&isola, &["--name", "given", "IMAGE", "take", &own, "11211"]);
    printed(&isola, "given", "refused: the cell was given the address");
    isola.run(&["rm", "-f", "given"]).ended_with(0);
    // A cell that configures itself can claim the address.
    run_intruder(&isola, &["--name", "thief", "--network", "dhcp", "IMAGE", "take", &own, "11211"]);
    printed(&isola, "thief", "took: ");
    for _ in 0..5 {
        let answer = wait::until("an answer", || ask(port, "get key\r\n", "END\r\n"));
        assert_eq!(answer, "VALUE key 0 6\r\nsecret\r\nEND\r\n");
    }
    assert!(!isola.run(&["logs", "thief"]).out.contains("a client connected"));
    let refused = |cell: &str| isola.json(&["inspect", cell])["switch"]["foreign_address"].as_u64().unwrap();
    assert!(refused("thief") > 0);
    assert_eq!(refused("cache"), 0);
    assert!(isola.run(&["inspect", "thief"]).out.contains("dropped: the source address is not the cell's"));
    // After a restart of the owner, on either device, the address is still the owner's.
    isola.run(&["stop", "cache"]).ended_with(0);
    isola.run(&["start", "cache"]).ended_with(0);
    wait::until("the value is stored again", stored);
    isola.run(&["down"]).ended_with(0);
}

/// Runs a command of QEMU's monitor.
fn monitor(machine: &Path, command: &str) {
    let mut stream = UnixStream::connect(machine.join("qmp.sock")).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let execute = serde_json::json!({
        "execute": "human-monitor-command", "arguments": { "command-line": command }
    });
    for request in [serde_json::json!({ "execute": "qmp_capabilities" }), execute] {
        writeln!(stream, "{request}").unwrap();
        loop {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).unwrap() > 0);
            let answer: Value = serde_json::from_str(&line).unwrap();
            assert!(answer.get("error").is_none(), "{command}: {answer}");
            if let Some(output) = answer.get("return") {
                assert!(output == "" || !output.is_string(), "{command}: {output}");
                break;
            }
        }
    }
}

#[test]
fn a_device_sees_no_unicast_frame_of_another() {
    let isola = Isola::up(&["--cores", "3", "--nics", "2"]);
    let port = ports::free();
    isola.run(&["run", "-d", "--name", "cache", "-p", &format!("{port}:11211"), "kv"]).ended_with(0);
    // The other device belongs to no cell, so it receives only frames that the switch sends to its port. QEMU dumps
    // frames at the device's back end, before the device's own filter: the frames that a promiscuous driver would see.
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("dump");
    for device in ["n1", "n2"] {
        let file = dump.with_extension(device);
        monitor(
            &isola.machine_folder("default"),
            &format!("object_add filter-dump,id=dump-{device},netdev={device},file={}", file.display()),
        );
    }
    let request = "set key 0 0 28\r\nplain-to-the-neighbours-eyes\r\n";
    wait::until("the value is stored", || ask(port, request, "STORED\r\n"));
    isola.run(&["down"]).ended_with(0);
    let holds = |device: &str| {
        let bytes = fs::read(dump.with_extension(device)).unwrap();
        bytes.windows(28).any(|words| words == b"plain-to-the-neighbours-eyes")
    };
    let (first, second) = (holds("n1"), holds("n2"));
    assert!(first != second, "only one device received it: n1 {first}, n2 {second}");
}

/// Starts a service on the host's loopback address; the thread returns the number of its connections.
fn host_service() -> (u16, thread::JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let count = thread::spawn(move || {
        let mut count = 0;
        for stream in listener.incoming() {
            let mut word = Vec::new();
            let mut stream = stream.unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let _ = stream.read_to_end(&mut word);
            if word == b"enough" {
                return count;
            }
            count += 1;
        }
        count
    });
    (port, count)
}

/// Tries to reach a service of the host from a cell of a machine with this network; returns the cell's output, and the
/// number of connections to the service. Published TCP and UDP ports must work meanwhile.
fn reach_host(network: &[&str]) -> (String, usize) {
    let (service, count) = host_service();
    let isola = Isola::up(&[&["--cores", "4"], network].concat());
    let (tcp, udp) = (ports::free(), ports::free());
    isola.run(&["run", "-d", "--name", "kv", "-p", &format!("{tcp}:11211"), "kv"]).ended_with(0);
    isola.run(&["run", "-d", "--name", "primes", "-p", &format!("{udp}:7000/udp"), "primes"]).ended_with(0);
    run_intruder(&isola, &["--name", "caller", "IMAGE", "call", "10.0.2.2", &service.to_string()]);
    wait::until("a published TCP port answers", || ask(tcp, "version\r\n", "\r\n"));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let answer = wait::until("a published UDP port answers", || {
        client.send_to(b"100", ("127.0.0.1", udp)).ok()?;
        let mut bytes = [0; 100];
        let len = client.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
    });
    assert!(answer.contains("25"), "{answer}");
    let output = printed(&isola, "caller", "called: ");
    isola.run(&["down"]).ended_with(0);
    TcpStream::connect(("127.0.0.1", service)).unwrap().write_all(b"enough").unwrap();
    (output, count.join().unwrap())
}

#[test]
fn cells_cannot_reach_the_host_s_services() {
    let (output, connections) = reach_host(&[]);
    assert!(output.contains("not called: "), "{output}");
    assert_eq!(connections, 0);
}

#[test]
fn cells_reach_the_host_s_services_with_host_access() {
    let (output, connections) = reach_host(&["--net", "user,host-access"]);
    assert!(!output.contains("not called: "), "{output}");
    assert_eq!(connections, 1);
}

#[test]
fn the_switch_ends_with_its_machine() {
    let isola = Isola::new();
    for end in ["down", "kill"] {
        isola.run(&["up", "--accel", "tcg", "--cores", "2"]).ended_with(0);
        let machine = isola.machine_folder("default");
        let switch = || {
            let processes = fs::read_dir("/proc").unwrap().flatten();
            let mut of_machine = processes.filter(|process| {
                fs::read_link(process.path().join("cwd")).is_ok_and(|folder| folder == machine)
                    && fs::read(process.path().join("cmdline"))
                        .is_ok_and(|line| line.starts_with(b"isola\0switch"))
            });
            of_machine.next().is_some()
        };
        assert!(switch());
        if end == "down" {
            isola.run(&["down"]).ended_with(0);
        } else {
            let pid = fs::read_to_string(machine.join("qemu.pid")).unwrap();
            assert!(
                std::process::Command::new("kill").args(["-KILL", pid.trim()]).status().unwrap().success()
            );
        }
        wait::until_true("the switch has ended", || !switch());
    }
    isola.run(&["ps"]).ended_with(0);
}
