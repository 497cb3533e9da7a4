//! Memory regions as pieces of the inventory.

use crate::heartbeat;
use alloc::vec::Vec;
use isola_abi::id::PhysRange;
use isola_machine::authority::Authority;
use isola_machine::memory::{Contents, Region, SharedRegion};
use isola_supervisor_core::hardware::{Pages, SharedPages};
use isola_supervisor_core::inventory::Chunk;
use isola_supervisor_core::scrub::scrub;

/// A shared read-only region, and the authority of the [`Piece`] from which it was made.
#[derive(Clone, Debug)]
pub struct SharedPiece(pub SharedRegion, pub Authority);

impl SharedPiece {
    /// Returns the region with one more owner.
    pub fn region(&self) -> SharedRegion {
        self.0.clone()
    }
}

impl SharedPages for SharedPiece {
    type Memory = Piece;

    fn range(&self) -> PhysRange {
        self.0.range()
    }

    fn read(&self, len_bytes: usize) -> &[u8] {
        let bytes = self.0.bytes();
        bytes.get(..len_bytes).unwrap_or(bytes)
    }

    fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    fn into_memory(self) -> Result<Piece, Self> {
        let authority = self.1;
        self.0.into_region().map(|region| Piece(region, authority)).map_err(|region| Self(region, authority))
    }
}

/// A region, and the authority to record that its bytes are zero.
#[derive(Debug)]
pub struct Piece(pub Region, pub Authority);

impl Piece {
    /// Returns regions as pieces.
    pub(crate) fn of_all(regions: Vec<Region>, authority: Authority) -> Vec<Self> {
        regions.into_iter().map(|region| Self(region, authority)).collect()
    }
}

impl Chunk for Piece {
    fn range(&self) -> PhysRange {
        self.0.range()
    }

    fn split(self, len_bytes: u64) -> (Self, Self) {
        match self.0.split(len_bytes) {
            Ok((first, rest)) => (Self(first, self.1), Self(rest, self.1)),
            Err(region) => panic!("{region:?} is cut at {len_bytes:#x}"),
        }
    }

    fn join(self, next: Self) -> Self {
        match self.0.join(next.0) {
            Ok(region) => Self(region, self.1),
            Err((first, second)) => panic!("{first:?} and {second:?} are not neighbours"),
        }
    }

    fn scrub(&mut self, offset: u64, len_bytes: u64) {
        heartbeat::beat();
        let (offset, len) = (offset as usize, len_bytes as usize);
        if let Some(bytes) = self.0.bytes_mut().get_mut(offset..).and_then(|bytes| bytes.get_mut(..len)) {
            scrub(bytes);
        }
    }

    fn is_zero(&self) -> bool {
        self.0.contents() == Contents::Zero
    }

    fn declare_zero(&mut self) {
        self.0.declare_zero(self.1);
    }
}

impl Pages for Piece {
    type Shared = SharedPiece;

    fn share(self) -> SharedPiece {
        SharedPiece(SharedRegion::new(self.0), self.1)
    }

    fn read(&self, len_bytes: usize) -> &[u8] {
        let bytes = self.0.bytes();
        bytes.get(..len_bytes).unwrap_or(bytes)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let room = self.0.bytes_mut().get_mut(offset as usize..).unwrap_or_default();
        for (to, from) in room.chunks_mut(bytes.len().max(1)).zip([bytes]) {
            if let Some(from) = from.get(..to.len()) {
                to.copy_from_slice(from);
            }
        }
    }
}
