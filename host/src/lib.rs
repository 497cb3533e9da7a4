//! The library behind the `isola` command.
//!
//! | module | contents |
//! |---|---|
//! | [`cli`] | the command: one file per verb |
//! | [`machine`] | machines: QEMU processes and their records |
//! | [`client`] | client of the management protocol |
//! | [`query`] | queries to running cells, and their answers |
//! | [`cellctl`] | operations of several steps on a cell: run, stop, remove, publish |
//! | [`capture`] | captured frames: checksums, pcapng files, one-line descriptions |
//! | [`mod@copy`] | copies of files to and from a cell |
//! | [`elastic`] | the policy that borrows cores by a service's latency |
//! | [`hosted_cells`] | query sockets of cells in Linux processes |
//! | [`image`] | cell images: search, checks, strip, signatures |
//! | [`manifest`] | `isola.toml` |
//! | [`metrics`] | metrics for Prometheus: text formats and an HTTP server |
//! | [`placement`] | the syntax of core placements |
//! | [`publish`] | port forwarding from the host to cells |
//! | [`switch`] | the software switch between the network devices of a machine |
//! | [`symbols`] | symbol names for the addresses of a crash |
//! | [`tmpfs`] | file systems in memory of Linux programs |
//! | [`trace`] | traces of what a cell's cores do: sums, and files for Perfetto |
//! | [`output`] | tables, JSON, notes, progress |
//! | [`names`] | names of machines and cells |
//!
//! It uses `isola-abi`, which defines all formats that host and machine share, and `isola-root-image`.
#![forbid(unsafe_code)]

pub mod capture;
pub mod cellctl;
pub mod cli;
pub mod client;
pub mod copy;
pub mod elastic;
pub mod grid_setup;
pub mod hosted_cells;
pub mod image;
pub mod machine;
pub mod manifest;
pub mod metrics;
pub mod names;
pub mod output;
pub mod placement;
pub mod profile;
pub mod publish;
pub mod query;
pub mod root;
pub mod switch;
pub mod symbols;
#[cfg(test)]
mod test_data;
pub mod tmpfs;
pub mod trace;
pub mod volume;
