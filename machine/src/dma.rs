//! Memory that drivers and devices share, and the addresses by which devices access it.
//!
//! The heap of a supervisor or a cell is never paged, so any buffer on it can be lent to a device as it is. Most of it
//! is in the direct map, physically contiguous within each allocation. A virtually contiguous allocation of a cell has
//! several physical pieces in its region area; [`device_piece`] returns the address of each, once [`set_region_area`]
//! has registered the region area. Devices can also read the image's code and constants, and write its variables, once
//! [`set_image`] has registered the image's segments. Code and constants have no address for a device that writes, as
//! many cells may share them.
//!
//! Not here: the rule for when a buffer may be used. A driver keeps a lent buffer until the device has returned it, and
//! resets the device before it frees a buffer that the device has not returned.

use crate::authority::Authority;
use crate::cpu;
use crate::dma_peer::Block;
use crate::image_bounds::ImageBounds;
use crate::region_area::RegionArea;
use alloc::alloc::{alloc_zeroed, dealloc, handle_alloc_error};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::arch::asm;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use isola_abi::descriptor::ImageSegment;
use isola_abi::id::PhysRange;
use isola_abi::layout::{DIRECT_MAP, IMAGE, PAGE_SIZE, REGION_TABLES, REGIONS};

/// A device's access to lent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The device reads it.
    DeviceReads,
    /// The device writes it.
    DeviceWrites,
}

/// The image with its physical addresses, once known. Leaked on purpose: it is set once a run.
static PLACED_IMAGE: AtomicPtr<PlacedImage> = AtomicPtr::new(core::ptr::null_mut());

/// The image's segments in physical memory.
struct PlacedImage {
    segments: Vec<ImageSegment>,
    bounds: ImageBounds,
    /// Virtual addresses of the variables, and the physical address of their start: a shortcut, as the heap's first
    /// pages are there. Empty if the variables are not contiguous in physical memory.
    variables: Range<u64>,
    variables_at: u64,
}

/// Registers the physical addresses of the running image's segments.
pub(crate) fn set_image(segments: Vec<ImageSegment>) {
    let bounds = ImageBounds::of_image();
    let all = bounds.data_start..bounds.data_end;
    let len = (all.end - all.start) as usize;
    let at = in_image(&segments, &bounds, all.start, len, Access::DeviceWrites);
    let (variables, variables_at) = at.map_or((0..0, 0), |at| (all, at));
    let image = PlacedImage { segments, bounds, variables, variables_at };
    PLACED_IMAGE.store(alloc::boxed::Box::leak(alloc::boxed::Box::new(image)), Ordering::Release);
}

/// The cell's region area, once known.
static REGION_AREA: AtomicPtr<RegionArea> = AtomicPtr::new(core::ptr::null_mut());

/// Registers the running cell's region area.
pub fn set_region_area(_: Authority, area: &'static RegionArea) {
    REGION_AREA.store(core::ptr::from_ref(area).cast_mut(), Ordering::Release);
}

/// Returns the device address of the memory at `address` for that access, and the number of its `len` bytes (at least
/// one) that are contiguous there, also at least one; the rest is elsewhere. Returns `None` for stacks and registers,
/// for addresses of regions that are not mapped, for the image before [`set_image`], and, if the device writes, for all
/// of the image but its variables.
///
/// In host tests, which have no direct map, devices are simulated and use virtual addresses.
#[inline]
pub fn device_piece(address: *const u8, len: usize, access: Access) -> Option<(u64, usize)> {
    match in_direct_map(address as u64) {
        Some(start) => Some((start, len)),
        None => piece_elsewhere(address as u64, len, access),
    }
}

fn piece_elsewhere(address: u64, len: usize, access: Access) -> Option<(u64, usize)> {
    match address {
        IMAGE.. => {
            // SAFETY: the pointer is null, or `set_image` leaked the value behind it, which is never freed.
            let image = unsafe { PLACED_IMAGE.load(Ordering::Acquire).as_ref() }?;
            let variables = &image.variables;
            let room = variables.end.saturating_sub(address);
            if address >= variables.start && len as u64 <= room {
                return Some((image.variables_at + (address - variables.start), len));
            }
            Some((in_image(&image.segments, &image.bounds, address, len, access)?, len))
        }
        REGION_TABLES.. => None,
        REGIONS.. => {
            let start = memory_at(address)?.start.0;
            Some((start, len_in_a_row(address, start, len))).filter(|&(_, in_a_row)| in_a_row > 0)
        }
        DIRECT_MAP.. => Some((address - DIRECT_MAP, len)),
        _ => Some((address, len)),
    }
}

/// Returns the physical address of `len` bytes at `address` in an image with these segments and bounds, if one segment
/// contains all of them and the device may access them so.
fn in_image(
    segments: &[ImageSegment],
    bounds: &ImageBounds,
    address: u64,
    len: usize,
    access: Access,
) -> Option<u64> {
    let end = address.checked_add(len as u64)?;
    let is_variable = bounds.data_start <= address && end <= bounds.data_end;
    if access == Access::DeviceWrites && !is_variable {
        return None;
    }
    let inside =
        |segment: &&ImageSegment| segment.virt <= address && end - segment.virt <= segment.memory.len_bytes;
    // Variables are the last segment and the most frequent case.
    segments.iter().rev().find(inside).map(|segment| segment.memory.start.0 + (address - segment.virt))
}

/// Returns the physical address of an address in the direct map, which has nearly all buffers.
#[inline]
fn in_direct_map(address: u64) -> Option<u64> {
    let offset = address.wrapping_sub(DIRECT_MAP);
    (offset < REGIONS - DIRECT_MAP).then_some(offset)
}

/// Returns how many of the `len` bytes from `address`, in the region area, are physically contiguous.
#[cold]
fn len_in_a_row(address: u64, start: u64, len: usize) -> usize {
    let mut found = 0;
    while found < len as u64 {
        match memory_at(address + found) {
            Some(piece) if piece.start.0 == start + found => found += piece.len_bytes,
            _ => break,
        }
    }
    len.min(found as usize)
}

/// Returns the memory that is mapped at an address of the region area.
fn memory_at(address: u64) -> Option<PhysRange> {
    // SAFETY: the pointer is null or came from a `&'static RegionArea`.
    unsafe { REGION_AREA.load(Ordering::Acquire).as_ref() }?.memory_at(address)
}

/// Memory that can be lent to a device: to be read by it (for sending) or filled by it.
///
/// # Safety
/// Implementors promise that the segments are valid memory at fixed addresses while the value lives and is not borrowed
/// mutably, also when the value itself is moved; and, if the buffer is lent for writing, that no other code reads or
/// writes the segments meanwhile.
pub unsafe trait DmaBuffer {
    /// Calls `visit` with the address and length in bytes of each contiguous piece of the memory, in order.
    fn for_each_segment(&self, visit: impl FnMut(*const u8, usize));

    /// Returns the same pieces if there are one or two, none of them empty: the driver's fast path. Returns `None` if
    /// the number differs, or the implementor does not support this call.
    #[inline]
    fn segment_pair(&self) -> Option<SegmentPair> {
        None
    }
}

/// One or two pieces of memory: addresses and lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPair {
    /// The first piece.
    pub first: (*const u8, usize),
    /// The second piece, if there are two.
    pub second: Option<(*const u8, usize)>,
}

// SAFETY: the segments are those of the elements, each of which makes the same promise; the elements stay at their
// addresses while the vector is not borrowed mutably, and their segments stay also when the vector moves.
unsafe impl<B: DmaBuffer> DmaBuffer for Vec<B> {
    fn for_each_segment(&self, mut visit: impl FnMut(*const u8, usize)) {
        for buffer in self {
            buffer.for_each_segment(&mut visit);
        }
    }

    #[inline]
    fn segment_pair(&self) -> Option<SegmentPair> {
        let [buffer] = &self[..] else { return None };
        buffer.segment_pair()
    }
}

/// Zeroed, page-aligned memory that driver and device both read and write at any time, for example a ring.
#[derive(Debug)]
pub struct DmaRegion {
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
}

/// The minimum alignment of every region, in bytes: at least that of the words that are read and written.
const REGION_ALIGN: usize = 16;

/// The owner of a region's memory.
#[derive(Debug)]
enum Backing {
    /// The region: a heap allocation of that layout.
    Heap(Layout),
    /// A block that a device in software also accesses.
    Shared { _memory: Arc<Block> },
}

// SAFETY: the region owns its memory; all access is by volatile reads and writes of whole words.
unsafe impl Send for DmaRegion {}

macro_rules! accessors {
    ($($read:ident $write:ident $type:ty;)*) => {$(
        #[doc = concat!("Reads the little-endian `", stringify!($type), "` at `offset`.")]
        ///
        /// # Panics
        /// If `offset` is not aligned, or the word is not within the region.
        #[inline]
        pub fn $read(&self, offset: usize) -> $type {
            // SAFETY: `place` returns an aligned address within the region, which `self` owns.
            <$type>::from_le(unsafe { self.place::<$type>(offset).read_volatile() })
        }

        #[doc = concat!("Writes the little-endian `", stringify!($type), "` at `offset`.")]
        ///
        /// # Panics
        /// As the read.
        #[inline]
        pub fn $write(&mut self, offset: usize, value: $type) {
            // SAFETY: as for the read; `&mut self` excludes other accesses by the driver's side.
            unsafe { self.place::<$type>(offset).write_volatile(value.to_le()) }
        }
    )*};
}

impl DmaRegion {
    /// Creates a region of at least `len` bytes, rounded up to whole pages. Fails as the allocator does if no such
    /// memory is physically contiguous.
    pub fn new(len: usize) -> Self {
        let len = len.max(1).next_multiple_of(PAGE_SIZE as usize);
        let layout = Layout::from_size_align(len, PAGE_SIZE as usize).expect("a region of sane length");
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout));
        if device_piece(base.as_ptr(), len, Access::DeviceWrites).is_some_and(|(_, in_a_row)| in_a_row < len)
        {
            handle_alloc_error(layout);
        }
        Self { base, len, backing: Backing::Heap(layout) }
    }

    /// Creates a region of the `len` bytes from `offset` in a block that a device in software also accesses. Returns
    /// `None` if the block does not contain all of them, or `offset` is not aligned.
    ///
    /// # Safety
    /// No other code of the driver's side may use these bytes.
    pub(crate) unsafe fn in_block(block: &Arc<Block>, offset: usize, len: usize) -> Option<Self> {
        let base = block.piece(offset, len)?;
        if !base.addr().get().is_multiple_of(REGION_ALIGN) {
            return None;
        }
        Some(Self { base, len, backing: Backing::Shared { _memory: Arc::clone(block) } })
    }

    /// Returns the length of the region, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false: a region has at least a page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the device address of the byte at `offset`.
    ///
    /// # Panics
    /// If the region was created before the direct map, or `offset` is outside of it.
    pub fn device_address(&self, offset: usize) -> u64 {
        let piece = device_piece(self.place::<u8>(offset), 1, Access::DeviceWrites);
        piece.expect("the heap is in the direct map").0
    }

    #[inline]
    fn place<T>(&self, offset: usize) -> *mut T {
        const { assert!(align_of::<T>() <= REGION_ALIGN) };
        let fits = self.len.checked_sub(size_of::<T>()).is_some_and(|last| offset <= last);
        if !fits || !offset.is_multiple_of(align_of::<T>()) {
            misplaced(offset);
        }
        // SAFETY: `offset` is within the region, as checked above.
        unsafe { self.base.add(offset) }.cast::<T>().as_ptr()
    }

    /// Returns the address of the `len` bytes from `offset`; `None` if they are not all within the region, or not
    /// aligned.
    pub(crate) fn piece(&self, offset: usize, len: usize, align: usize) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.len || !offset.is_multiple_of(align) || align > REGION_ALIGN {
            return None;
        }
        // SAFETY: `offset` is within the region, as checked above.
        Some(unsafe { self.base.add(offset) })
    }

    accessors! {
        read_u8 write_u8 u8;
        read_u16 write_u16 u16;
        read_u32 write_u32 u32;
        read_u64 write_u64 u64;
    }
}

#[cold]
#[inline(never)]
fn misplaced(offset: usize) -> ! {
    panic!("offset {offset:#x} is outside of its region, or not aligned");
}

impl Drop for DmaRegion {
    fn drop(&mut self) {
        if let Backing::Heap(layout) = self.backing {
            // SAFETY: `new` allocated the memory with the same layout. The driver guarantees that no device uses it any
            // more, see the module documentation.
            unsafe { dealloc(self.base.as_ptr(), layout) }
        }
    }
}

/// Orders earlier writes to memory before later ones, as devices see them.
#[inline]
pub fn write_barrier() {
    core::sync::atomic::fence(Ordering::Release);
}

/// Orders earlier reads before later ones.
#[inline]
pub fn read_barrier() {
    core::sync::atomic::fence(Ordering::Acquire);
}

/// Orders all earlier writes to memory before all later reads, for the step between publishing an index and reading
/// whether the other side wants a notification.
///
/// On a machine with one processor, QEMU 7.2's emulator executes MFENCE and locked operations without a barrier,
/// although devices run in threads of their own. A notification can then get lost, and the queue stalls for ever. On an
/// emulator the cycle counter is therefore read as well: QEMU takes a lock for that, which is a barrier.
#[inline]
pub fn full_barrier() {
    // SAFETY: the instruction changes neither registers nor memory. The compiler moves no access to memory across it.
    unsafe { asm!("mfence", options(nostack, preserves_flags)) };
    match EMULATION.load(Ordering::Relaxed) {
        NATIVE => {}
        EMULATED => read_counter(),
        _ => {
            EMULATION.store(if cpu::is_emulated() { EMULATED } else { NATIVE }, Ordering::Relaxed);
            read_counter();
        }
    }
}

/// Whether an emulator executes this code: one of the values below, and zero until the first [`full_barrier`].
static EMULATION: AtomicU8 = AtomicU8::new(0);
const NATIVE: u8 = 1;
const EMULATED: u8 = 2;

/// Reads the cycle counter, for the side effect on an emulator.
#[inline]
fn read_counter() {
    // SAFETY: the instruction changes only the two declared registers. The compiler moves no memory access across it.
    unsafe { asm!("rdtsc", out("eax") _, out("edx") _, options(nostack, preserves_flags)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_zeroed_whole_pages() {
        let mut region = DmaRegion::new(5000);
        assert_eq!(region.len(), 8192);
        assert!((0..8192).step_by(8).all(|offset| region.read_u64(offset) == 0));
        region.write_u32(8188, 0x0102_0304);
        assert_eq!(region.read_u8(8188), 4);
        assert_eq!(region.device_address(0) % PAGE_SIZE, 0);
    }

    #[test]
    #[should_panic(expected = "outside of its region")]
    fn an_access_outside_of_a_region_panics() {
        DmaRegion::new(1).read_u16(4095);
    }

    #[test]
    fn stacks_registers_and_unmapped_regions_have_no_device_address() {
        let piece = |address: u64| device_piece(address as *const u8, 1, Access::DeviceReads);
        assert_eq!(piece(DIRECT_MAP + 0x1234), Some((0x1234, 1)));
        assert_eq!(piece(REGIONS), None);
        assert_eq!(piece(isola_abi::layout::STACKS), None);
        assert_eq!(piece(isola_abi::layout::DEVICES), None);
    }

    #[test]
    fn devices_read_code_and_constants_and_write_only_variables() {
        let at = |page: u64| IMAGE + page * PAGE_SIZE;
        let bounds = ImageBounds {
            text_start: at(0),
            text_end: at(2),
            rodata_start: at(2),
            rodata_end: at(3),
            data_start: at(3),
            data_end: at(5),
            variables_end: at(4),
        };
        let segment = |first: u64, pages: u64, phys: u64| ImageSegment {
            virt: at(first),
            memory: PhysRange::new(isola_abi::id::PhysAddr(phys), pages * PAGE_SIZE),
        };
        // First the segments of a cell, then those of an image that is contiguous as loaded.
        let apart = [segment(0, 2, 0x90_0000), segment(2, 1, 0x90_2000), segment(3, 2, 0x20_0000)];
        for (segments, variables) in [(&apart[..], 0x20_0000), (&[segment(0, 5, 0x90_0000)], 0x90_3000)] {
            let place = |address, len, access| in_image(segments, &bounds, address, len, access);
            for address in [at(0) + 5, at(1), at(2), at(3) - 1] {
                let phys = 0x90_0000 + (address - IMAGE);
                assert_eq!(place(address, 1, Access::DeviceReads), Some(phys));
                assert_eq!(place(address, 1, Access::DeviceWrites), None, "{address:#x}");
            }
            for access in [Access::DeviceReads, Access::DeviceWrites] {
                assert_eq!(place(at(3), 2 * PAGE_SIZE as usize, access), Some(variables));
                assert_eq!(place(at(5) - 1, 1, access), Some(variables + 2 * PAGE_SIZE - 1));
                assert_eq!(place(at(5) - 1, 2, access), None, "behind the image");
                assert_eq!(place(at(5), usize::MAX, access), None);
            }
            assert_eq!(place(at(3) - 1, 2, Access::DeviceWrites), None, "a constant and a variable");
        }
    }
}
