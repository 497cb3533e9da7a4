//! The buddy system, compared with a list of all chunks' owners.

use super::*;
use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use alloc::vec;
use core::cell::RefCell;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The numbers of pages that are not zero: the contents of real memory.
type Content = Rc<RefCell<BTreeSet<u64>>>;

#[derive(Debug)]
struct Token {
    range: PhysRange,
    content: Content,
    known_zero: bool,
}

impl Token {
    fn pages(&self) -> core::ops::Range<u64> {
        self.range.start.0 / 4096..self.range.end().0 / 4096
    }

    /// Writes to the first and to the last page.
    fn soil(&self) {
        self.content.borrow_mut().extend([self.pages().start, self.pages().end - 1]);
    }

    fn holds_nothing(&self) -> bool {
        self.content.borrow().range(self.pages()).next().is_none()
    }
}

impl Chunk for Token {
    fn range(&self) -> PhysRange {
        self.range
    }

    fn split(self, len_bytes: u64) -> (Self, Self) {
        assert!(len_bytes > 0 && len_bytes < self.range.len_bytes && len_bytes.is_multiple_of(4096));
        let PhysRange { start, len_bytes: all } = self.range;
        let at = |start, len| Self {
            range: PhysRange::new(start, len),
            content: self.content.clone(),
            known_zero: self.known_zero,
        };
        (at(start, len_bytes), at(PhysAddr(start.0 + len_bytes), all - len_bytes))
    }

    fn join(self, next: Self) -> Self {
        assert_eq!(self.range.end(), next.range.start);
        let range = PhysRange::new(self.range.start, self.range.len_bytes + next.range.len_bytes);
        Self { range, content: self.content, known_zero: self.known_zero && next.known_zero }
    }

    fn scrub(&mut self, offset: u64, len_bytes: u64) {
        assert!(offset.is_multiple_of(4096) && len_bytes.is_multiple_of(4096));
        assert!(offset + len_bytes <= self.range.len_bytes);
        let first = (self.range.start.0 + offset) / 4096;
        let mut content = self.content.borrow_mut();
        let gone: Vec<u64> = content.range(first..first + len_bytes / 4096).copied().collect();
        for page in gone {
            content.remove(&page);
        }
    }

    fn is_zero(&self) -> bool {
        self.known_zero
    }

    fn declare_zero(&mut self) {
        assert!(self.holds_nothing());
        self.known_zero = true;
    }
}

/// Returns typical memory: 2 MiB to 2.5 GiB of node 0 with unaligned edges, then node 1. The first page of each chunk
/// is not zero.
fn memory(content: &Content) -> Memory<Token> {
    let mut memory = Memory::new();
    for (start, end, node) in
        [(1536 * 1024, 5 * GIB / 2 - 40960, 0), (4 * GIB, 5 * GIB, 1), (5 * GIB, 5 * GIB + 64 * MIB, 0)]
    {
        let token = Token {
            range: PhysRange::new(PhysAddr(start), end - start),
            content: content.clone(),
            known_zero: false,
        };
        content.borrow_mut().extend((start..end).step_by(CHUNK as usize).map(|at| at / 4096));
        let edges: u64 = memory.add(token, NodeId(node)).iter().map(|edge| edge.range.len_bytes).sum();
        assert_eq!(edges, (start.next_multiple_of(CHUNK) - start) + end % CHUNK);
    }
    memory
}

/// Returns the free blocks of all nodes, by address.
fn blocks(memory: &Memory<Token>) -> Vec<PhysRange> {
    let mut blocks: Vec<PhysRange> =
        memory.nodes.iter().flat_map(|node| node.pieces().map(|block| block.range)).collect();
    blocks.sort();
    blocks
}

#[test]
fn only_whole_chunks_are_given() {
    let memory = memory(&Content::default());
    assert_eq!(memory.total(), 5 * GIB / 2 - 2 * MIB - 2 * MIB + GIB + 64 * MIB);
    assert!(blocks(&memory).iter().all(|block| block.start.0.is_multiple_of(block.len_bytes)));
}

#[test]
fn memory_smaller_than_a_chunk_is_left_alone() {
    let mut memory = Memory::new();
    let token = Token {
        range: PhysRange::new(PhysAddr(MIB), 2 * MIB),
        content: Content::default(),
        known_zero: false,
    };
    assert_eq!(memory.add(token, NodeId(0)).len(), 1);
    assert_eq!((memory.total(), memory.free()), (0, 0));
    assert!(memory.take(1, NodeId(0)).is_none());
}

#[test]
fn a_cell_gets_memory_of_its_node_while_there_is_any() {
    let mut memory = memory(&Content::default());
    scrub_all(&mut memory);
    let near = memory.take(GIB, NodeId(1)).unwrap();
    assert!(near.iter().all(|block| (4 * GIB..5 * GIB).contains(&block.range.start.0)));
    let far = memory.take(2 * MIB, NodeId(1)).unwrap();
    assert!(far[0].range.start.0 < 4 * GIB || far[0].range.start.0 >= 5 * GIB);
}

#[test]
fn all_memory_can_be_given_to_one_cell() {
    let mut memory = memory(&Content::default());
    let all = memory.free();
    assert!(memory.take(all + 1, NodeId(0)).is_none());
    assert!(memory.take(u64::MAX, NodeId(0)).is_none());
    assert!(memory.take(all, NodeId(0)).is_none(), "none of it is zero");
    scrub_all(&mut memory);
    let taken = memory.take(all, NodeId(0)).unwrap();
    assert_eq!(taken.iter().map(|block| block.range.len_bytes).sum::<u64>(), all);
    assert_eq!(memory.free(), 0);
}

#[test]
fn a_contiguous_piece_has_the_requested_length() {
    let mut memory = memory(&Content::default());
    let before = (memory.free(), blocks(&memory));
    let piece = memory.take_contiguous(5 * MIB).unwrap();
    assert_eq!(piece.range.len_bytes, 6 * MIB);
    assert_eq!(memory.free(), before.0 - 6 * MIB);
    assert!(memory.take_contiguous(3 * GIB).is_none());
    memory.put(vec![piece]);
    assert_eq!((memory.free(), blocks(&memory)), before);
}

/// Returns 8 MiB of memory from 4 MiB on.
fn small(content: &Content, known_zero: bool) -> Memory<Token> {
    let mut memory = Memory::new();
    let range = PhysRange::new(PhysAddr(4 * MIB), 8 * MIB);
    let token = Token { range, content: content.clone(), known_zero };
    assert!(memory.add(token, NodeId(0)).is_empty());
    memory
}

fn scrub_all(memory: &mut Memory<Token>) {
    while memory.scrub(64 << 10, None) == Scrub::Unfinished {}
    assert_eq!(memory.dirty(), 0);
}

#[test]
fn known_zero_memory_is_not_scrubbed() {
    let content = Content::default();
    let mut memory = small(&content, true);
    let first = memory.take(4 * MIB, NodeId(0)).unwrap();
    // A page that scrubbing would clear, although its chunk counts as zero.
    content.borrow_mut().insert(8 * MIB / 4096);
    first.iter().for_each(Token::soil);
    memory.put(first);
    scrub_all(&mut memory);
    assert_eq!(content.borrow().iter().copied().collect::<Vec<_>>(), [8 * MIB / 4096]);
}

#[test]
fn zero_memory_is_given_and_dirty_memory_is_not() {
    let content = Content::default();
    let mut memory = small(&content, true);
    let low = memory.take(2 * MIB, NodeId(0)).unwrap();
    assert_eq!(low[0].range.start.0, 4 * MIB);
    low[0].soil();
    memory.put(low);
    assert_eq!((memory.free(), memory.dirty()), (8 * MIB, 2 * MIB));
    let clean = memory.take(4 * MIB, NodeId(0)).unwrap();
    assert_eq!(clean.iter().map(|block| block.range.start.0).collect::<Vec<_>>(), [8 * MIB]);
    // The other zero chunk is given; the dirty one is not.
    assert!(memory.take(4 * MIB, NodeId(0)).is_none());
    let rest = memory.take(2 * MIB, NodeId(0)).unwrap();
    assert_eq!(rest[0].range.start.0, 6 * MIB);
    assert_eq!((memory.free(), memory.dirty()), (2 * MIB, 2 * MIB));
    assert!(memory.take(2 * MIB, NodeId(0)).is_none());
    scrub_all(&mut memory);
    assert!(memory.take(2 * MIB, NodeId(0)).unwrap().iter().all(Token::holds_nothing));
}

#[test]
fn scrubbing_begins_again_in_a_chunk_that_was_given_away_meanwhile() {
    let content = Content::default();
    let mut memory = small(&content, true);
    let chunk = memory.take(2 * MIB, NodeId(0)).unwrap();
    memory.put(chunk);
    assert_eq!(memory.scrub(MIB, None), Scrub::Unfinished);
    // The new owner writes to pages that were scrubbed already.
    let all: Vec<Token> = [4, 2, 2].into_iter().filter_map(|mib| memory.take_contiguous(mib * MIB)).collect();
    assert_eq!(memory.free(), 0);
    all.iter().for_each(Token::soil);
    memory.put(all);
    scrub_all(&mut memory);
    assert!(content.borrow().is_empty());
}

#[test]
fn a_request_waits_for_memory_of_its_own_node_despite_zero_memory_elsewhere() {
    let content = Content::default();
    let mut memory = small(&content, false);
    let range = PhysRange::new(PhysAddr(GIB), 8 * MIB);
    assert!(memory.add(Token { range, content: content.clone(), known_zero: true }, NodeId(1)).is_empty());
    assert!(memory.is_ready(4 * MIB, NodeId(1)));
    while !memory.is_ready(8 * MIB, NodeId(0)) {
        assert_eq!(
            memory.scrub(64 << 10, Some(NodeId(0))),
            if memory.dirty() > 0 { Scrub::Unfinished } else { Scrub::Finished }
        );
    }
    let near = memory.take(8 * MIB, NodeId(0)).unwrap();
    assert!(near.iter().all(|block| block.range.start.0 < GIB));
}

#[test]
fn contiguous_pieces_for_the_supervisor_are_not_scrubbed() {
    let content = Content::default();
    let mut memory = small(&content, false);
    content.borrow_mut().insert(4 * MIB / 4096);
    let piece = memory.take_contiguous(2 * MIB).unwrap();
    assert!(!piece.holds_nothing());
    memory.put(vec![piece]);
    assert_eq!((memory.free(), memory.dirty()), (8 * MIB, 8 * MIB));
}

#[test]
fn pieces_that_form_no_whole_chunk_are_kept_out_of_use() {
    let mut memory = memory(&Content::default());
    scrub_all(&mut memory);
    let block = memory.take(2 * MIB, NodeId(0)).unwrap().remove(0);
    let (_forgotten, rest) = block.split(4096);
    memory.put(vec![rest]);
    assert_eq!(memory.fragment_bytes(), 2 * MIB - 4096);
    assert_eq!(memory.free(), memory.total() - 2 * MIB);
}

fn block_of(least_mib: u64, largest_mib: u64, node: u32) -> BlockRequest {
    BlockRequest { least_bytes: least_mib * MIB, largest_bytes: largest_mib * MIB, node: NodeId(node) }
}

#[test]
fn a_block_is_the_largest_zero_one_of_the_requested_node_if_that_has_one() {
    let content = Content::default();
    let mut memory = small(&content, true);
    let range = PhysRange::new(PhysAddr(GIB), 64 * MIB);
    assert!(memory.add(Token { range, content: content.clone(), known_zero: true }, NodeId(1)).is_empty());
    let mut take = |request| match memory.take_block(request) {
        Block::Given(block, node) => (block.range.len_bytes / MIB, node.0),
        other => panic!("{other:?}"),
    };
    // The 8 MiB from 4 MiB on contain no block of 8 MiB.
    assert_eq!(take(block_of(2, 16, 0)), (4, 0));
    assert_eq!(take(block_of(8, 16, 0)), (16, 1));
    assert_eq!(take(block_of(2, 2, 0)), (2, 0));
    assert_eq!(take(block_of(2, 16, 0)), (2, 0));
    assert_eq!(take(block_of(2, 1 << 20, 0)), (32, 1));
    assert_eq!(memory.free(), 16 * MIB);
}

#[test]
fn a_request_waits_for_a_dirty_block_and_is_refused_without_a_block() {
    let content = Content::default();
    let mut memory = small(&content, false);
    content.borrow_mut().extend((1024..3072).step_by(3));
    assert!(matches!(memory.take_block(block_of(2, 4, 0)), Block::Later));
    assert!(matches!(memory.take_block(block_of(8, 8, 0)), Block::Exhausted));
    while memory.scrub(64 << 10, None) == Scrub::Unfinished {
        if let Block::Given(block, _) = memory.take_block(block_of(4, 4, 0)) {
            assert!(block.holds_nothing() && block.is_zero(), "its next owner need not scrub it");
            return assert_eq!(memory.free(), 4 * MIB);
        }
    }
    panic!("no block became zero");
}

/// Returns 1 GiB of node 0, all of it dirty.
fn large(content: &Content) -> Memory<Token> {
    let mut memory = Memory::new();
    let range = PhysRange::new(PhysAddr(GIB), GIB);
    assert!(memory.add(Token { range, content: content.clone(), known_zero: false }, NodeId(0)).is_empty());
    memory
}

#[test]
fn a_request_leaves_zero_memory_for_cells_that_grow() {
    let mut memory = large(&Content::default());
    memory.reserve(256 * MIB);
    assert_eq!(memory.available(), 768 * MIB);
    let is_ready = |memory: &mut Memory<Token>| {
        memory.unreserve(256 * MIB);
        let is_ready = memory.is_ready(256 * MIB, NodeId(0));
        memory.reserve(256 * MIB);
        is_ready
    };
    while !is_ready(&mut memory) {
        assert_eq!(memory.scrub(CHUNK, None), Scrub::Unfinished);
    }
    memory.unreserve(256 * MIB);
    let taken = memory.take(256 * MIB, NodeId(0)).unwrap();
    assert_eq!(memory.free() - memory.dirty(), GIB / ZERO_RESERVE_PART);
    assert!(matches!(memory.take_block(block_of(16, 16, 0)), Block::Given(..)));
    memory.put(taken);
}

#[test]
fn eviction_yields_no_block_above_the_largest() {
    let mut memory = Memory::new();
    let range = PhysRange::new(PhysAddr(4 * GIB), 4 * GIB);
    let token = Token { range, content: Content::default(), known_zero: true };
    assert!(memory.add(token, NodeId(0)).is_empty());
    let idle = [memory.take_contiguous(2 * MIB).unwrap().range];
    assert!(memory.has_block_with(GIB, &idle) && !memory.has_block_with(2 * GIB, &idle));
}

#[test]
fn reserved_memory_is_not_given_to_other_requests() {
    let mut memory = large(&Content::default());
    memory.reserve(GIB - 4 * MIB);
    assert!(matches!(memory.take_block(block_of(8, 8, 0)), Block::Exhausted));
    assert!(memory.take_contiguous(8 * MIB).is_none());
    assert!(memory.take(8 * MIB, NodeId(0)).is_none());
    scrub_all(&mut memory);
    assert!(memory.take(8 * MIB, NodeId(0)).is_none());
    let Block::Given(block, _) = memory.take_block(block_of(2, 64, 0)) else { panic!("there are 4 MiB") };
    assert_eq!(block.range.len_bytes, 4 * MIB);
    memory.unreserve(GIB - 4 * MIB);
    assert_eq!(
        memory.take(GIB - 4 * MIB, NodeId(0)).unwrap().iter().map(|b| b.range.len_bytes).sum::<u64>(),
        GIB - 4 * MIB
    );
}

#[test]
fn idle_ranges_make_a_block_only_together_with_free_ones() {
    let mut memory = small(&Content::default(), true);
    // Of 4 to 12 MiB, the chunks at 6 and 8 are idle images.
    let taken = [4, 2, 2].map(|mib| memory.take_contiguous(mib * MIB).unwrap());
    let of = |start: u64| PhysRange::new(PhysAddr(start * MIB), CHUNK);
    let pieces = taken.into_iter().flat_map(|piece| match piece.range.len_bytes {
        CHUNK => vec![piece],
        _ => <[Token; 2]>::from(piece.split(CHUNK)).into(),
    });
    memory.put(pieces.filter(|piece| [of(4), of(10)].contains(&piece.range)).collect());
    assert_eq!(memory.free(), 4 * MIB);
    assert!(memory.has_block_with(2 * MIB, &[]));
    assert!(!memory.has_block_with(4 * MIB, &[]));
    assert!(memory.has_block_with(4 * MIB, &[of(6)]));
    assert!(!memory.has_block_with(8 * MIB, &[of(6), of(8)]), "8 MiB begin at a multiple of 8 MiB");
    assert!(!memory.has_block_with(16 * MIB, &[of(6), of(8)]));
    assert!(!memory.has_block_with(4 << 30, &[of(6)]));
    memory.reserve(4 * MIB);
    assert!(!memory.has_block_with(4 * MIB, &[of(6)]), "the bytes are reserved");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any sequence of takes, puts and scrubs: no two owners share a chunk, no chunk is lost, all memory given to a
    /// cell is zero, all memory that counts as zero is zero, and the final state equals the initial one.
    #[test]
    fn every_chunk_has_exactly_one_owner(
        steps in proptest::collection::vec((0u8..9, 1u64..700, any::<prop::sample::Index>()), 1..80)
    ) {
        let content = Content::default();
        let mut memory = memory(&content);
        let start = blocks(&memory);
        let total = memory.total();
        let mut held: Vec<Vec<Token>> = Vec::new();
        let mut reserved: Vec<u64> = Vec::new();
        for (kind, size, which) in steps {
            let free = memory.free();
            let available = memory.available();
            match kind {
                0 | 1 => {
                    let (len, node) = ((size * MIB).next_multiple_of(CHUNK), NodeId(u32::from(kind)));
                    let is_ready = memory.is_ready(len, node);
                    match memory.take(len, node) {
                        Some(taken) => held.push(taken),
                        None => prop_assert!(len > available || !is_ready),
                    }
                }
                7 if size * CHUNK <= available => {
                    memory.reserve(size * CHUNK);
                    reserved.push(size * CHUNK);
                }
                8 if !reserved.is_empty() => memory.unreserve(reserved.remove(which.index(reserved.len()))),
                7 | 8 => {}
                2 => held.extend(memory.take_contiguous(size * MIB).map(|piece| vec![piece])),
                3 => {
                    let least = size.next_power_of_two().max(2);
                    let request = block_of(least, least << (size % 3), size as u32 % 2);
                    match memory.take_block(request) {
                        Block::Given(block, _) => {
                            let range = block.range;
                            prop_assert!((request.least_bytes..=request.largest_bytes).contains(&range.len_bytes));
                            prop_assert!(range.start.0.is_multiple_of(range.len_bytes));
                            held.push(vec![block]);
                        }
                        Block::Later => prop_assert!(memory.dirty() > 0),
                        Block::Exhausted => prop_assert!(
                            request.least_bytes > available
                                || blocks(&memory).iter().all(|block| block.len_bytes < request.least_bytes)
                        ),
                    }
                }
                // Some steps end in the middle of a chunk.
                4 | 5 => for _ in 0..size {
                    memory.scrub(4096 * (1 + size * 7 % 600), (size % 2 == 0).then_some(NodeId(1)));
                },
                _ if held.is_empty() => {}
                _ => {
                    let mut pieces = held.remove(which.index(held.len()));
                    // A cell's memory comes back split differently than it was given.
                    if let Some(last) = pieces.pop() {
                        let cut = 4096 * (1 + size % 511);
                        let (front, rest) = last.split(cut);
                        pieces.insert(0, rest);
                        pieces.push(front);
                    }
                    memory.put(pieces);
                }
            }
            if let Some(newest) = held.last().filter(|_| kind < 4 && memory.free() < free) {
                prop_assert!(kind == 2 || newest.iter().all(Token::holds_nothing), "memory given away is not zero");
                newest.iter().for_each(Token::soil);
            }
            let mut dirty = 0;
            for range in blocks(&memory) {
                let (first, count) = chunks(range);
                for chunk in first..first + count {
                    let range = PhysRange::new(PhysAddr(chunk * CHUNK), CHUNK);
                    let token = Token { range, content: content.clone(), known_zero: false };
                    prop_assert!(!memory.zero.get(chunk) || token.holds_nothing(), "a chunk counts as zero and is not");
                    dirty += if memory.zero.get(chunk) { 0 } else { CHUNK };
                }
            }
            prop_assert_eq!(dirty, memory.dirty());
            prop_assert!(reserved.iter().sum::<u64>() <= memory.free(), "a reservation cannot be met");
            let mut all: Vec<PhysRange> = blocks(&memory);
            prop_assert_eq!(all.iter().map(|block| block.len_bytes).sum::<u64>(), memory.free());
            all.extend(held.iter().flatten().map(|piece| piece.range));
            all.sort();
            prop_assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].start), "two owners");
            prop_assert_eq!(all.iter().map(|range| range.len_bytes).sum::<u64>(), total);
        }
        held.into_iter().for_each(|pieces| memory.put(pieces));
        prop_assert_eq!(&blocks(&memory)[..], &start[..]);
        while memory.scrub(CHUNK, None) == Scrub::Unfinished {}
        prop_assert_eq!(memory.dirty(), 0);
        let all = |range: &PhysRange| Token { range: *range, content: content.clone(), known_zero: false };
        prop_assert!(start.iter().map(all).all(|token| token.holds_nothing()));
        prop_assert_eq!(memory.fragment_bytes(), 0);
    }
}
