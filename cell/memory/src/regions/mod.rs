//! Regions: virtual memory that a pager fills, one of the library's or the application's own (XOS IV-B).
//!
//! ```text
//!   an access to a non-present page
//!        │ page fault (in the cell, on the faulting core and stack)
//!        ▼
//!   [ fault ]──which region?──►[ region table ]
//!        │
//!        ▼ chooses the pages to fill, their size and their contents
//!   [ Pager ]  OnDemand, Prefault, Colored, or the application's own
//!        │ fill
//!        ▼
//!   [ AddressWindow ]  the platform: page tables in a bare cell, mmap in a process
//! ```
//!
//! - [`Region`]: owned virtual memory with a [`Pager`]; [`Stack`]: a region with a guard page below.
//! - [`Pager`]: fills a region through a [`Filler`], at creation and at page faults.
//! - [`AddressWindow`]: the platform's interface to the region area, registered once ([`install`]).
//! - [`GracePeriods`]: determines when every core has flushed its TLB since pages were unmapped.
//! - [`Compaction`]: migrates pages so that chunks of memory become free.
//!
//! Why the fault handler cannot deadlock: the faulting code accessed a region. No code of this crate does that with a
//! lock held, nor does the heap, whose own memory is never paged (virtually contiguous objects are in the region area,
//! but always present). So the faulting code holds no lock that the fault handler takes. An application's pager must
//! ensure the same for its own locks.
//!
//! Filled pages are charged to the activity that runs when they are filled, in a page fault the one that faults, and count
//! for its memory budget. A page fault never waits for a budget: the faulting event cannot be preempted, and could hold
//! state of its core that others wait for. The memory scheduler frees memory afterwards. Code that can wait reserves
//! memory before it accesses a region.
//!
//! A filled page stays present until its region is dropped, though 4 KiB pages may migrate to other memory. After the
//! drop, memory and addresses are reused once every core of the cell has passed its loop and flushed its TLB.
//!
//! What is *not* here: the heap's memory, which is never paged, and its virtually contiguous objects, which have their
//! own part of the region area ([`virtual_alloc`](crate::virtual_alloc)).

mod address_window;
mod addresses;
mod charges;
mod compaction;
mod grace;
mod pager;
mod pagers;
mod region;
mod region_record;
mod region_table;
mod stack;

pub(crate) use self::address_window::window;
pub use self::address_window::{
    Account, AddressWindow, Contents, Extent, FillError, FillOutcome, FrameChoice, MapContents, Retirement,
    install,
};
pub use self::compaction::{Compaction, CompactionProgress, PageMover};
pub use self::grace::GracePeriods;
pub use self::pager::{Filler, Pager};
pub use self::pagers::{Colored, OnDemand, Prefault};
pub use self::region::Region;
pub use self::region_record::RegionError;
pub use self::region_table::{FaultError, collect, fault, movable_from, region_at};
pub(crate) use self::region_table::{give_tables, take_tables};
pub use self::stack::Stack;
pub use isola_abi::layout::PageSize;
