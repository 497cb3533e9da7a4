//! The quarantine of freed objects: first in, first out.

use super::misuse::Object;
use core::alloc::Layout;
use core::ptr::NonNull;

/// The maximum number of objects.
const MOST_OBJECTS: usize = 256;

/// Their maximum size together, in bytes.
const MOST_BYTES: usize = 64 << 10;

/// A freed object.
#[derive(Clone, Copy)]
pub(super) struct FreedObject {
    /// Its address.
    pub object: NonNull<u8>,
    /// Its layout at allocation.
    pub layout: Layout,
}

impl FreedObject {
    /// Describes the object for a message.
    pub fn described(&self) -> Object {
        Object { address: self.object.addr().get(), layout: self.layout, number: None }
    }
}

/// The outcome of [`Quarantine::put`].
pub(super) enum PutOutcome {
    /// The object is in quarantine.
    Kept,
    /// The object is larger than the quarantine.
    TooLarge,
    /// The quarantine is full. It released its oldest object, which is this; the caller tries again.
    NoRoom(FreedObject),
}

/// A ring of freed objects.
pub(super) struct Quarantine {
    objects: [Option<FreedObject>; MOST_OBJECTS],
    first: usize,
    count: usize,
    bytes: usize,
}

// SAFETY: only the quarantine has access to its objects.
unsafe impl Send for Quarantine {}

impl Quarantine {
    /// Returns an empty quarantine.
    pub const fn new() -> Self {
        Self { objects: [None; MOST_OBJECTS], first: 0, count: 0, bytes: 0 }
    }

    /// Adds an object, if there is room for it.
    pub fn put(&mut self, freed: FreedObject) -> PutOutcome {
        if freed.layout.size() > MOST_BYTES {
            return PutOutcome::TooLarge;
        }
        if (self.count == MOST_OBJECTS || self.bytes + freed.layout.size() > MOST_BYTES)
            && let Some(oldest) = self.oldest()
        {
            return PutOutcome::NoRoom(oldest);
        }
        if let Some(entry) = self.objects.get_mut((self.first + self.count) % MOST_OBJECTS) {
            *entry = Some(freed);
            self.count += 1;
            self.bytes += freed.layout.size();
        }
        PutOutcome::Kept
    }

    /// Removes the oldest object.
    pub fn oldest(&mut self) -> Option<FreedObject> {
        let oldest = self.objects.get_mut(self.first)?.take()?;
        self.first = (self.first + 1) % MOST_OBJECTS;
        self.count -= 1;
        self.bytes -= oldest.layout.size();
        Some(oldest)
    }
}
