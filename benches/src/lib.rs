//! Benchmarks: Isola beside a Linux guest, under the same QEMU with the same settings, in one run.
//!
//! | module | what |
//! |---|---|
//! | [`cli`] | what the user typed |
//! | [`session`] | programs, images and guests that all groups need |
//! | [`groups`] | what is done for the figures of each group |
//! | [`gate`] | instruction counts that each tree is held to |
//! | [`network`] | the network that the machines are in |
//! | [`divided`] | a machine with a supervisor |
//! | [`machine`] | a machine in QEMU: started, listened to, asked what it used |
//! | [`instructions`], [`callgrind`] | counting a machine's instructions, and those of a process of the host |
//! | [`pace`] | a machine's processors slowed to a pace that the host can keep |
//! | [`plugin`] | the emulator's plugins that these two take |
//! | [`linux`] | the Linux guest |
//! | [`load`] | the client |
//! | [`kinds`], [`figure`], [`statistics`] | what is measured, what came of it, and medians of that |
//! | [`origin`], [`host`] | the tree that is measured, and how busy the host is otherwise |
//! | [`pages`] | what is published of them |
//! | [`record`], [`table`], [`curve`], [`timeline`] | raw data, tables for people, and pictures |
//! | [`interrupt`], [`program`], [`error`] | ^C, other programs, what goes wrong |
//!
//! `docs/decisions/0008-benchmarks.md` says why it is done so. Not here: comparing parts of Isola with others' on the
//! host, which is beside the part (`cell/memory/compare`, `net/stack/compare`).
#![forbid(unsafe_code)]

pub mod callgrind;
pub mod cli;
pub mod curve;
pub mod divided;
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
pub mod table;
pub mod timeline;
