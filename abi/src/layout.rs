//! The virtual address space of a cell. The supervisor builds it; a standalone image builds the same one for itself.
//!
//! ```text
//! 0xffff_8000_0000_0000  DIRECT_MAP     the cell's pool, at physical address + DIRECT_MAP              RW  NX
//! 0xffff_b000_0000_0000  REGIONS        the region area, mapped by the cell                            RW  NX
//! 0xffff_b080_0000_0000  REGION_TABLES  the page tables of REGIONS                                     RW  NX
//! 0xffff_c000_0000_0000  STACKS         per slot: guard | stack | guard | NMI | guard | fault | guard | trap  RW  NX
//! 0xffff_d000_0000_0000  DEVICES        registers: the local APIC, then the cell's device functions    RW  NX uncached
//! 0xffff_e000_0000_0000  SHARED         the switch page                                                R   X
//!                        ROOT_TABLE     the topmost page table of the cell                             R   NX
//!                        DESCRIPTOR     the cell's descriptor                                          R   NX
//!                        TABLES         interrupt table, then a page of GDT and TSS per core slot      R   NX
//!                        REPORT         the cell's report and ledger                                   RW  NX
//!                        LINKS          memory of other cells, by their consent                        R or RW, NX
//! 0xffff_ffff_8000_0000  IMAGE          the image's segments, each with its own rights (W^X)
//! ```
//!
//! All other addresses are unmapped, the lower half included: a null pointer faults. (A cell that runs programs in user
//! mode has further address spaces, with the same upper half and a program in the lower half.) The image's pages, the page tables
//! and the descriptor tables are not in the direct map, so they have no second, writable mapping. A cell can write the
//! page tables of `REGIONS`, through `REGION_TABLES`, and no others. The table entry above them is NX, so no page of
//! `REGIONS` is executable, whatever the cell writes.
//!
//! The supervisor's own address space uses `DIRECT_MAP` (for all memory), `DEVICES`, `SHARED` and `IMAGE` at the same
//! addresses. The switch page is at [`SHARED`] in every address space; its code can therefore change from one address
//! space to another.

use crate::ledger::{ledger_bytes, report_len};

/// The size of the smallest page, in bytes.
pub const PAGE_SIZE: u64 = 4096;

/// The start of the direct map: physical address 0 would be mapped here.
pub const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;

/// The start of the region area, which the cell maps itself. It takes one entry of the topmost page table.
pub const REGIONS: u64 = 0xffff_b000_0000_0000;

/// The size of the region area, in bytes: 512 GiB.
pub const REGIONS_SIZE: u64 = 1 << 39;

/// The address of the page tables of [`REGIONS`], the topmost first.
pub const REGION_TABLES: u64 = REGIONS + REGIONS_SIZE;

/// The address of the stacks of core slot 0.
pub const STACKS: u64 = 0xffff_c000_0000_0000;

/// The distance between the stacks of two core slots, in bytes.
pub const STACK_SLOT: u64 = 0x20_0000;

/// The size of the event loop's stack, in bytes. It begins at `PAGE_SIZE` in the slot's part, above a guard page.
pub const STACK_SIZE: u64 = 0x2_0000;

/// The offset of the NMI stack in a core slot's part, above a guard page.
pub const NMI_STACK_OFFSET: u64 = 0x8_0000;

/// The offset of the double fault stack in a core slot's part, above a guard page.
pub const FAULT_STACK_OFFSET: u64 = 0xa_0000;

/// The offset of the page of traps from user mode in a core slot's part, above a guard page. The processor pushes the
/// frame of an interrupt or an exception in user mode there, below [`TRAP_STACK_TOP`].
pub const TRAP_PAGE_OFFSET: u64 = 0xc_0000;

/// The offset of the top of the trap stack in the page of traps. The state of the core's user mode follows.
pub const TRAP_STACK_TOP: u64 = 0xe00;

/// The size of the NMI stack and of the double fault stack, in bytes.
pub const EXCEPTION_STACK_SIZE: u64 = 0x4000;

/// The address of device registers.
pub const DEVICES: u64 = 0xffff_d000_0000_0000;

/// The address of the local APIC's registers, used only on a processor without x2APIC.
pub const LOCAL_APIC: u64 = DEVICES;

/// The address of the switch page, in every address space.
pub const SHARED: u64 = 0xffff_e000_0000_0000;

/// The address of the cell's topmost page table, which the cell can read. Its upper half does not change while the cell
/// runs. (The page between this one and the switch page has the supervisor's code for TLB shootdowns.)
pub const ROOT_TABLE: u64 = SHARED + 2 * PAGE_SIZE;

/// The address of the descriptor.
pub const DESCRIPTOR: u64 = SHARED + 0x20_0000;

/// The least size of the descriptor area, in bytes: see [`crate::descriptor::area_bytes`].
pub const DESCRIPTOR_SIZE: u64 = 6 * PAGE_SIZE;

/// The address of the interrupt table. A page of GDT and TSS follows for each core slot.
pub const TABLES: u64 = SHARED + 0x40_0000;

/// The address of the report.
pub const REPORT: u64 = SHARED + 0x60_0000;

/// The address of the link area: memory of other cells, see [`crate::links`]. Its first page belongs to the cell itself.
pub const LINKS: u64 = SHARED + 0x4000_0000;

/// The size of the link area in pages: 1 GiB.
pub const LINK_PAGES: u32 = 0x4_0000;

/// Returns the size of the report area, report and ledger, in bytes, for a cell with `core_slots` core slots and
/// `activity_slots` activity slots.
pub const fn report_bytes(core_slots: usize, activity_slots: usize) -> u64 {
    (report_len(core_slots) as u64 + ledger_bytes(core_slots, activity_slots)).next_multiple_of(PAGE_SIZE)
}

/// The lowest address of a segment of an image. A standalone image's segment at `IMAGE + p` is loaded at physical
/// address `p`.
pub const IMAGE: u64 = 0xffff_ffff_8000_0000;

/// The size of the address range for an image's segments, in bytes.
pub const IMAGE_MAX_SIZE: u64 = 0x4000_0000;

/// A page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageSize {
    /// 4 KiB.
    FourKib,
    /// 2 MiB.
    TwoMib,
    /// 1 GiB; some processors do not support it.
    OneGib,
}

impl PageSize {
    /// Returns the size in bytes.
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
const _: () = assert!(FAULT_STACK_OFFSET + EXCEPTION_STACK_SIZE + PAGE_SIZE <= TRAP_PAGE_OFFSET);
const _: () = assert!(TRAP_PAGE_OFFSET + PAGE_SIZE <= STACK_SLOT && TRAP_STACK_TOP.is_multiple_of(16));
