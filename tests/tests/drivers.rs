//! The drivers on QEMU's devices: frames and bytes go through them both ways, and whoever sleeps is woken.
//!
//! The image `virtio-echo` sends everything back, and halts while it has nothing to do.

use isola_tests::qemu::{MACHINE_TYPES, Machine, MachineType, Outcome, Running};
use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const GUEST: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
const HOST: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Types of frames that the image knows: one goes back, one ends it.
const ECHO: [u8; 2] = [0x88, 0xb5];
const END: [u8; 2] = [0x88, 0xb6];

/// Longer than anything here takes, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The network device's properties.
const NETWORK: &str = ",netdev=n0,mac=52:54:00:12:34:56";

/// The image on a machine, with the other ends of its devices.
struct Echo {
    machine: Running,
    network: UnixDatagram,
    folder: TempDir,
}

impl Echo {
    /// Boots the image with a network device and a console that have further properties.
    fn boot(kind: MachineType, properties: &str) -> Self {
        let machine = Machine::new(kind, "virtio-echo");
        let network = format!("{NETWORK}{properties}");
        Self::boot_with(machine.virtio("net", &network).virtio("serial", properties), "virtserialport")
    }

    /// Boots the image on a machine that has both devices, with a port of that kind.
    fn boot_with(machine: Machine, port: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name).display().to_string();
        let network = UnixDatagram::bind(place("host")).unwrap();
        network.set_read_timeout(Some(PATIENCE)).unwrap();
        let netdev = format!(
            "dgram,id=n0,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            place("guest"),
            place("host")
        );
        let chardev = format!("socket,id=c0,path={},server=on,wait=off", place("console"));
        let port = format!("{port},chardev=c0");
        let ends = ["-netdev", &netdev, "-chardev", &chardev, "-device", &port];
        let mut machine = ends.into_iter().fold(machine, Machine::argument).start();
        machine.wait_for("ready: 2 devices");
        Self { machine, network, folder }
    }

    fn send(&self, frame: &[u8]) {
        self.network.send_to(frame, self.folder.path().join("guest")).unwrap();
    }

    fn receive(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let len = self.network.recv(&mut bytes).expect("the frame comes back");
        bytes.truncate(len);
        bytes
    }

    /// Sends `count` frames of all lengths, at most `window` at a time on their way, and checks each that comes
    /// back.
    fn exchange_frames(&self, count: usize, window: usize) {
        let mut sent = 0;
        for expected in 0..count {
            while sent < count && sent - expected < window {
                self.send(&frame(GUEST, HOST, sent));
                sent += 1;
            }
            assert!(self.receive() == frame(HOST, GUEST, expected), "frame {expected} came back changed");
        }
    }

    /// Exchanges frames, and bytes with the console at the same time.
    fn exchange(&self, frames: usize, bytes: usize) {
        let console = self.folder.path().join("console");
        let bytes = std::thread::spawn(move || exchange_bytes(&console, bytes, bytes));
        self.exchange_frames(frames, 16);
        bytes.join().unwrap();
    }

    /// Ends the machine.
    fn end(self) -> Outcome {
        let mut last = frame(GUEST, HOST, 0);
        last[12..14].copy_from_slice(&END);
        self.send(&last);
        let outcome = self.machine.wait();
        assert_eq!(outcome.exit_code, Some(0), "{}", outcome.serial);
        outcome
    }
}

/// Sends `len` bytes to a console, and checks that the same come back, at most `window` of them on their way.
fn exchange_bytes(console: &Path, len: usize, window: usize) {
    let mut socket = UnixStream::connect(console).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    for (nth, piece) in bytes.chunks(window).enumerate() {
        std::thread::scope(|scope| {
            // What is in the device and on both ways is less than a window can be.
            let mut writer = socket.try_clone().unwrap();
            scope.spawn(move || writer.write_all(piece).unwrap());
            let mut back = vec![0; piece.len()];
            socket.read_exact(&mut back).unwrap_or_else(|error| panic!("piece {nth}: {error}"));
            assert!(back == piece, "piece {nth} came back changed");
        });
    }
}

/// The frame of that number: its length, from the shortest to the longest there is, and its content follow
/// from it.
fn frame(to: [u8; 6], from: [u8; 6], number: usize) -> Vec<u8> {
    let len = 60 + number * 37 % 1455;
    let mut frame = [to, from].concat();
    frame.extend(ECHO);
    frame.extend((number as u32).to_be_bytes());
    frame.extend((frame.len()..len).map(|at| (at + number) as u8));
    frame
}

#[test]
fn frames_and_bytes_come_back_on_every_kind_of_machine() {
    for kind in MACHINE_TYPES {
        let echo = Echo::boot(kind, "");
        echo.exchange(3000, 1 << 20);
        let outcome = echo.end();
        assert!(outcome.serial.contains("frames: 3000"), "{kind:?}: {}", outcome.serial);
    }
}

/// QEMU drops what a `virtconsole` sends to a socket that is full: no more are on their way than fit in one.
#[test]
fn a_console_at_port_0_will_do() {
    for kind in MACHINE_TYPES {
        let machine = Machine::new(kind, "virtio-echo");
        let echo = Echo::boot_with(machine.virtio("net", NETWORK).virtio("serial", ""), "virtconsole");
        exchange_bytes(&echo.folder.path().join("console"), 1 << 18, 50_000);
        echo.end();
    }
}

#[test]
fn devices_without_event_indices_and_tables_will_do() {
    for kind in MACHINE_TYPES {
        let echo = Echo::boot(kind, ",event_idx=off,indirect_desc=off");
        echo.exchange(1000, 1 << 18);
        echo.end();
    }
}

/// One frame at a time: the image has gone to sleep whenever one comes, or is just about to.
#[test]
fn no_wake_up_is_lost() {
    for kind in MACHINE_TYPES {
        let echo = Echo::boot(kind, "");
        for number in 0..2000_usize {
            echo.send(&frame(GUEST, HOST, number));
            assert!(echo.receive() == frame(HOST, GUEST, number));
            std::thread::sleep(Duration::from_micros(number as u64 * 7 % 300));
        }
        echo.end();
    }
}

#[test]
fn frames_for_others_are_not_answered_and_arp_is() {
    let echo = Echo::boot(MachineType::Q35, "");
    echo.send(&frame([0x52, 0x54, 0, 0, 0, 1], HOST, 1));
    let mut request = [[0xff; 6], HOST].concat();
    request.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    request.extend(HOST);
    request.extend([10, 0, 2, 2, 0, 0, 0, 0, 0, 0, 10, 0, 2, 15]);
    request.resize(60, 0);
    echo.send(&request);
    let mut reply = [HOST, GUEST].concat();
    reply.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    reply.extend(GUEST);
    reply.extend([10, 0, 2, 15]);
    reply.extend(HOST);
    reply.extend([10, 0, 2, 2]);
    reply.resize(60, 0);
    assert_eq!(echo.receive(), reply);
    echo.end();
}

#[test]
fn legacy_devices_are_refused() {
    let machine = Machine::new(MachineType::Microvm, "virtio-echo");
    let arguments = ["-global", "virtio-mmio.force-legacy=true", "-netdev", "user,id=n0,restrict=on"];
    let machine = arguments.into_iter().fold(machine, Machine::argument).virtio("net", ",netdev=n0");
    let outcome = machine.run();
    assert_eq!(outcome.exit_code, Some(1), "{}", outcome.serial);
    assert!(outcome.serial.contains("a modern device: Legacy"), "{}", outcome.serial);
}
