//! The address space of an image that owns the machine.
//!
//! ```text
//! DIRECT_MAP   all RAM but the image's own                          RW  NX
//! STACKS       one slot per core, by core id, as in a cell          RW  NX
//! DEVICES      the local APIC, then device registers as mapped      RW  NX uncached
//! SHARED       the switch page                                      R   X
//! IMAGE        the image's segments                                 R X | R | RW
//! ```

use crate::image_bounds::ImageBounds;
use crate::memory::{FreeRegions, MemoryNodes, Region, direct};
use crate::paging::{AddressSpace, Caching, LargestPage, MapError, Rights};
use crate::registers::Registers;
use crate::space::{map_stacks, stack_tops};
use crate::{cpu, switch, tables};
use core::ptr::NonNull;
use isola_abi::descriptor::Core;
use isola_abi::id::{PhysAddr, PhysRange};
use isola_abi::layout::{
    DEVICES, DIRECT_MAP, EXCEPTION_STACK_SIZE, IMAGE, LOCAL_APIC, PAGE_SIZE, SHARED, STACK_SIZE,
};

/// The address of every local APIC's registers after reset.
pub(crate) const LOCAL_APIC_PHYS: PhysAddr = PhysAddr(0xfee0_0000);

/// Size of the stack of a parked core, in bytes: such a core does little.
const PARKED_STACK_SIZE: u64 = 0x4000;

/// The image's own address space.
#[derive(Debug)]
pub struct OwnSpace {
    space: AddressSpace,
    stock: FreeRegions,
    next_device: u64,
    pub(crate) switch_page: PhysAddr,
    interrupt_table: PhysAddr,
    parked_interrupt_table: PhysAddr,
    largest: LargestPage,
    pub(crate) nodes: MemoryNodes,
    /// The end of the machine's memory.
    pub(crate) memory_end: PhysAddr,
}

impl OwnSpace {
    /// Returns the memory that the space needs for so many cores and so much RAM, in bytes.
    pub(super) fn needed_bytes(core_count: usize, ram: &[PhysRange]) -> u64 {
        let end = ram.iter().map(|range| range.end().0).max().unwrap_or(0);
        let tables = 64 + 2 * ram.len() as u64 + (end >> 30);
        let per_core = PARKED_STACK_SIZE + 2 * EXCEPTION_STACK_SIZE + 3 * PAGE_SIZE;
        STACK_SIZE + tables * PAGE_SIZE + core_count as u64 * per_core
    }

    /// Builds the space.
    pub(super) fn build(
        bounds: &ImageBounds,
        ram: &[PhysRange],
        cores: &[Core],
        boot_core: Core,
        memory: Region,
        nodes: MemoryNodes,
    ) -> Result<Self, MapError> {
        let largest = if cpu::Features::read().gib_pages { LargestPage::OneGib } else { LargestPage::TwoMib };
        let mut stock = FreeRegions::new(alloc::vec![memory]);
        let mut space = AddressSpace::new(&mut stock, largest)?;

        for range in crate::memory::map::subtract(ram, &[bounds.loaded()]) {
            let virt = DIRECT_MAP + range.start.0;
            space.map(virt, range, Rights::ReadWrite, Caching::Cached, &mut stock)?;
        }
        for (start, end, rights) in [
            (bounds.text_start, bounds.text_end, Rights::Execute),
            (bounds.rodata_start, bounds.rodata_end, Rights::Read),
            (bounds.data_start, bounds.data_end, Rights::ReadWrite),
        ] {
            let memory = PhysRange::new(PhysAddr(start - IMAGE), end - start);
            space.map(start, memory, rights, Caching::Cached, &mut stock)?;
        }
        for core in cores {
            let stack_bytes = if *core == boot_core { STACK_SIZE } else { PARKED_STACK_SIZE };
            map_stacks(&mut space, core.id.0.into(), stack_bytes, &mut stock)?;
        }
        let apic = PhysRange::new(LOCAL_APIC_PHYS, PAGE_SIZE);
        space.map(LOCAL_APIC, apic, Rights::ReadWrite, Caching::Uncached, &mut stock)?;

        let mut page = || stock.take(PAGE_SIZE).ok_or(MapError::OutOfMemory);
        let (mut switch_page, mut interrupts, mut parked) = (page()?, page()?, page()?);
        let code = switch::code();
        switch_page.bytes_mut()[..code.len()].copy_from_slice(code);
        let switch_page = switch_page.into_range();
        space.map(SHARED, switch_page, Rights::Execute, Caching::Cached, &mut stock)?;

        tables::fill_interrupt_table(interrupts.bytes_mut(), crate::interrupts::vectors());
        tables::fill_interrupt_table(parked.bytes_mut(), crate::interrupts::vectors());
        tables::lead_interrupts_to(parked.bytes_mut(), crate::smp::parked_interrupt());
        Ok(Self {
            space,
            stock,
            next_device: DEVICES + PAGE_SIZE,
            switch_page: switch_page.start,
            interrupt_table: interrupts.into_range().start,
            parked_interrupt_table: parked.into_range().start,
            largest,
            nodes,
            memory_end: PhysAddr(ram.iter().map(|range| range.end().0).max().unwrap_or(0)),
        })
    }

    /// Creates a page of descriptor tables for a core; returns its address.
    pub(super) fn core_page(&mut self, core: Core) -> Result<u64, MapError> {
        let mut page = self.stock.take(PAGE_SIZE).ok_or(MapError::OutOfMemory)?;
        let virt = direct(page.range().start) as u64;
        let (_, stacks) = stack_tops(core.id.0.into(), 0);
        tables::fill_core_page(page.bytes_mut(), virt, stacks);
        let _ = page.into_range();
        Ok(virt)
    }

    /// Returns the top of the stack of a parked core.
    pub(super) fn parked_stack_top(core: Core) -> u64 {
        stack_tops(core.id.0.into(), PARKED_STACK_SIZE).0
    }

    /// Returns the top of the boot core's stack.
    pub(super) fn boot_stack_top(core: Core) -> u64 {
        stack_tops(core.id.0.into(), STACK_SIZE).0
    }

    /// Returns the address of the image's interrupt table, which all cores have mapped.
    pub(super) fn interrupt_table(&self) -> u64 {
        direct(self.interrupt_table) as u64
    }

    /// Returns the address of the interrupt table of parked cores.
    pub(super) fn parked_interrupt_table(&self) -> u64 {
        direct(self.parked_interrupt_table) as u64
    }

    /// Returns the NUMA nodes of memory.
    pub fn memory_nodes(&self) -> &MemoryNodes {
        &self.nodes
    }

    /// Returns the value of CR3 for this space.
    pub(crate) fn root(&self) -> PhysAddr {
        self.space.root()
    }

    /// Returns the largest page size that this machine has.
    pub(crate) fn largest_page(&self) -> LargestPage {
        self.largest
    }

    /// Maps device registers, uncached.
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`] if no memory for tables is left.
    ///
    /// # Safety
    /// The range must contain device registers, or no memory at all.
    pub(crate) unsafe fn map_registers(&mut self, registers: PhysRange) -> Result<Registers, MapError> {
        let offset = registers.start.0 % PAGE_SIZE;
        let start = PhysAddr(registers.start.0 - offset);
        let len_bytes = (offset + registers.len_bytes).next_multiple_of(PAGE_SIZE);
        // Large ranges get large pages if the physical address is aligned to them.
        let align = if len_bytes >= 0x20_0000 { 0x20_0000 } else { PAGE_SIZE };
        let virt = self.next_device.next_multiple_of(align);
        let memory = PhysRange::new(start, len_bytes);
        self.space.map(virt, memory, Rights::ReadWrite, Caching::Uncached, &mut self.stock)?;
        self.next_device = virt + len_bytes;
        let base = NonNull::new((virt + offset) as *mut u8).ok_or(MapError::OutOfMemory)?;
        // SAFETY: the range was just mapped, and is never unmapped; the caller guarantees that it contains registers.
        Ok(unsafe { Registers::new(base, registers.len_bytes as usize) })
    }
}
