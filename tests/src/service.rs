//! A machine with the key-value server in a cell.

use crate::isola::Isola;
use crate::kv::Connection;
use crate::namespace::{self, Tap};
use serde_json::Value;
use std::net::SocketAddr;

/// The cell's name.
pub const CELL: &str = "cache";

/// The server's port.
const PORT: u16 = 11211;

/// Rounds after which [`Service::leaves_nothing`] takes what is left behind for a leak.
const MOST_ROUNDS: usize = 8;

/// Bytes by which the memory in use may differ after the same round: pages of the heap that are partly in use.
const JITTER: u64 = 16 << 10;

/// A machine with the server in a cell.
pub struct Service {
    /// The machine.
    pub isola: Isola,
    /// Where the server is reached.
    pub address: SocketAddr,
    /// The inventory without the cell.
    empty: Value,
}

impl Service {
    /// A machine of four cores on QEMU's user-mode network, with the server's port published; both with further options.
    pub fn published(machine: &[&str], cell: &[&str]) -> Self {
        let isola = Isola::up(machine);
        let empty = isola.inventory();
        let view = isola.json(&[&["run", "-d", "--name", CELL, "-p", "11211"], cell, &["kv"]].concat());
        let address = published(&view);
        Self::answering(isola, address, empty)
    }

    /// A machine of four cores on a network of [`namespace`], which the caller is in, with the server in a cell of so
    /// many cores and so much memory.
    pub fn on_tap(cores: &str, memory: &str) -> Self {
        Self::on(namespace::SHARED, &[], &["--cores", cores, "--memory", memory])
    }

    /// The same on either network, with further options of the machine and the cell.
    pub fn on(tap: Tap, machine: &[&str], cell: &[&str]) -> Self {
        let isola = Isola::up(&[&["--net", tap.network], machine].concat());
        let empty = isola.inventory();
        let network = format!("{}/{}", tap.cell(), namespace::PREFIX_LEN);
        isola.json(&[&["run", "-d", "--name", CELL, "--network", &network], cell, &["kv"]].concat());
        Self::answering(isola, (tap.cell(), PORT).into(), empty)
    }

    fn answering(isola: Isola, address: SocketAddr, empty: Value) -> Self {
        let service = Self { isola, address, empty };
        service.connect();
        service
    }

    /// A connection that the server has answered on.
    pub fn connect(&self) -> Connection {
        Connection::establish(self.address)
    }

    /// All that is known of the cell.
    #[track_caller]
    pub fn cell(&self) -> Value {
        self.isola.cell(CELL)
    }

    /// Memory that the cell uses, in bytes.
    #[track_caller]
    pub fn used_bytes(&self) -> u64 {
        self.cell()["used_bytes"].as_u64().expect("it is told")
    }

    /// Does the same again and again, until once the memory in use is no more than before it. What each round leaves
    /// behind adds up, so that no round does; where the heap's pages are only partly in use, a round or two more are needed.
    #[track_caller]
    pub fn leaves_nothing(&self, mut round: impl FnMut()) {
        let mut left = Vec::new();
        while left.len() < MOST_ROUNDS {
            round();
            left.push(self.used_bytes());
            // The first round sizes the heap.
            if let [_, .., before, after] = left[..]
                && after <= before + JITTER
            {
                return;
            }
        }
        panic!("each round adds to the bytes in use: {left:?}");
    }

    /// Ends the cell, which has to have run until now, and sees that the machine has back all that it had.
    #[track_caller]
    pub fn end(self) {
        let view = self.cell();
        assert_eq!((&view["state"], &view["crash"]), (&"running".into(), &Value::Null), "{view:#}");
        let stopped = self.isola.json(&["stop", CELL]);
        assert_eq!((&stopped[0]["state"], &stopped[0]["exit_code"]), (&"exited".into(), &0.into()));
        self.isola.run(&["rm", CELL]).ok();
        self.isola.wait_for_inventory(&self.empty);
    }
}

/// Where the first published port of a cell is on the host.
#[track_caller]
pub fn published(cell: &Value) -> SocketAddr {
    let host = cell["ports"][0]["host"].as_str().and_then(|host| host.parse().ok());
    host.unwrap_or_else(|| panic!("it has no published port: {cell:#}"))
}
