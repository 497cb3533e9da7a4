//! Links between cells: the rings with a hostile peer.

use crate::input::InputReader;
use isola_link_rings::{Broken, HEADER_LINES, Half, LINE_BYTES, LINE_WORDS, Ring, SendError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ENTRIES: usize = 8;

/// Performs operations on a ring, while the peer writes any words to its half. A broken ring stays broken, and no packet is
/// longer than a ring.
pub fn ring(bytes: &[u8]) {
    let memory = || -> Arc<[AtomicU64]> {
        (0..(HEADER_LINES + ENTRIES) * LINE_WORDS).map(|_| AtomicU64::new(0)).collect()
    };
    let (own, peer) = (memory(), memory());
    let half = |words: &Arc<[AtomicU64]>| Half::new(words.clone()).expect("it has room");
    half(&own).init();
    half(&peer).init();
    let mut ring = Ring::new(half(&own), half(&peer));
    let (mut input, mut packet) = (InputReader::new(bytes), Vec::new());
    while !input.is_over() {
        let step = input.byte();
        let was_broken = ring.is_broken();
        let is_broken = match step % 6 {
            0 => ring.send(&vec![step; usize::from(input.byte()) * 4]) == Err(SendError::Broken),
            1 => match ring.receive(&mut packet) {
                Ok(_) => {
                    assert!(packet.len() <= ENTRIES * LINE_BYTES - 8);
                    false
                }
                Err(Broken) => true,
            },
            2 => {
                let _ = ring.release();
                false
            }
            3 => ring.arm().is_err(),
            4 => ring.await_room(usize::from(input.byte())).is_err(),
            _ => {
                let index = usize::from(input.byte()) % peer.len();
                let mut value = [0; 8];
                value.iter_mut().for_each(|byte| *byte = input.byte());
                peer[index].store(u64::from_le_bytes(value), Ordering::Relaxed);
                false
            }
        };
        assert!(!is_broken || ring.is_broken());
        assert!(!was_broken || ring.is_broken());
    }
}
