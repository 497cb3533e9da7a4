//! Counts segments lost between a cell and this host's TCP, on a TAP interface, which loses none.
//!
//! A sender retransmits if a segment was lost or if its acknowledgement was late, as on a busy host. The receiver of a
//! duplicate reports it (D-SACK, RFC 2883). Lost segments are therefore retransmissions less reported duplicates.

use isola_abi::query::Connection;
use std::fs;

/// A baseline of the kernel's TCP counters, in the network namespace of the calling thread.
#[derive(Clone, Copy, Debug)]
pub struct LossMeter(Kernel);

#[derive(Clone, Copy, Debug)]
struct Kernel {
    /// Segments that the kernel retransmitted.
    retransmitted: u64,
    /// Duplicates that the peer reported to the kernel.
    reported: u64,
    /// Duplicates that the kernel received and reported.
    duplicates: u64,
}

/// Numbers of lost segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Losses {
    /// Sent by this host to the cell.
    pub to_cell: u64,
    /// Sent by the cell to this host.
    pub from_cell: u64,
}

impl LossMeter {
    /// Reads the counters. The cell may have no open connection.
    pub fn start() -> Self {
        Self(Kernel::read())
    }

    /// Returns the segments lost since [`Self::start`]. `connections` are all connections that the cell has had since;
    /// all must still be open.
    pub fn losses(&self, connections: &[Connection]) -> Losses {
        let now = Kernel::read();
        let retransmitted: u64 = connections.iter().map(|connection| connection.retransmits).sum();
        Losses {
            to_cell: (now.retransmitted - self.0.retransmitted)
                .saturating_sub(now.reported - self.0.reported),
            from_cell: retransmitted.saturating_sub(now.duplicates - self.0.duplicates),
        }
    }
}

impl Kernel {
    fn read() -> Self {
        let extended = |name| counter("netstat", "TcpExt: ", name);
        Self {
            retransmitted: counter("snmp", "Tcp: ", "RetransSegs"),
            reported: extended("TCPDSACKRecv") + extended("TCPDSACKOfoRecv"),
            duplicates: extended("TCPDSACKOldSent") + extended("TCPDSACKOfoSent"),
        }
    }
}

/// Returns a counter of this network namespace, from a line of names and a line of values.
fn counter(file: &str, kind: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect("Linux's counters");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(kind));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let pair = names.split(' ').zip(values.split(' ')).find(|(found, _)| *found == name);
    pair.and_then(|(_, value)| value.parse().ok()).unwrap_or_else(|| panic!("Linux counts no {name}"))
}
