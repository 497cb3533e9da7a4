//! Benchmarks: Isola beside a Linux guest, under the same QEMU with the same settings, in one run.
//!
//! | module | contents |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`session`] | programs, images and guests that all groups need |
//! | [`groups`] | the measurement of each group |
//! | [`gate`] | instruction counts, compared with a baseline |
//! | [`network`] | the network of the machines |
//! | [`supervised`] | a machine with a supervisor |
//! | [`machine`] | a machine in QEMU: start, serial line, resource use |
//! | [`instructions`], [`callgrind`] | instruction counts of a machine, and of a process of the host |
//! | [`pace`] | processors paced to a rate that the host can sustain |
//! | [`plugin`] | compilation of the emulator plugins of [`instructions`] and [`pace`] |
//! | [`linux`] | the Linux guest |
//! | [`load`] | the client |
//! | [`kinds`], [`figure`], [`statistics`] | the definitions of figures, their values, and medians |
//! | [`origin`], [`host`] | the measured tree, and other load on the host |
//! | [`pages`] | publication in README files |
//! | [`record`], [`table`], [`curve`], [`timeline`] | raw data, tables, and plots |
//! | [`interrupt`], [`program`], [`error`] | signals, external programs, errors |
//!
//! `docs/decisions/0008-benchmarks.md` gives the reasons. Not here: native comparisons of single parts of Isola, whose
//! programs are beside each part (`cell/memory/compare`, `net/stack/compare`).
#![forbid(unsafe_code)]

pub mod callgrind;
pub mod cli;
pub mod curve;
pub mod error;
pub mod figure;
pub mod gate;
pub mod groups;
pub mod host;
pub mod instructions;
pub mod interrupt;
pub mod kinds;
pub mod linux;
pub mod load;
pub mod machine;
pub mod network;
pub mod origin;
pub mod pace;
pub mod pages;
pub mod plugin;
pub mod program;
pub mod record;
pub mod session;
pub mod statistics;
pub mod supervised;
pub mod table;
pub mod timeline;
pub mod volume;
