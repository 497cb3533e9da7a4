//! The virtio drivers on QEMU's devices: frames and bytes pass in both directions, and an interrupt wakes a halted
//! core.
//!
//! The image `virtio-echo` echoes all input, and halts while there is none.

use isola_tests::qemu::{MACHINE_TYPES, Machine, MachineType, Outcome, RunningMachine};
use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const GUEST: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
const HOST: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// EtherTypes that the image handles: it echoes frames of the first, and a frame of the second ends it.
const ECHO: [u8; 2] = [0x88, 0xb5];
const END: [u8; 2] = [0x88, 0xb6];

/// The longest wait for a frame or byte.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The network device's properties.
const NETWORK: &str = ",netdev=n0,mac=52:54:00:12:34:56";

/// A machine with the image, and the host's ends of its devices.
struct Echo {
    machine: RunningMachine,
    network: UnixDatagram,
    folder: TempDir,
}

impl Echo {
    /// Boots the image with a network device and a console, both with further properties.
    fn boot(kind: MachineType, properties: &str) -> Self {
        let machine = Machine::new(kind, "virtio-echo");
        let network = format!("{NETWORK}{properties}");
        Self::boot_with(machine.virtio("net", &network).virtio("serial", properties), "virtserialport")
    }

    /// Boots the image on a machine that has both devices, with a port of type `port`.
    fn boot_with(machine: Machine, port: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name).display().to_string();
        let network = UnixDatagram::bind(path_of("host")).unwrap();
        network.set_read_timeout(Some(TIMEOUT)).unwrap();
        let netdev = format!(
            "dgram,id=n0,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            path_of("guest"),
            path_of("host")
        );
        let chardev = format!("socket,id=c0,path={},server=on,wait=off", path_of("console"));
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

    /// Sends `count` frames of varying lengths, at most `window` of them unanswered, and checks the echo of each.
    fn exchange_frames(&self, count: usize, window: usize) {
        let mut sent = 0;
        for expected in 0..count {
            while sent < count && sent - expected < window {
                self.send(&frame(GUEST, HOST, sent));
                sent += 1;
            }
            assert!(self.receive() == frame(HOST, GUEST, expected), "frame {expected} was altered");
        }
    }

    /// Exchanges frames, and at the same time bytes with the console.
    fn exchange(&self, frames: usize, bytes: usize) {
        let console = self.folder.path().join("console");
        let bytes = std::thread::spawn(move || exchange_bytes(&console, bytes, bytes));
        self.exchange_frames(frames, 16);
        bytes.join().unwrap();
    }

    /// Ends the machine, and returns its outcome.
    fn end(self) -> Outcome {
        let mut last = frame(GUEST, HOST, 0);
        last[12..14].copy_from_slice(&END);
        self.send(&last);
        let outcome = self.machine.wait();
        assert_eq!(outcome.exit_code, Some(0), "{}", outcome.serial);
        outcome
    }
}

/// Sends `len` bytes to a console in pieces of `window` bytes, and checks the echo of each piece.
fn exchange_bytes(console: &Path, len: usize, window: usize) {
    let mut socket = UnixStream::connect(console).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    for (nth, piece) in bytes.chunks(window).enumerate() {
        std::thread::scope(|scope| {
            // A full window may exceed the buffers of both directions, so a thread writes while this one reads.
            let mut writer = socket.try_clone().unwrap();
            scope.spawn(move || writer.write_all(piece).unwrap());
            let mut back = vec![0; piece.len()];
            socket.read_exact(&mut back).unwrap_or_else(|error| panic!("piece {nth}: {error}"));
            assert!(back == piece, "piece {nth} was altered");
        });
    }
}

/// Returns the frame with this number, which determines its content, and its length from 60 to 1,514 bytes.
fn frame(to: [u8; 6], from: [u8; 6], number: usize) -> Vec<u8> {
    let len = 60 + number * 37 % 1455;
    let mut frame = [to, from].concat();
    frame.extend(ECHO);
    frame.extend((number as u32).to_be_bytes());
    frame.extend((frame.len()..len).map(|at| (at + number) as u8));
    frame
}

#[test]
fn every_machine_type_echoes_frames_and_bytes() {
    for kind in MACHINE_TYPES {
        let echo = Echo::boot(kind, "");
        echo.exchange(3000, 1 << 20);
        let outcome = echo.end();
        assert!(outcome.serial.contains("frames: 3000"), "{kind:?}: {}", outcome.serial);
    }
}

/// QEMU discards output of a `virtconsole` while its socket is full: the window is smaller than the socket's buffer.
#[test]
fn a_console_at_port_0_works() {
    for kind in MACHINE_TYPES {
        let machine = Machine::new(kind, "virtio-echo");
        let echo = Echo::boot_with(machine.virtio("net", NETWORK).virtio("serial", ""), "virtconsole");
        exchange_bytes(&echo.folder.path().join("console"), 1 << 18, 50_000);
        echo.end();
    }
}

#[test]
fn devices_without_event_indices_and_indirect_descriptors_work() {
    for kind in MACHINE_TYPES {
        let echo = Echo::boot(kind, ",event_idx=off,indirect_desc=off");
        echo.exchange(1000, 1 << 18);
        echo.end();
    }
}

/// Sends one frame at a time: when it arrives, the image has halted or is about to.
#[test]
fn no_wakeup_is_lost() {
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
fn the_image_answers_arp_but_no_frame_for_another_address() {
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
fn legacy_devices_are_rejected() {
    let machine = Machine::new(MachineType::Microvm, "virtio-echo");
    let arguments = ["-global", "virtio-mmio.force-legacy=true", "-netdev", "user,id=n0,restrict=on"];
    let machine = arguments.into_iter().fold(machine, Machine::argument).virtio("net", ",netdev=n0");
    let outcome = machine.run();
    assert_eq!(outcome.exit_code, Some(1), "{}", outcome.serial);
    assert!(outcome.serial.contains("a modern device: Legacy"), "{}", outcome.serial);
}
