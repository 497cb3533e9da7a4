//! The host side of Isola: what the `isola` command is made of.
//!
//! | module | what |
//! |---|---|
//! | [`cli`] | the command: one file a verb |
//! | [`machine`] | machines: QEMU processes, and what is written down of them |
//! | [`client`] | the management protocol, spoken to a machine's supervisor |
//! | [`query`] | what running cells are asked, and how their answers are read |
//! | [`cellctl`] | what takes several steps with a cell: run, stop, remove, publish |
//! | [`capture`] | frames of cells: made whole, and written down |
//! | [`elastic`] | the policy that moves cores between cells |
//! | [`hosted_cells`] | cells in Linux processes: where they are asked |
//! | [`image`] | images: found, checked, cut to what is sent |
//! | [`manifest`] | `isola.toml` |
//! | [`placement`] | which cores a cell shall have, as people write it |
//! | [`publish`] | ports of the host that lead to cells |
//! | [`switch`] | the switch between the network devices of a machine |
//! | [`symbols`] | names for the addresses of a crash |
//! | [`output`] | tables, JSON, notes, progress |
//! | [`names`] | names of machines and cells |
//!
//! Of Isola's crates only `isola-abi` is used: host and machine meet there.
#![forbid(unsafe_code)]

pub mod capture;
pub mod cellctl;
pub mod cli;
pub mod client;
pub mod elastic;
pub mod hosted_cells;
pub mod image;
pub mod machine;
pub mod manifest;
pub mod names;
pub mod output;
pub mod placement;
pub mod publish;
pub mod query;
pub mod switch;
pub mod symbols;
#[cfg(test)]
mod test_data;
