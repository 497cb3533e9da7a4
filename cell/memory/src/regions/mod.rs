//! Regions: virtual memory that is filled by a pager, which the application chooses or writes (XOS IV-B).
//!
//! ```text
//!   a page is touched that is not there
//!        │ page fault (in the cell, on the core and the stack that touched it)
//!        ▼
//!   [ fault ]──which region?──►[ region table ]
//!        │
//!        ▼ decides which pages come, of which size, with what in them
//!   [ Pager ]  OnDemand, Prefault, Colored, or the application's own
//!        │ fill
//!        ▼
//!   [ Window ]  the platform: page tables in a bare cell, mmap in a process
//! ```
//!
//! - [`Region`]: some bytes of virtual memory, owned, with a [`Pager`]; [`Stack`]: one with a guard page below.
//! - [`Pager`]: what fills a region, when it is made and when a page is touched; [`Filler`] is what it fills with.
//! - [`Window`]: what a platform provides, once ([`install`]).
//! - [`Grace`]: when every core has forgotten pages that are gone.
//! - [`Compaction`]: pages move to other memory, where that in which they are is asked back.
//!
//! What makes a fault safe in the middle of anything: the code that faulted touched a region, and nothing in this crate
//! does that with a lock held, nor does the heap, whose own memory is never in a region (objects in pieces are in the
//! window, but all of them is there). So no lock that the way of a fault takes can be held by what faulted. A pager of the
//! application must see to the same for its own.
//!
//! A page that was filled is there until its region is dropped, though not always in the same memory. Its memory and
//! addresses are used again when every core of the cell has passed its loop, and has forgotten them.
//!
//! What is *not* here: the heap's memory, which is never paged; its large objects in pieces, which have a part of the
//! window of their own ([`mapped`](crate::mapped)).

mod addresses;
mod compaction;
mod grace;
mod pager;
mod pagers;
mod region;
mod region_table;
mod stack;
mod window;

pub use self::compaction::{Compaction, Mover, Progress};
pub use self::grace::Grace;
pub use self::pager::{Filler, Pager};
pub use self::pagers::{Colored, OnDemand, Prefault};
pub use self::region::{Region, RegionError};
pub use self::region_table::{FaultError, collect, fault, movable_from, region_at};
pub(crate) use self::region_table::{give_tables, take_tables};
pub use self::stack::Stack;
pub(crate) use self::window::window;
pub use self::window::{Carry, Contents, Extent, FillError, Filled, FrameChoice, Retired, Window, install};
pub use isola_abi::layout::PageSize;
