//! Regions of memory as pieces of the inventory.

use crate::life;
use isola_abi::id::PhysRange;
use isola_machine::memory::{Contents, Region};
use isola_supervisor::effects::Pages;
use isola_supervisor::inventory::Chunk;
use isola_supervisor::scrub::scrub;

/// A region.
#[derive(Debug)]
pub struct Piece(pub Region);

impl Chunk for Piece {
    fn range(&self) -> PhysRange {
        self.0.range()
    }

    fn split(self, len_bytes: u64) -> (Self, Self) {
        match self.0.split(len_bytes) {
            Ok((first, rest)) => (Self(first), Self(rest)),
            Err(region) => panic!("{region:?} is cut at {len_bytes:#x}"),
        }
    }

    fn join(self, next: Self) -> Self {
        match self.0.join(next.0) {
            Ok(region) => Self(region),
            Err((first, second)) => panic!("{first:?} and {second:?} are not neighbours"),
        }
    }

    fn scrub(&mut self, offset: u64, len_bytes: u64) {
        life::sign();
        let (offset, len) = (offset as usize, len_bytes as usize);
        if let Some(bytes) = self.0.bytes_mut().get_mut(offset..).and_then(|bytes| bytes.get_mut(..len)) {
            scrub(bytes);
        }
    }

    fn is_zero(&self) -> bool {
        self.0.contents() == Contents::Zero
    }

    fn declare_zero(&mut self) {
        self.0.declare_zero();
    }
}

impl Pages for Piece {
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
