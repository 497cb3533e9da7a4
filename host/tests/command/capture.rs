//! Captures of frames: output, files, and lost frames.

use crate::sandbox::{Outcome, Sandbox, signal};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use std::fs;

fn running() -> Sandbox {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    sandbox
}

/// Returns the timestamps (relative to a base), lengths and drop counts of the packets in a file.
fn packets(bytes: &[u8]) -> Vec<(u128, usize, u64)> {
    let mut reader = PcapNgReader::new(bytes).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap().0 {
            let dropped = packet.options.iter().map(|option| match option {
                EnhancedPacketOption::DropCount(count) => *count,
                _ => 0,
            });
            let ns = packet.timestamp.as_nanos() - 1_800_000_000_000_000_000;
            packets.push((ns, packet.data.len(), dropped.sum()));
        }
    }
    packets
}

#[test]
fn frames_are_printed_one_per_line_and_lost_ones_are_counted() {
    let sandbox = running();
    let outcome = sandbox.isola(&["capture", "kv", "--count", "4"]);
    assert!(outcome.err.contains("4 frames captured, 1 lost for lack of room"), "{outcome:?}");
    let lines = outcome.ok();
    assert_eq!(lines.lines().count(), 4, "{lines}");
    assert!(
        lines.lines().nth(1).unwrap().contains("out ARP who has 10.0.2.2? tell 10.0.2.2, 42 bytes"),
        "{lines}"
    );
    let json = sandbox.isola(&["capture", "kv", "--count", "2", "-o", "json"]).ok();
    let last: serde_json::Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    assert_eq!((&last["direction"], &last["bytes"]), (&"out".into(), &42.into()));
}

#[test]
fn an_interrupted_capture_leaves_a_valid_file() {
    let sandbox = running();
    let path = sandbox.state().join("kv.pcapng");
    let capture = sandbox.spawn(&["capture", "kv", "--snaplen", "20", "-w", path.to_str().unwrap()]);
    sandbox.wait("frames are written", || fs::read(&path).is_ok_and(|bytes| bytes.len() > 300));
    signal("INT", capture.id());
    let outcome = Outcome::from(capture.wait_with_output().unwrap());
    assert!(outcome.err.contains("4 frames captured"), "{outcome:?}");
    assert_eq!(outcome.ok(), "");
    let packets = packets(&fs::read(&path).unwrap());
    let [first, rest @ ..] = &packets[..] else { panic!("no packets") };
    assert_eq!((first.0, first.1), (1, 20));
    assert_eq!(rest.len(), 3);
    assert_eq!(packets.iter().map(|packet| packet.2).sum::<u64>(), 1, "the file has the drop count");
}

#[test]
fn a_capture_into_a_pipe_ends_without_an_error_when_the_pipe_closes() {
    let sandbox = running();
    let capture = sandbox.spawn(&["capture", "kv", "-w", "-", "--duration", "1"]);
    let output = capture.wait_with_output().unwrap();
    assert_eq!(packets(&output.stdout).len(), 4);
    let mut deaf = sandbox.spawn(&["capture", "kv", "-w", "-"]);
    drop(deaf.stdout.take());
    let outcome = Outcome::from(deaf.wait_with_output().unwrap());
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(!outcome.err.contains("error"), "{outcome:?}");
}

#[test]
fn impossible_captures_fail_with_advice() {
    let sandbox = running();
    sandbox.isola(&["capture", "kw"]).failed(1, "see `isola ps`");
    sandbox
        .isola(&["capture", "kv", "--count", "1", "-w", "/nonexistent/file"])
        .failed(1, "cannot be written");
    sandbox.isola(&["capture", "kv", "--snaplen", "1"]).failed(2, "14");
    sandbox.isola(&["stop", "kv"]).ok();
    sandbox.isola(&["capture", "kv"]).failed(1, "needs a cell that runs");
}
