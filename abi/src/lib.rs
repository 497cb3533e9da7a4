//! The interface between supervisor, cells and host: data formats that cross trust boundaries. The crate contains
//! versioned plain data, no unsafe code, and no logic beyond encoding, decoding and validation.
//!
//! | module | between | contents |
//! |---|---|---|
//! | [`id`] | all | newtypes for cores, cells, activities and addresses |
//! | [`layout`] | supervisor and cell | layout of a cell's virtual address space |
//! | [`note`] | cell image to supervisor | ELF note with the image's entry points |
//! | [`descriptor`] | supervisor to cell | the cell's resources; read-only to the cell |
//! | [`report`] | cell to supervisor | the cell's state: console, counters, crash |
//! | [`ledger`] | cell to supervisor | resource usage of each activity |
//! | [`query`] | host tool and cell, through the supervisor | queries to a running cell and their answers |
//! | [`growth`] | supervisor and cell | memory requests and memory hot-plug |
//! | [`integrity`] | host tool and supervisor | digests and signatures of images |
//! | [`histogram`] | cell to host tool | latency histograms in the report |
//! | [`management`] | host tool and supervisor | requests and responses of the management console |
//! | [`frame`] | host tool and supervisor | framing of these messages on a byte stream |
//! | [`hosted`] | host tool to hosted cell | resources of a cell in a Linux process |
//! | [`unplug`] | supervisor and cell | memory hot-unplug |
//! | [`user_context`] | cell and program in user mode | the registers of a program's thread |
//! | [`links`] | supervisor and cell | links to other cells |
//! | [`service`] | service cell and client | a device over a link |
//! | [`core_slots`] | supervisor and cell | core slots; hot-plug and hot-unplug of cores |
//! | [`stage`] | supervisor to its next incarnation | life-cycle stage of a cell in its ownership record |
//! | [`topology`] | all | packages, last-level caches and physical cores |
//! | [`session`] | host tool and cell, over TCP | standard input and output of programs, copies of files |
//! | [`size`] | users and tools | byte sizes in text: `64M`, `1GiB` |
//!
//! The encoding is postcard, a compact format with a stable specification. Any change of an encoded type increments
//! [`VERSION`]; sides of different versions refuse each other with an error that names both versions.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod core_slots;
pub mod descriptor;
pub mod frame;
pub mod grid;
pub mod growth;
pub mod histogram;
pub mod hosted;
pub mod id;
pub mod integrity;
pub mod layout;
pub mod ledger;
pub mod links;
pub mod management;
pub mod network_service;
pub mod note;
pub mod query;
pub mod report;
pub mod service;
pub mod session;
pub mod size;
pub mod stage;
pub mod topology;
pub mod unplug;
pub mod user_context;
pub mod volume;

/// The version of all formats in this crate. Supervisor, cell images and host tool of one build have the same version;
/// each refuses other versions with an error.
pub const VERSION: u32 = 26;
