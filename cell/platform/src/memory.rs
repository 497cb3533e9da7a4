//! Memory that the platform wants back from holders in the cell that could do without some.

use core::fmt;
use core::ops::Range;
use isola_abi::layout::PAGE_SIZE;

const PAGE: usize = PAGE_SIZE as usize;

/// The platform's demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MemoryDemand {
    /// There is none.
    #[default]
    None,
    /// This many bytes are to be freed, whichever they are.
    Free(usize),
    /// This memory is not to be in use: its holders copy what they have there to other memory, or free it.
    Vacate(VacatedMemory),
}

/// Memory that is to become free: a range of pages.
///
/// A heap object of several pieces is at addresses of its own (docs/decisions/0019-virtually-contiguous-allocations.md), and
/// some of its pages can be in the range.
#[derive(Clone)]
pub struct VacatedMemory {
    addresses: Range<usize>,
    address_of_piece: fn(usize) -> usize,
}

impl VacatedMemory {
    /// Returns the memory at these addresses. `address_of_piece` returns the address at which the byte at an address of an
    /// object of several pieces is as memory of the page allocator, and any other address as it is.
    pub fn new(addresses: Range<usize>, address_of_piece: fn(usize) -> usize) -> Self {
        Self { addresses, address_of_piece }
    }

    /// Returns its addresses.
    pub fn addresses(&self) -> &Range<usize> {
        &self.addresses
    }

    /// Returns whether some of the `len_bytes` bytes from `start` on, within one allocation, are in it.
    pub fn has_some_of<T: ?Sized>(&self, start: *const T, len_bytes: usize) -> bool {
        let start = start.cast::<u8>().addr();
        let end = start.saturating_add(len_bytes.max(1));
        if (self.address_of_piece)(start) == start {
            return start < self.addresses.end && end > self.addresses.start;
        }
        (start..end)
            .step_by(PAGE)
            .chain([end - 1])
            .any(|address| self.addresses.contains(&(self.address_of_piece)(address)))
    }

    /// Returns whether some of the object's bytes are in it.
    pub fn has_object<T: ?Sized>(&self, object: &T) -> bool {
        self.has_some_of(core::ptr::from_ref(object), size_of_val(object))
    }
}

impl PartialEq for VacatedMemory {
    fn eq(&self, other: &Self) -> bool {
        self.addresses == other.addresses
    }
}

impl Eq for VacatedMemory {}

impl fmt::Debug for VacatedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VacatedMemory({:#x}..{:#x})", self.addresses.start, self.addresses.end)
    }
}

/// The memory that the platform manages for the cell, in bytes. All but the named uses is objects of the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlatformMemory {
    /// All of it.
    pub total: usize,
    /// Free pages.
    pub free: usize,
    /// The page allocator's records of the pages.
    pub records: usize,
    /// Parts of the heap that no object uses: free objects in the caches of cores and in partly used pages.
    pub unused_objects: usize,
    /// Pages of regions, such as the stacks of fibers.
    pub regions: usize,
    /// Objects of the heap that network devices receive into.
    pub receive_buffers: usize,
    /// Objects of the heap that are page tables of programs.
    pub program_tables: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object at 16 MiB consists of the pages at 64, 32 and 48 KiB.
    fn address_of_piece(address: usize) -> usize {
        match address.checked_sub(16 << 20) {
            Some(offset) => [64 << 10, 32 << 10, 48 << 10][offset / PAGE] + offset % PAGE,
            None => address,
        }
    }

    fn has_some_of(memory: Range<usize>, start: usize, len_bytes: usize) -> bool {
        let start = core::ptr::without_provenance::<u8>(start);
        VacatedMemory::new(memory, address_of_piece).has_some_of(start, len_bytes)
    }

    #[test]
    fn an_object_is_in_it_if_one_byte_is() {
        let memory = 8 << 10..12 << 10;
        for (start, len, is_inside) in [
            (8 << 10, 1, true),
            ((12 << 10) - 1, 1, true),
            (12 << 10, 1, false),
            (4 << 10, 4 << 10, false),
            (4 << 10, (4 << 10) + 1, true),
            (4 << 10, 1 << 20, true),
            (8 << 10, 0, true),
        ] {
            assert_eq!(has_some_of(memory.clone(), start, len), is_inside, "{len} bytes at {start}");
        }
    }

    #[test]
    fn an_object_of_several_pieces_is_in_it_if_one_piece_is() {
        let object = 16 << 20;
        for (at, pages) in [(64, 0..1), (32, 1..2), (48, 2..3)] {
            let memory = at << 10..(at << 10) + PAGE;
            assert!(has_some_of(memory.clone(), object, 3 * PAGE));
            assert!(has_some_of(memory.clone(), object + pages.start * PAGE + 17, 1));
            // The bytes before the piece, and those behind it.
            assert!(!has_some_of(memory.clone(), object, pages.start * PAGE) || pages.start == 0);
            assert!(
                pages.end == 3 || !has_some_of(memory, object + pages.end * PAGE, (3 - pages.end) * PAGE)
            );
        }
        assert!(!has_some_of(0..16 << 10, object, 3 * PAGE));
        // The last byte is in the second page, in which no multiple of a page from the start on is.
        assert!(has_some_of(32 << 10..36 << 10, object + PAGE - 1, 2));
    }
}
