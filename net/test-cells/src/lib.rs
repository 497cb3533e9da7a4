//! Cells of one process on a network in memory, for tests of network code.
//!
//! | item | contents |
//! |---|---|
//! | [`run_server_and_client`], [`run_server_and_client_over`] | a server cell and a client cell |
//! | [`TestCell`], [`run_cells`] | any number of cells, on any network devices |
//! | [`dial`], [`dial_to`], [`read_exactly`] | the client's end of a connection |
//! | [`rotate_flows`] | moves the flows of a cell around its cores |
//!
//! For tests only: errors panic, and packages depend on this one for their tests alone.
#![forbid(unsafe_code)]

mod cell;
mod client;
mod flows;

pub use cell::{TestCell, run_cells, run_server_and_client, run_server_and_client_over};
pub use client::{dial, dial_to, read_exactly};
pub use flows::rotate_flows;

use std::net::Ipv4Addr;

/// The server's address.
pub const SERVER: Ipv4Addr = address(1);

/// The client's address.
pub const CLIENT: Ipv4Addr = address(2);

/// Returns the address of the cell with that number.
pub const fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, number)
}
