//! Size classes: the actual sizes of objects, and the shapes of their spans.
//!
//! The sizes are 16 to 128 bytes in steps of 16, then four classes per doubling up to 32 KiB: an object of more than
//! 128 bytes wastes at most a fifth. A span is a naturally aligned block of pages, filled with objects from its first
//! byte on. So an object is aligned as its size is, up to the size of the span, and the object's address yields the
//! first page of its span.

use crate::pages::PAGE_SIZE;
use core::alloc::Layout;

/// The number of classes.
pub(crate) const CLASSES: usize = 40;

/// The size of the largest class, in bytes. Larger objects come from the page allocator directly.
pub const LARGEST: usize = 32 * 1024;

/// The size of the largest class with spans of one page, in bytes. Objects up to that size are always physically
/// contiguous.
pub const LARGEST_OF_PAGES: usize = 512;

/// The granularity of sizes and alignments, in bytes.
pub(crate) const GRAIN: usize = 16;

/// A size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u8);

/// The constants of a class.
#[derive(Clone, Copy)]
pub(crate) struct ClassShape {
    /// Size of an object, in bytes.
    pub size: u32,
    /// Pages of a span, a power of two.
    pub span_pages: u32,
    /// Objects of a span.
    pub capacity: u16,
    /// The maximum number of objects in a core's cache.
    pub most_cached: u16,
}

/// The maximum number of objects of any class in a core's cache.
pub(crate) const MOST_CACHED: usize = 128;

/// The maximum bytes of a class in a core's cache; but the maximum is never below two objects.
const MOST_CACHED_BYTES: usize = 64 * 1024;

const SHAPES: [ClassShape; CLASSES] = {
    let mut shapes = [ClassShape { size: 0, span_pages: 0, capacity: 0, most_cached: 0 }; CLASSES];
    let mut index = 0;
    while index < CLASSES {
        shapes[index] = shape_of(index);
        index += 1;
    }
    shapes
};

/// Maps a size, in units of 16 bytes and rounded up, to its class.
const CLASS_OF_GRAINS: [u8; LARGEST / GRAIN + 1] = {
    let mut classes = [0; LARGEST / GRAIN + 1];
    let mut class = 0;
    let mut grains = 0;
    while grains < classes.len() {
        if grains * GRAIN > SHAPES[class].size as usize {
            class += 1;
        }
        classes[grains] = class as u8;
        grains += 1;
    }
    assert!(class == CLASSES - 1);
    classes
};

static SHAPE_TABLE: [ClassShape; CLASSES] = SHAPES;
static CLASS_TABLE: [u8; LARGEST / GRAIN + 1] = CLASS_OF_GRAINS;

const fn shape_of(index: usize) -> ClassShape {
    let size = if index < 8 {
        (index + 1) * GRAIN
    } else {
        let doubling = (index - 8) / 4;
        (128 << doubling) + (32 << doubling) * ((index - 8) % 4 + 1)
    };
    // Spans of large objects have a lower minimum of objects, lest most of a small cell's memory is in half-used spans.
    let enough = if size > 8 * 1024 { 4 } else { 8 };
    let mut span_pages = 1;
    loop {
        let span = span_pages * PAGE_SIZE;
        if span / size >= enough && (span % size) * 8 <= span {
            break;
        }
        span_pages *= 2;
    }
    let most_cached = MOST_CACHED_BYTES / size;
    let most_cached = if most_cached > MOST_CACHED { MOST_CACHED } else { most_cached };
    let most_cached = if most_cached < 2 { 2 } else { most_cached };
    ClassShape {
        size: size as u32,
        span_pages: span_pages as u32,
        capacity: (span_pages * PAGE_SIZE / size) as u16,
        most_cached: most_cached as u16,
    }
}

impl Class {
    /// Returns the class of objects of that layout; `None` if they come from the page allocator directly.
    pub const fn of(layout: Layout) -> Option<Self> {
        // A size that is a multiple of the alignment has a class whose size is one, too. The addition cannot overflow,
        // by the guarantee of `Layout`.
        let size = if layout.align() <= GRAIN {
            layout.size()
        } else {
            (layout.size() + layout.align() - 1) & !(layout.align() - 1)
        };
        if size <= LARGEST { Some(Self::of_size(size)) } else { None }
    }

    /// Returns the class of objects of `size` bytes, at most [`LARGEST`], aligned at most at [`GRAIN`].
    #[inline(always)]
    pub const fn of_size(size: usize) -> Self {
        Self(CLASS_TABLE[size.div_ceil(GRAIN)])
    }

    /// Returns all classes, smallest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..CLASSES as u8).map(Self)
    }

    /// Returns the index of the class, less than [`CLASSES`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the next limit of a bin whose limit was too small: twice as much, up to the class's maximum.
    pub fn raised(self, limit: usize) -> usize {
        (limit * 2).max(2).min(limit.max(self.shape().most_cached.into()))
    }

    /// Returns the constants of the class.
    pub fn shape(self) -> &'static ClassShape {
        &SHAPE_TABLE[self.index()]
    }
}

/// Returns `table[class.index()]` without a bounds check, for the path of every allocation.
#[inline(always)]
pub(crate) fn entry<T>(table: &[T; CLASSES], class: Class) -> &T {
    // SAFETY: only this file creates a `Class`, with an index below `CLASSES`: from `CLASS_TABLE`, whose last and
    // largest entry is asserted to be `CLASSES - 1`, or in `all`.
    unsafe { table.get_unchecked(class.index()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_gets_the_smallest_sufficient_class() {
        let sizes: [usize; CLASSES] = core::array::from_fn(|index| SHAPES[index].size as usize);
        assert!(sizes.is_sorted());
        for size in 1..=LARGEST {
            let wanted = sizes.iter().position(|&class| class >= size);
            assert_eq!(wanted, Some(Class::of_size(size).index()));
        }
    }

    #[test]
    fn the_class_of_a_layout_has_its_alignment() {
        for align in (0..20).map(|shift| 1 << shift) {
            for size in 1..=LARGEST + 1 {
                let layout = Layout::from_size_align(size, align).unwrap();
                if let Some(class) = Class::of(layout) {
                    let shape = class.shape();
                    assert!(shape.size as usize >= size);
                    assert_eq!(shape.size as usize % align.min(GRAIN), 0);
                    assert!(align <= GRAIN || (shape.size as usize).is_multiple_of(align));
                    assert!(align <= shape.span_pages as usize * PAGE_SIZE);
                }
            }
        }
    }

    #[test]
    fn spans_are_powers_of_two_and_waste_at_most_an_eighth() {
        for class in Class::all() {
            let shape = class.shape();
            let span = shape.span_pages as usize * PAGE_SIZE;
            assert!(shape.span_pages.is_power_of_two());
            assert!(shape.capacity as usize * shape.size as usize * 8 >= span * 7);
            assert!(span / GRAIN <= u16::MAX as usize, "an object's offset must fit 16 bits");
            assert!(shape.capacity >= shape.most_cached.min(4));
            assert_eq!(shape.span_pages == 1, shape.size as usize <= LARGEST_OF_PAGES);
        }
    }
}
