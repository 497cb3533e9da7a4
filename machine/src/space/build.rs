//! The construction of a cell's address space.

use super::hot_plug::{HotPlug, growth_tables};
use super::layout::{STACKS_BYTES, map_stacks, stack_tops};
use super::pool::{pool_tables, region_tables};
use super::record::Record;
use super::{Built, CellSpace, Share, shootdown};
use crate::apic::io::{InterruptLines, RouteError, Trigger};
use crate::boot::OwnSpace;
use crate::boot::own_space::LOCAL_APIC_PHYS;
use crate::device::{Device, Function};
use crate::memory::{Contents, FreeRegions, MemoryNodes, Region, SharedRegion};
use crate::paging::{AddressSpace, Caching, LargestPage, MapError, Rights, leaf_bytes};
use crate::restart::{CellResources, OwnershipRecord, ownership_record_bytes};
use crate::tables;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_abi::descriptor::{
    self, BODY_OFFSET, Descriptor, DescriptorError, ImageSegment, InterruptMode, PoolRange, Transport,
    area_bytes,
};
use isola_abi::id::{ApicId, MAX_CORES, PhysAddr, PhysRange};
use isola_abi::layout::{
    DESCRIPTOR, DEVICES, DIRECT_MAP, LOCAL_APIC, PAGE_SIZE, REGION_TABLES, REGIONS, REPORT, ROOT_TABLE,
    SHARED, STACK_SIZE, TABLES, report_bytes,
};
use isola_abi::ledger;
use isola_abi::links::{LEAST_LINKS, link_slots};
use isola_abi::stage::Stage;

/// The first vector of devices on interrupt lines in a cell, and the number of such vectors.
pub const LINE_VECTORS: (u8, u8) = (0xe0, 16);

/// The number of memory ranges assumed for the length of a cell's ownership record, before the actual number is known.
const OWNERSHIP_RANGES: usize = 16;

/// The input for a cell.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The image's segments, on pages of their own.
    pub segments: Vec<Segment<'a>>,
    /// The image's entry point, from its note.
    pub entry: u64,
    /// The entry point of interrupt vector 0, from the image's note.
    pub vectors: u64,
    /// All memory of the cell.
    pub memory: Vec<Region>,
    /// Memory with read-only segments that other cells share. The cell holds it until it is dissolved.
    pub text: Option<SharedRegion>,
    /// Its devices, which no other cell or driver uses.
    pub devices: Vec<&'a mut Device>,
    /// The descriptor. The builder fills in memory, pool, image and devices, and raises the memory limit to the memory
    /// that the cell gets, if it is lower.
    pub descriptor: Descriptor,
}

/// A segment of an image.
#[derive(Debug)]
pub struct Segment<'a> {
    /// Address of its first byte.
    pub virt: u64,
    /// Its length in memory, in bytes.
    pub memory_bytes: u64,
    /// Permitted accesses.
    pub rights: Rights,
    /// Contents.
    pub bytes: SegmentBytes<'a>,
}

/// The contents of a segment.
#[derive(Debug)]
pub enum SegmentBytes<'a> {
    /// A copy of these bytes, as far as they fit, then zeros.
    Copied(&'a [u8]),
    /// Pages of [`Plan::text`]; the segment must not be writable.
    Shared {
        /// Offset of the segment's first page in the text, in bytes.
        offset: u64,
    },
    /// The memory at which the segment already is, on whole pages.
    InPlace(InPlace),
}

/// The address of a segment of the running image.
#[derive(Debug)]
pub struct InPlace(PhysAddr);

impl InPlace {
    /// Names the segment at `phys`.
    ///
    /// # Safety
    /// The whole segment must be there, and only the cell may use its memory once the cell is entered.
    pub(crate) unsafe fn new(phys: PhysAddr) -> Self {
        Self(phys)
    }
}

/// A failure to build a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// A segment or a device cannot be mapped, or the memory does not suffice.
    Map(MapError),
    /// The descriptor cannot be encoded.
    Descriptor(DescriptorError),
    /// A device's interrupt cannot be routed.
    Route(RouteError),
    /// The cores are none, too many, or not distinct, or there are too few core slots.
    Cores,
    /// A device has no driver in Isola, or works for another cell; or there are more devices than vectors.
    Devices,
}

/// The reason of a failure, and the memory.
#[derive(Debug)]
pub struct BuildFailure {
    /// The reason.
    pub error: BuildError,
    /// The memory, as it was given.
    pub memory: Vec<Region>,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Map(error) => error.fmt(f),
            Self::Descriptor(error) => error.fmt(f),
            Self::Route(error) => error.fmt(f),
            Self::Cores => write!(f, "a cell has 1 to {MAX_CORES} cores, each once, and a place for each"),
            Self::Devices => {
                write!(f, "a cell has at most {} devices, of known kinds and its own", LINE_VECTORS.1)
            }
        }
    }
}

impl core::error::Error for BuildError {}

impl From<MapError> for BuildError {
    fn from(error: MapError) -> Self {
        Self::Map(error)
    }
}

/// Returns the memory that a cell needs before it has any pool, in bytes, rounded up a little. The image's own segments
/// take `own_bytes` in whole pages, its shared ones `shared_bytes`; `cores` of the `core_slots` core slots are
/// occupied.
pub fn needed_bytes(own_bytes: u64, shared_bytes: u64, cores: usize, core_slots: usize) -> u64 {
    let tables = 45 + (own_bytes + shared_bytes).div_ceil(1 << 21) + core_slots as u64;
    let ownership = ownership_record_bytes(OWNERSHIP_RANGES, cores);
    own_bytes
        + report_bytes(core_slots, ledger::slots(own_bytes, core_slots))
        + area_bytes(link_slots(own_bytes))
        + ownership
        + tables * PAGE_SIZE
        + cores as u64 * STACKS_BYTES
}

impl CellSpace {
    /// Builds a cell's address space. Its devices work for it from here on, until they are reset.
    ///
    /// # Errors
    /// A [`BuildFailure`], which contains the memory.
    pub fn build(plan: Plan<'_>, own: &OwnSpace, lines: &mut InterruptLines) -> Result<Self, BuildFailure> {
        let Plan { segments, entry, vectors, memory, text, mut devices, mut descriptor } = plan;
        let grant: Vec<PhysRange> = memory.iter().map(Region::range).collect();
        descriptor.memory_bytes = grant.iter().map(|range| range.len_bytes).sum();
        descriptor.memory_max_bytes = descriptor.memory_max_bytes.max(descriptor.memory_bytes);
        let mut builder = match Builder::new(memory, text.as_ref().map(SharedRegion::range), own) {
            Ok(builder) => builder,
            Err(error) => return Err(failure(error.into(), grant)),
        };
        let (core_count, core_slots) = (descriptor.cores.len(), descriptor.core_slot_count as usize);
        let slots = ledger::slots(descriptor.memory_bytes, core_slots);
        let link_slots = link_slots_of(&descriptor);
        let first_apic = descriptor.cores.first().map_or(ApicId(0), |core| core.apic);
        let cores = descriptor.cores.clone();
        let ranges = grant.len();
        match builder.build(&segments, vectors, &devices, descriptor, lines, ranges) {
            Ok(mut parts) => {
                let resources = CellResources {
                    stage: Stage::Built,
                    memory: grant.clone(),
                    text: text.as_ref().map(SharedRegion::range),
                    root: builder.space.root(),
                    entry,
                    core_pages: parts.core_pages,
                    core_slots: core_slots as u32,
                    activity_slots: slots as u32,
                    link_slots: link_slots as u32,
                    descriptor: parts.descriptor,
                    report: parts.report,
                    tables: parts.growth_tables.iter().map(Region::range).collect(),
                    cores,
                    devices: devices.iter().map(|device| device.address()).collect(),
                    saved_state: Vec::new(),
                };
                let record = parts
                    .ownership
                    .take()
                    .map(|pages| Box::new(Record::new(OwnershipRecord::new(pages), resources)));
                let share: Share = Arc::new(Built {
                    root: builder.space.root(),
                    entry,
                    core_slots,
                    activity_slots: slots,
                    link_slots,
                    first_apic,
                    core_pages: parts.core_pages,
                    descriptor: parts.descriptor,
                    report: parts.report,
                    text,
                    cores_inside: AtomicUsize::new(0),
                });
                devices.iter_mut().for_each(|device| device.lend(share.clone()));
                share.live().core_slot_count.store(core_slots as u32, Ordering::Relaxed);
                share.live().activity_slots.store(slots as u32, Ordering::Relaxed);
                share.live().link_slots.store(link_slots as u32, Ordering::Relaxed);
                share.live().unplug_request.next_generation();
                let tables = FreeRegions::new(parts.growth_tables);
                let hot_plug = HotPlug::new(builder.space, tables, grant, parts.pool, core_count);
                Ok(Self { share, hot_plug, record })
            }
            Err(error) => {
                let own = devices.iter().filter(|device| !device.is_lent());
                for line in own.filter_map(|device| device.interrupt_line()) {
                    let _ = lines.mask(line);
                }
                Err(failure(error, grant))
            }
        }
    }
}

/// Returns the number of slots for links of a cell, or of a standalone image, which has no peers.
fn link_slots_of(descriptor: &Descriptor) -> usize {
    if descriptor.supervisor.is_some() { link_slots(descriptor.memory_bytes) } else { LEAST_LINKS }
}

fn failure(error: BuildError, grant: Vec<PhysRange>) -> BuildFailure {
    // SAFETY: the ranges are those of the given regions; the parts that were built from them are not used.
    let memory = grant.into_iter().map(|range| unsafe { Region::new(range, Contents::Unknown) }).collect();
    BuildFailure { error, memory }
}

/// The parts that the supervisor accesses later.
struct Parts {
    core_pages: PhysAddr,
    descriptor: PhysAddr,
    report: PhysAddr,
    /// Reserved for the page tables of later plugs.
    growth_tables: Vec<Region>,
    pool: Vec<PhysRange>,
    /// The pages of the ownership record, if the cell has a supervisor.
    ownership: Option<Region>,
}

struct Builder {
    space: AddressSpace,
    stock: FreeRegions,
    text: Option<PhysRange>,
    largest: LargestPage,
    switch_page: PhysAddr,
    next_device: u64,
    nodes: MemoryNodes,
    memory_end: PhysAddr,
}

impl Builder {
    fn new(memory: Vec<Region>, text: Option<PhysRange>, own: &OwnSpace) -> Result<Self, MapError> {
        let mut stock = FreeRegions::new(memory);
        let largest = own.largest_page();
        let space = AddressSpace::new(&mut stock, largest)?;
        let next_device = DEVICES + PAGE_SIZE;
        let (nodes, memory_end) = (own.nodes.clone(), own.memory_end);
        Ok(Self { space, stock, text, largest, switch_page: own.switch_page, next_device, nodes, memory_end })
    }

    fn build(
        &mut self,
        segments: &[Segment<'_>],
        vectors: u64,
        devices: &[&mut Device],
        mut descriptor: Descriptor,
        lines: &mut InterruptLines,
        ranges: usize,
    ) -> Result<Parts, BuildError> {
        let core_count = check_cores(&descriptor)?;
        let ownership = match &descriptor.supervisor {
            Some(_) => {
                let bytes = ownership_record_bytes(ranges, core_count as usize);
                Some(self.stock.take(bytes).ok_or(MapError::OutOfMemory)?)
            }
            None => None,
        };
        descriptor.image =
            segments.iter().map(|segment| self.add_segment(segment)).collect::<Result<_, _>>()?;
        for index in 0..core_count {
            map_stacks(&mut self.space, index, STACK_SIZE, &mut self.stock)?;
        }
        if descriptor.interrupt_mode == InterruptMode::XApic {
            self.map(
                LOCAL_APIC,
                PhysRange::new(LOCAL_APIC_PHYS, PAGE_SIZE),
                Rights::ReadWrite,
                Caching::Uncached,
            )?;
        }
        self.map(SHARED, PhysRange::new(self.switch_page, PAGE_SIZE), Rights::Execute, Caching::Cached)?;
        self.add_root_table()?;
        descriptor.devices = self.add_devices(devices, &descriptor, lines)?;
        let core_slots = descriptor.core_slot_count as usize;
        let core_pages = self.add_tables(vectors, core_slots as u64)?;
        let report_bytes = report_bytes(core_slots, ledger::slots(descriptor.memory_bytes, core_slots));
        let report = self.add_area(REPORT, report_bytes, Rights::ReadWrite)?.into_range().start;
        let descriptor_bytes = area_bytes(link_slots_of(&descriptor));
        let mut area = self.add_area(DESCRIPTOR, descriptor_bytes, Rights::Read)?;
        let growth_bytes = descriptor.memory_max_bytes - descriptor.memory_bytes;
        // Without a supervisor no operator can plug memory.
        let given = if descriptor.supervisor.is_some() { self.stock.len_bytes() } else { 0 };
        let growth_tables = match growth_tables(given, growth_bytes) {
            0 => Vec::new(),
            count => alloc::vec![self.stock.take(count * PAGE_SIZE).ok_or(MapError::OutOfMemory)?],
        };
        descriptor.region_tables = self.add_region_tables(growth_bytes)?;
        descriptor.pool = self.add_pool()?;
        let body = descriptor.encode().map_err(BuildError::Descriptor)?;
        let place = area.bytes_mut().get_mut(BODY_OFFSET..BODY_OFFSET + body.len());
        place.ok_or(BuildError::Descriptor(DescriptorError::TooLong))?.copy_from_slice(&body);
        let pool = descriptor.pool.iter().map(|range| range.memory).collect();
        let descriptor = area.into_range().start;
        Ok(Parts { pool, core_pages, descriptor, report, growth_tables, ownership })
    }

    fn map(
        &mut self,
        virt: u64,
        memory: PhysRange,
        rights: Rights,
        caching: Caching,
    ) -> Result<(), MapError> {
        self.space.map(virt, memory, rights, caching, &mut self.stock)
    }

    /// Takes zeroed memory and maps it.
    fn add_area(&mut self, virt: u64, len_bytes: u64, rights: Rights) -> Result<Region, MapError> {
        let region = self.stock.take(len_bytes).ok_or(MapError::OutOfMemory)?;
        self.map(virt, region.range(), rights, Caching::Cached)?;
        Ok(region)
    }

    fn add_segment(&mut self, segment: &Segment<'_>) -> Result<ImageSegment, BuildError> {
        let offset = segment.virt % PAGE_SIZE;
        let virt = segment.virt - offset;
        let len_bytes = offset
            .checked_add(segment.memory_bytes)
            .and_then(|len| len.checked_next_multiple_of(PAGE_SIZE))
            .ok_or(MapError::Misaligned(segment.memory_bytes))?;
        let memory = match &segment.bytes {
            SegmentBytes::Copied(bytes) => {
                let mut region = self.add_area(virt, len_bytes, segment.rights)?;
                let place = &mut region.bytes_mut()[offset as usize..];
                let len = bytes.len().min(place.len()).min(segment.memory_bytes as usize);
                place[..len].copy_from_slice(&bytes[..len]);
                region.into_range()
            }
            SegmentBytes::Shared { offset } => {
                let memory = self.in_text(*offset, len_bytes).ok_or(MapError::Misaligned(*offset))?;
                // A cell must not get a writable mapping of memory that it shares.
                if segment.rights == Rights::ReadWrite {
                    return Err(MapError::Misaligned(segment.virt).into());
                }
                self.map(virt, memory, segment.rights, Caching::Cached)?;
                memory
            }
            SegmentBytes::InPlace(InPlace(phys)) => {
                let memory = PhysRange::new(*phys, len_bytes);
                self.map(virt, memory, segment.rights, Caching::Cached)?;
                memory
            }
        };
        Ok(ImageSegment { virt, memory })
    }

    /// Returns the memory of that part of the text; `None` if the part is not within the text.
    fn in_text(&self, offset: u64, len_bytes: u64) -> Option<PhysRange> {
        let text = self.text?;
        let is_inside = offset.checked_add(len_bytes).is_some_and(|end| end <= text.len_bytes);
        is_inside.then(|| PhysRange::new(PhysAddr(text.start.0 + offset), len_bytes))
    }

    /// Maps the interrupt table, the shootdown page and the core slots' pages; returns the address of the latter.
    fn add_tables(&mut self, vectors: u64, core_slots: u64) -> Result<PhysAddr, MapError> {
        let mut interrupts = self.add_area(TABLES, PAGE_SIZE, Rights::Read)?;
        tables::fill_interrupt_table(interrupts.bytes_mut(), vectors);
        tables::lead_non_maskable_to(interrupts.bytes_mut(), shootdown::SHOOTDOWN);
        let _ = interrupts.into_range();
        let mut page = self.add_area(shootdown::SHOOTDOWN, PAGE_SIZE, Rights::Execute)?;
        shootdown::fill(page.bytes_mut(), vectors);
        let _ = page.into_range();
        let virt = TABLES + PAGE_SIZE;
        let mut pages = self.add_area(virt, core_slots * PAGE_SIZE, Rights::Read)?;
        for (index, page) in (0..).zip(pages.bytes_mut().chunks_exact_mut(PAGE_SIZE as usize)) {
            tables::fill_core_page(page, virt + index * PAGE_SIZE, stack_tops(index, STACK_SIZE).1);
        }
        Ok(pages.into_range().start)
    }

    /// Makes the topmost table readable, with all entries that it will ever have: programs in user mode have topmost
    /// tables of their own, with copies of these entries. Memory that is plugged later can be anywhere in the machine.
    fn add_root_table(&mut self) -> Result<(), MapError> {
        let root = PhysRange::new(self.space.root(), PAGE_SIZE);
        self.map(ROOT_TABLE, root, Rights::Read, Caching::Cached)?;
        for start in (0..self.memory_end.0).step_by(leaf_bytes(3) as usize) {
            self.space.add_top_entry(DIRECT_MAP + start, &mut self.stock)?;
        }
        Ok(())
    }

    /// Reserves and links the page tables of the region area, and maps them so that the cell can write them.
    fn add_region_tables(&mut self, growth_bytes: u64) -> Result<PhysRange, MapError> {
        let len_bytes = region_tables(self.stock.len_bytes(), growth_bytes) * PAGE_SIZE;
        // A large cell has many such pages: they are mapped as large pages if possible.
        let large = leaf_bytes(1);
        let aligned = if len_bytes < large { None } else { self.stock.take_aligned(len_bytes, large) };
        let tables = aligned.or_else(|| self.stock.take(len_bytes)).ok_or(MapError::OutOfMemory)?;
        let range = tables.into_range();
        self.map(REGION_TABLES, range, Rights::ReadWrite, Caching::Cached)?;
        self.space.link(REGIONS, range.start)?;
        Ok(range)
    }

    /// Maps the remaining memory as the pool. Takes the tables for that first, as many as it can need.
    fn add_pool(&mut self) -> Result<Vec<PoolRange>, MapError> {
        let mut left = core::mem::take(&mut self.stock).into_regions();
        let needed = pool_tables(&left, self.largest) * PAGE_SIZE;
        let mut stock = FreeRegions::new(left);
        let for_tables = stock.take(needed).ok_or(MapError::OutOfMemory)?;
        self.stock = FreeRegions::new(alloc::vec![for_tables]);
        left = stock.into_regions();
        left.sort_by_key(|region| region.range().start);
        let mut pool: Vec<PhysRange> = Vec::new();
        for mut region in left {
            region.scrub();
            let range = region.into_range();
            self.map(DIRECT_MAP + range.start.0, range, Rights::ReadWrite, Caching::Cached)?;
            match pool.last_mut() {
                Some(last) if last.end() == range.start => last.len_bytes += range.len_bytes,
                _ => pool.push(range),
            }
        }
        let cut = self.nodes.cut(&pool).into_iter();
        Ok(cut.map(|(node, memory)| PoolRange { memory, node }).collect())
    }

    fn add_devices(
        &mut self,
        devices: &[&mut Device],
        descriptor: &Descriptor,
        lines: &mut InterruptLines,
    ) -> Result<Vec<descriptor::Device>, BuildError> {
        let first_core = descriptor.cores.first().ok_or(BuildError::Cores)?.apic;
        let (first_vector, count) = LINE_VECTORS;
        if devices.len() > usize::from(count) || devices.iter().any(|device| device.is_lent()) {
            return Err(BuildError::Devices);
        }
        let mut added = Vec::new();
        for (vector, device) in (first_vector..).zip(devices) {
            let kind = device.kind().ok_or(BuildError::Devices)?;
            let transport = match device.function() {
                Function::Pci(function) => {
                    let config = self.add_registers(function.config_address())?;
                    let bars = function.bars().iter().map(|bar| {
                        let virt = self.add_registers(bar.memory)?;
                        Ok(descriptor::Bar { index: bar.index, virt, len_bytes: bar.memory.len_bytes })
                    });
                    Transport::Pci { config, bars: bars.collect::<Result<_, MapError>>()? }
                }
                Function::Mmio(device) => {
                    let registers = self.add_registers(device.register_range())?;
                    let line = device.interrupt_line();
                    lines.route(line, Trigger::Edge, first_core, vector).map_err(BuildError::Route)?;
                    Transport::Mmio { registers, vector }
                }
            };
            added.push(descriptor::Device { kind, transport });
        }
        Ok(added)
    }

    /// Maps the pages with device registers, and returns the virtual address of the registers.
    fn add_registers(&mut self, registers: PhysRange) -> Result<u64, MapError> {
        let offset = registers.start.0 % PAGE_SIZE;
        let len_bytes = (offset + registers.len_bytes).next_multiple_of(PAGE_SIZE);
        let memory = PhysRange::new(PhysAddr(registers.start.0 - offset), len_bytes);
        let virt = self.next_device;
        self.map(virt, memory, Rights::ReadWrite, Caching::Uncached)?;
        self.next_device += len_bytes;
        Ok(virt + offset)
    }
}

fn check_cores(descriptor: &Descriptor) -> Result<u64, BuildError> {
    let cores = &descriptor.cores;
    let has_slots = (cores.len()..=MAX_CORES).contains(&(descriptor.core_slot_count as usize));
    let once = (1..cores.len()).all(|index| !cores[..index].iter().any(|core| core.id == cores[index].id));
    if once && has_slots && (1..=MAX_CORES).contains(&cores.len()) {
        Ok(cores.len() as u64)
    } else {
        Err(BuildError::Cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_sets_of_cores_are_rejected() {
        use isola_abi::descriptor::{Clock, Core};
        use isola_abi::id::{ApicId, CellId, CoreId, NodeId};
        use isola_abi::topology::CoreSite;
        let site = |id| CoreSite::alone(CoreId(id));
        let core = |id| Core { id: CoreId(id), apic: ApicId(id), node: NodeId(0), site: site(id) };
        let descriptor = |cores: Vec<Core>| Descriptor {
            version: isola_abi::VERSION,
            cell: CellId(1),
            name: "cell".into(),
            arguments: Vec::new(),
            core_slot_count: cores.len() as u32,
            core_request_ns: 0,
            cores,
            pool: Vec::new(),
            memory_bytes: 0,
            memory_max_bytes: 0,
            region_tables: PhysRange::default(),
            image: Vec::new(),
            devices: Vec::new(),
            volumes: Vec::new(),
            served_volumes: Vec::new(),
            network_service: isola_abi::network_service::NetworkService::None,
            clock: Clock { tsc_hz: 1, apic_timer_hz: 1, tsc_at_epoch: 0, unix_ns_at_epoch: 0 },
            address: None,
            supervisor: None,
            halt_mode: isola_abi::descriptor::HaltMode::Hlt,
            grid: isola_abi::grid::GridSetup::default(),
            interrupt_mode: InterruptMode::X2Apic,
        };
        assert_eq!(check_cores(&descriptor(alloc::vec![core(1), core(3)])), Ok(2));
        assert_eq!(check_cores(&descriptor(alloc::vec![core(1), core(3), core(1)])), Err(BuildError::Cores));
        assert_eq!(check_cores(&descriptor(Vec::new())), Err(BuildError::Cores));
        let crowded = Descriptor { core_slot_count: 1, ..descriptor(alloc::vec![core(1), core(3)]) };
        assert_eq!(check_cores(&crowded), Err(BuildError::Cores));
    }
}
