//! The words that both sides of a wall share. Plain data, versioned; no unsafe, and no logic beyond encode,
//! decode and validate.
//!
//! | module | between | what |
//! |---|---|---|
//! | [`id`] | all | newtypes for cores, cells, activities and addresses |
//! | [`layout`] | supervisor and cell | where things are in a cell's virtual address space |
//! | [`note`] | cell image and supervisor | the ELF note by which an image says how it is entered |
//! | [`descriptor`] | supervisor to cell | what the cell owns; read-only to the cell |
//! | [`report`] | cell to supervisor | what the cell says of itself: state, console, crash |
//! | [`ledger`] | cell to supervisor | what each activity of the cell used |
//! | [`query`] | host tool and cell, by the supervisor | what a running cell is asked, and answers |
//! | [`growth`] | both ways | how a cell asks for more memory, and is answered |
//! | [`integrity`] | host tool and supervisor | what an image is known by, and what is demanded of it |
//! | [`histogram`] | cell to host tool | how long things took, as counters that the report has |
//! | [`management`] | host tool and supervisor | requests and responses of the management console |
//! | [`frame`] | host tool and supervisor | how they are cut into frames on a byte stream |
//! | [`hosted`] | host tool and hosted cell | what a cell in a Linux process is given |
//! | [`unplug`] | supervisor and cell | memory that a running cell gives back |
//! | [`places`] | supervisor and cell | cores that come and go while a cell runs |
//! | [`stage`] | supervisor, and the incarnation after it | how far a cell was when a supervisor went wrong |
//! | [`topology`] | all | where cores stand in the machine, and what they share |
//! | [`size`] | people and tools | byte sizes as people write them: `64M`, `1GiB` |
//!
//! Encoding is postcard: a compact, documented, stable format. A change of any encoded type changes
//! [`VERSION`]; two sides of different versions refuse each other by name.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod descriptor;
pub mod frame;
pub mod growth;
pub mod histogram;
pub mod hosted;
pub mod id;
pub mod integrity;
pub mod layout;
pub mod ledger;
pub mod management;
pub mod note;
pub mod places;
pub mod query;
pub mod report;
pub mod size;
pub mod stage;
pub mod topology;
pub mod unplug;

/// Version of everything in this crate. Supervisor, cell images and host tool of one build share it; a
/// mixture is refused with a clear error.
pub const VERSION: u32 = 14;
