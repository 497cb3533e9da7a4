//! A cell's virtual address space. The supervisor builds it, and so does an image that boots alone.
//!
//! ```text
//! 0xffff_8000_0000_0000  DIRECT_MAP   physical address + this; the cell's pool memory alone       RW  NX
//! 0xffff_b000_0000_0000  REGIONS      what the cell maps itself, by the tables below                  RW  NX
//! 0xffff_b080_0000_0000  REGION_TABLES  the page tables of REGIONS                                 RW  NX
//! 0xffff_c000_0000_0000  STACKS       a slot a core: guard | stack | guard | NMI | guard | fault   RW  NX
//! 0xffff_d000_0000_0000  DEVICES      registers: the local APIC, then the cell's device functions  RW  NX uncached
//! 0xffff_e000_0000_0000  SHARED       the switch page                                              R   X
//!                        DESCRIPTOR   the cell's descriptor                                        R   NX
//!                        TABLES       interrupt table, then a page of GDT and TSS a core           R   NX
//!                        REPORT       the cell's report and ledger                                 RW  NX
//! 0xffff_ffff_8000_0000  IMAGE        the image's segments, each with its own rights (W^X)
//! ```
//!
//! Everything else is unmapped, the lower half included: a null pointer faults. The image's pages, the page
//! tables and the descriptor tables are not in the direct map: no second, writable name for them exists. The
//! tables of `REGIONS` are the only ones that a cell can write, by their name in `REGION_TABLES`; whatever
//! stands in them, nothing in `REGIONS` is ever executable.
//!
//! The supervisor's own address space uses `DIRECT_MAP` (for all memory), `DEVICES`, `SHARED` and `IMAGE` at
//! the same places. The switch page stands at [`SHARED`] in every address space: code there can change from
//! one to another and go on.

use crate::ledger::{ledger_bytes, report_len};

/// Size of the smallest page, in bytes.
pub const PAGE_SIZE: u64 = 4096;

/// Where physical address 0 would be mapped.
pub const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;

/// Where the virtual memory begins that a cell maps itself. A whole entry of the topmost table.
pub const REGIONS: u64 = 0xffff_b000_0000_0000;

/// Size of that memory, in bytes: 512 GiB.
pub const REGIONS_SIZE: u64 = 1 << 39;

/// Where the page tables of [`REGIONS`] are mapped, the topmost first.
pub const REGION_TABLES: u64 = REGIONS + REGIONS_SIZE;

/// Where the stacks of core index 0 begin.
pub const STACKS: u64 = 0xffff_c000_0000_0000;

/// Distance between the stack slots of two cores.
pub const STACK_SLOT: u64 = 0x20_0000;

/// Size of the stack that a core's event loop runs on. It begins at `PAGE_SIZE` in its slot, above a guard.
pub const STACK_SIZE: u64 = 0x2_0000;

/// Where in a slot the non-maskable interrupt's stack begins. Below it is a guard.
pub const NMI_STACK_OFFSET: u64 = 0x8_0000;

/// Where in a slot the double fault's stack begins. Below it is a guard.
pub const FAULT_STACK_OFFSET: u64 = 0xa_0000;

/// Size of the stacks of the non-maskable interrupt and of the double fault.
pub const EXCEPTION_STACK_SIZE: u64 = 0x4000;

/// Where device registers are mapped.
pub const DEVICES: u64 = 0xffff_d000_0000_0000;

/// Where the local APIC's registers are mapped (used only where the processor has no x2APIC).
pub const LOCAL_APIC: u64 = DEVICES;

/// Where the switch page is mapped, in every address space.
pub const SHARED: u64 = 0xffff_e000_0000_0000;

/// Where the descriptor is mapped.
pub const DESCRIPTOR: u64 = SHARED + 0x20_0000;

/// Size of the descriptor area, in bytes.
pub const DESCRIPTOR_SIZE: u64 = 5 * PAGE_SIZE;

/// Where the interrupt table is mapped; the pages of GDT and TSS follow, one a core.
pub const TABLES: u64 = SHARED + 0x40_0000;

/// Where the report is mapped.
pub const REPORT: u64 = SHARED + 0x60_0000;

/// Size of the report area of a cell that has so many places for cores and so many slots for activities, in bytes: the
/// report, and the ledger behind it.
pub const fn report_bytes(places: usize, slots: usize) -> u64 {
    (report_len(places) as u64 + ledger_bytes(places, slots)).next_multiple_of(PAGE_SIZE)
}

/// The lowest address at which a segment of an image may stand.
pub const IMAGE: u64 = 0xffff_ffff_8000_0000;

/// What the physical address of an image that boots alone is offset by: segment at `IMAGE + p` is loaded at
/// physical address `p`.
pub const IMAGE_MAX_SIZE: u64 = 0x4000_0000;

/// A size that pages have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageSize {
    /// 4 KiB.
    FourKib,
    /// 2 MiB.
    TwoMib,
    /// 1 GiB, which not every processor has.
    OneGib,
}

impl PageSize {
    /// The size in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::FourKib => 1 << 12,
            Self::TwoMib => 1 << 21,
            Self::OneGib => 1 << 30,
        }
    }
}

const _: () = assert!(PAGE_SIZE + STACK_SIZE + PAGE_SIZE <= NMI_STACK_OFFSET);
const _: () = assert!(NMI_STACK_OFFSET + EXCEPTION_STACK_SIZE + PAGE_SIZE <= FAULT_STACK_OFFSET);
const _: () = assert!(FAULT_STACK_OFFSET + EXCEPTION_STACK_SIZE <= STACK_SLOT);
