//! A machine with the key-value server in a cell.

use crate::isola::Isola;
use crate::kv::Connection;
use crate::namespace::{self, Tap};
use serde_json::Value;
use std::net::SocketAddr;
use std::process::Command;

/// The cell's name.
pub const CELL: &str = "cache";

/// The server's port.
const PORT: u16 = 11211;

/// The number of rounds after which [`Service::leaves_nothing`] reports a leak.
const MOST_ROUNDS: usize = 8;

/// The tolerance, in bytes, for the memory in use after a round: heap pages may be partly in use.
const JITTER: u64 = 16 << 10;

/// A machine with the server in a cell.
pub struct Service {
    /// The machine.
    pub isola: Isola,
    /// The server's address.
    pub address: SocketAddr,
    /// The inventory without the cell.
    empty: Value,
}

impl Service {
    /// Starts a machine of four cores on QEMU's user-mode network, with the server's port published. `machine` and
    /// `cell` are further options.
    pub fn published(machine: &[&str], cell: &[&str]) -> Self {
        let isola = Isola::up(machine);
        let empty = isola.inventory();
        let view = isola.json(&[&["run", "-d", "--name", CELL, "-p", "11211"], cell, &["kv"]].concat());
        let address = published(&view);
        Self::answering(isola, address, empty)
    }

    /// Starts a machine of four cores on the shared interface of [`namespace`], in which the caller runs, with the
    /// server in a cell of `cores` cores and `memory` bytes.
    pub fn on_tap(cores: &str, memory: &str) -> Self {
        Self::on(namespace::SHARED, &[], &["--cores", cores, "--memory", memory])
    }

    /// As [`Self::on_tap`], on either interface, with further options of machine and cell.
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

    /// Opens a connection, and waits until the server has answered on it.
    pub fn connect(&self) -> Connection {
        Connection::establish(self.address)
    }

    /// Opens a connection, on which nothing is sent yet.
    ///
    /// # Panics
    /// If the host cannot connect. The message has the counters of the cell and the neighbours of the host.
    #[track_caller]
    pub fn open(&self) -> Connection {
        Connection::open(self.address).unwrap_or_else(|error| {
            let neighbours = Command::new("ip").args(["-s", "neighbour"]).output();
            let cell = self.isola.run(&["inspect", CELL]);
            panic!("{error}\n{}\n{neighbours:?}", cell.out);
        })
    }

    /// Returns the state of the cell.
    #[track_caller]
    pub fn cell(&self) -> Value {
        self.isola.cell(CELL)
    }

    /// Returns the memory that the cell uses, in bytes.
    #[track_caller]
    pub fn used_bytes(&self) -> u64 {
        self.cell()["used_bytes"].as_u64().expect("the state has the memory in use")
    }

    /// Repeats a round until one does not add to the memory in use. A leak adds to it in every round; a partly used
    /// heap page does so for a round or two.
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

    /// Ends the cell, which must be running, and checks that all its resources return to the inventory.
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

/// Returns the host's address of a cell's first published port.
#[track_caller]
pub fn published(cell: &Value) -> SocketAddr {
    let host = cell["ports"][0]["host"].as_str().and_then(|host| host.parse().ok());
    host.unwrap_or_else(|| panic!("it has no published port: {cell:#}"))
}
