//! Freed objects whose memory is not used again yet: first in, first out.

use super::misuse::Object;
use core::alloc::Layout;
use core::ptr::NonNull;

/// Most objects that are kept back.
const MOST_OBJECTS: usize = 256;

/// Most bytes of them.
const MOST_BYTES: usize = 64 << 10;

/// A freed object.
#[derive(Clone, Copy)]
pub(super) struct Freed {
    /// Where it is.
    pub object: NonNull<u8>,
    /// What it was made with.
    pub layout: Layout,
}

impl Freed {
    /// For a message.
    pub fn described(&self) -> Object {
        Object { address: self.object.addr().get(), layout: self.layout, number: None }
    }
}

/// What has become of an object that was to be kept back.
pub(super) enum Put {
    /// It is.
    Kept,
    /// It is larger than all that may be kept back.
    TooLarge,
    /// There is no room: this is the oldest, which was taken out.
    NoRoom(Freed),
}

/// The objects.
pub(super) struct Quarantine {
    objects: [Option<Freed>; MOST_OBJECTS],
    first: usize,
    count: usize,
    bytes: usize,
}

// SAFETY: the objects are nobody's but the quarantine's.
unsafe impl Send for Quarantine {}

impl Quarantine {
    /// An empty one.
    pub const fn new() -> Self {
        Self { objects: [None; MOST_OBJECTS], first: 0, count: 0, bytes: 0 }
    }

    /// Keeps an object back, if there is room for it.
    pub fn put(&mut self, freed: Freed) -> Put {
        if freed.layout.size() > MOST_BYTES {
            return Put::TooLarge;
        }
        if (self.count == MOST_OBJECTS || self.bytes + freed.layout.size() > MOST_BYTES)
            && let Some(oldest) = self.oldest()
        {
            return Put::NoRoom(oldest);
        }
        if let Some(place) = self.objects.get_mut((self.first + self.count) % MOST_OBJECTS) {
            *place = Some(freed);
            self.count += 1;
            self.bytes += freed.layout.size();
        }
        Put::Kept
    }

    /// Takes the oldest out.
    pub fn oldest(&mut self) -> Option<Freed> {
        let oldest = self.objects.get_mut(self.first)?.take()?;
        self.first = (self.first + 1) % MOST_OBJECTS;
        self.count -= 1;
        self.bytes -= oldest.layout.size();
        Some(oldest)
    }
}
