//! Data received beyond a gap.
//!
//! The pieces are ordered and do not overlap. Their number is bounded, and the memory that they and the unread data pin
//! is bounded by the connection's limit (see [`receive_queue`](super::receive_queue)): a piece beyond that limit is
//! copied into a buffer of its exact size. A piece beyond the maximum number is dropped; the peer will retransmit it.
//! Where pieces overlap, the bytes received first remain.

use super::seq::Seq;
use crate::base::{Counter, Counters};
use alloc::collections::VecDeque;
use isola_iobuf::IoBuf;

#[derive(Debug)]
struct Piece {
    start: Seq,
    data: IoBuf,
}

impl Piece {
    fn end(&self) -> Seq {
        self.start + self.data.len() as u32
    }
}

/// The pieces beyond a gap.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    pieces: VecDeque<Piece>,
    pinned: usize,
}

/// Bounds for the pieces of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Maximum number of pieces.
    pub pieces: usize,
    /// Pinned memory, in bytes, beyond which new pieces are copied.
    pub pinned: usize,
}

/// The result of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Insertion {
    /// All of the data is stored, and some of it is new.
    Kept,
    /// All of the data had been stored before.
    Known,
    /// Some of the data was dropped for lack of room.
    Dropped,
}

impl Insertion {
    fn with(self, kept: PieceKept) -> Self {
        match (self, kept) {
            (Self::Dropped, _) | (_, PieceKept::No) => Self::Dropped,
            (_, PieceKept::Yes) => Self::Kept,
        }
    }
}

impl Reassembly {
    /// Returns whether there are no pieces.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Stores the bytes of `data`, which begins at `start`, that are not stored yet.
    pub fn insert(&mut self, start: Seq, data: IoBuf, bounds: Bounds, counters: &mut Counters) -> Insertion {
        let mut insertion = Insertion::Known;
        let (mut start, mut data) = (start, data);
        // The first piece that ends behind the start; all earlier pieces end before the data.
        let mut index = self.pieces.partition_point(|piece| !piece.end().after(start));
        while !data.is_empty() {
            let Some(next) = self.pieces.get(index) else {
                return insertion.with(self.keep(index, start, data, bounds, counters));
            };
            let (next_start, next_end) = (next.start, next.end());
            if start.before(next_start) {
                let gap = next_start.since(start) as usize;
                let Some(front) = data.split_to(gap.min(data.len())) else { return Insertion::Dropped };
                let len = front.len() as u32;
                let kept = self.keep(index, start, front, bounds, counters);
                insertion = insertion.with(kept);
                if kept == PieceKept::Yes {
                    index += 1;
                }
                start += len;
            }
            let covered = next_end.since(start) as usize;
            if covered >= data.len() {
                return insertion;
            }
            data.advance(covered);
            start = next_end;
            index += 1;
        }
        insertion
    }

    fn keep(
        &mut self,
        index: usize,
        start: Seq,
        data: IoBuf,
        bounds: Bounds,
        counters: &mut Counters,
    ) -> PieceKept {
        if data.is_empty() {
            return PieceKept::No;
        }
        if self.pieces.len() >= bounds.pieces {
            counters.bump(Counter::DropTcpReassembly);
            return PieceKept::No;
        }
        let data = if self.pinned + data.storage_len() > bounds.pinned {
            counters.add(Counter::TcpCompactedBytes, data.len() as u64);
            IoBuf::copy_from_slice(&data)
        } else {
            data
        };
        self.pinned += data.storage_len();
        self.pieces.insert(index, Piece { start, data });
        PieceKept::Yes
    }

    /// Removes and returns the piece that contains `next`, without the bytes before `next`. Pieces that end before
    /// `next` are dropped.
    pub fn take(&mut self, next: Seq) -> Option<IoBuf> {
        while let Some(first) = self.pieces.front() {
            if first.start.after(next) {
                return None;
            }
            let Piece { start, mut data } = self.pieces.pop_front()?;
            self.pinned = self.pinned.saturating_sub(data.storage_len());
            data.advance(next.since(start) as usize);
            if !data.is_empty() {
                return Some(data);
            }
        }
        None
    }

    /// Returns the memory that the pieces pin, in bytes.
    pub fn pinned(&self) -> usize {
        self.pinned
    }

    /// Drops all pieces.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[derive(Clone, Copy, PartialEq)]
enum PieceKept {
    Yes,
    No,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { pieces: 64, pinned: 1 << 20 };

    fn drain(reassembly: &mut Reassembly, mut next: Seq) -> Vec<u8> {
        let mut out = Vec::new();
        while let Some(data) = reassembly.take(next) {
            next += data.len() as u32;
            out.extend_from_slice(&data);
        }
        out
    }

    #[test]
    fn the_first_copy_of_overlapping_bytes_remains() {
        let (mut reassembly, mut counters) = (Reassembly::default(), Counters::new());
        reassembly.insert(Seq(10), IoBuf::copy_from_slice(b"AAAA"), BOUNDS, &mut counters);
        reassembly.insert(Seq(8), IoBuf::copy_from_slice(b"bbbbbbbb"), BOUNDS, &mut counters);
        assert_eq!(drain(&mut reassembly, Seq(8)), b"bbAAAAbb");
    }

    #[test]
    fn the_number_of_pieces_and_their_pinned_memory_are_bounded() {
        let (mut reassembly, mut counters) = (Reassembly::default(), Counters::new());
        let bounds = Bounds { pieces: 10, pinned: 4096 };
        for i in 0..100 {
            let mut data = IoBuf::copy_from_slice(&[i as u8; 2048]);
            data.truncate(1);
            reassembly.insert(Seq(2 * i), data, bounds, &mut counters);
        }
        assert_eq!(reassembly.pieces.len(), 10);
        assert_eq!(reassembly.pinned(), 4096 + 8);
        assert_eq!(counters.get(Counter::DropTcpReassembly), 90);
        assert_eq!(counters.get(Counter::TcpCompactedBytes), 8);
    }

    proptest! {
        #[test]
        fn pieces_in_any_order_reassemble_the_stream(
            cuts in proptest::collection::vec((0usize..300, 1usize..80), 1..60),
            base in any::<u32>(),
        ) {
            let stream: Vec<u8> = (0..300u32).map(|i| (i * 31 % 255) as u8).collect();
            let (mut reassembly, mut counters) = (Reassembly::default(), Counters::new());
            let mut have = [false; 300];
            for (start, len) in cuts {
                let end = (start + len).min(stream.len());
                have[start..end].fill(true);
                let data = IoBuf::copy_from_slice(&stream[start..end]);
                let bounds = Bounds { pieces: usize::MAX, pinned: usize::MAX };
                reassembly.insert(Seq(base) + start as u32, data, bounds, &mut counters);
            }
            for pair in reassembly.pieces.make_contiguous().windows(2) {
                prop_assert!(!pair[1].start.before(pair[0].end()));
            }
            let ready = have.iter().take_while(|&&byte| byte).count();
            prop_assert_eq!(drain(&mut reassembly, Seq(base)), &stream[..ready]);
        }
    }
}
