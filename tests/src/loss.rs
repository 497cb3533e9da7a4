//! Segments that were lost between a cell and this host's TCP, on a TAP interface, which loses none.
//!
//! A segment that is sent again was lost, or its acknowledgement was late: a busy host delays both sides. The receiver of a
//! duplicate reports it (D-SACK, RFC 2883), so what is sent again less what is reported as a duplicate was lost.

use isola_abi::query::Connection;
use std::fs;

/// Counters of the kernel's TCP in the network namespace of the calling thread, when the meter was made.
#[derive(Clone, Copy, Debug)]
pub struct LossMeter(Kernel);

#[derive(Clone, Copy, Debug)]
struct Kernel {
    /// Segments that the kernel sent again.
    retransmitted: u64,
    /// Duplicates that the peer reported.
    reported: u64,
    /// Duplicates that came, which the kernel reported.
    duplicates: u64,
}

/// Segments that were lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Losses {
    /// On the way to the cell.
    pub to_cell: u64,
    /// On the way from the cell.
    pub from_cell: u64,
}

impl LossMeter {
    /// Begins to count. No connection of the cell may be open.
    pub fn start() -> Self {
        Self(Kernel::read())
    }

    /// Returns the segments that were lost since the meter was made, of the cell's open connections, which are all that
    /// there were.
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

/// A counter of this network namespace: a line of names, and one of values.
fn counter(file: &str, kind: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect("Linux's counters");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(kind));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let pair = names.split(' ').zip(values.split(' ')).find(|(found, _)| *found == name);
    pair.and_then(|(_, value)| value.parse().ok()).unwrap_or_else(|| panic!("Linux counts no {name}"))
}
