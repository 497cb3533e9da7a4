//! The library OS's guarantees on every platform: runs the checks of `cell/conformance` in an application without a
//! supervisor, in cells, and in Linux processes. The crate's own tests run them as well.

use isola_tests::images;
use isola_tests::isola::Isola;
use isola_tests::qemu::{MACHINE_TYPES, Machine};
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

/// The application's image.
const NAME: &str = "conformance-image";

/// Starts an echo server on a TCP and a UDP port of this host; returns its address as cells see it.
fn peer() -> String {
    let streams = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = streams.local_addr().unwrap().port();
    let datagrams = UdpSocket::bind(("127.0.0.1", port)).unwrap();
    thread::spawn(move || {
        for mut stream in streams.incoming().flatten() {
            thread::spawn(move || {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).and_then(|_| stream.write_all(&all))
            });
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = datagrams.recv_from(&mut buffer) {
            let _ = datagrams.send_to(&buffer[..len], from);
        }
    });
    format!("10.0.2.2:{port}")
}

#[track_caller]
fn all_hold(output: &str, cores: &str) {
    assert!(output.contains(&format!(", 0 are broken, on {cores} cores")), "{output}");
    assert!(output.contains("network: ok"), "{output}");
}

#[test]
fn every_check_passes_standalone_on_1_2_and_4_cores() {
    for (kind, cores) in MACHINE_TYPES.into_iter().zip([1, 2, 4]) {
        let machine = Machine::new(kind, NAME).cores(cores).limit(Duration::from_secs(600));
        let machine = machine.argument("-netdev").argument("user,id=n0").virtio("net", ",netdev=n0");
        let outcome = machine.command_line(&format!("-- {}", peer())).run();
        all_hold(&outcome.serial, &cores.to_string());
        assert_eq!(outcome.exit_code, Some(0), "{}", outcome.serial);
    }
}

#[test]
fn every_check_passes_in_cells_of_1_and_3_cores() {
    let isola = Isola::up(&["--net", "user,host-access"]);
    let image = images::path(NAME);
    for cores in ["1", "3"] {
        let run = ["run", "--rm", "--cores", cores, image.to_str().unwrap(), &peer()];
        all_hold(&isola.run(&run).ok(), cores);
    }
}

#[test]
fn every_check_passes_in_processes_of_1_2_4_and_24_cores() {
    let isola = Isola::new();
    images::for_users();
    for cores in ["1", "2", "4", "24"] {
        let run = ["run", "--hosted", "--cores", cores, "--memory", "64M", NAME, &peer()];
        all_hold(&isola.run(&run).ok(), cores);
    }
}

#[test]
fn an_application_replaces_event_manager_timers_and_console() {
    let machine = Machine::new(MACHINE_TYPES[0], "own-ebbs").cores(2).run();
    assert_eq!(machine.exit_code, Some(0), "{}", machine.serial);
    images::for_users();
    let process = Isola::new().run(&["run", "--hosted", "--cores", "2", "own-ebbs"]).ok();
    let lines = ["core 0: events cdab", "core 0: alarms xzwy", "core 1: events cdab", "core 1: alarms xzwy"];
    for output in [machine.serial, process] {
        for (number, line) in (1..).zip(lines) {
            assert!(output.contains(&format!("{number}. {line}")), "{output}");
        }
    }
}
