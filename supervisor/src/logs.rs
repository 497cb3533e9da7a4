//! What cells print: drained from the ring that a cell writes to, and kept until the cell is forgotten.
//!
//! The ring is the cell's memory and the cell writes to it while it is read. Its counter may go back, jump, or
//! run ahead of the reader; the worst that comes of it is that the cell's own log is wrong.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use isola_abi::management::LogPiece;
use isola_abi::report::{CONSOLE_LEN, ConsoleRing};

/// Bytes that are kept of what a cell printed.
pub const CAPACITY: usize = 64 * 1024;

/// The highest number of a byte that is taken over from a cell's counter. From there on another 2^62 bytes can be counted
/// before numbers overflow.
const HIGHEST_NUMBER: u64 = 1 << 62;

/// The log of a cell. Bytes are counted from the first that it ever printed.
#[derive(Debug, Default)]
pub struct Log {
    kept: VecDeque<u8>,
    end: u64,
    read: u64,
}

impl Log {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes on with the ring of a cell that is created once more, which counts from 0.
    pub fn restart(&mut self) {
        self.read = 0;
    }

    /// Returns the log of a cell that a former supervisor has read: it begins with the content of the ring. Bytes keep
    /// the numbers that the cell gives them, so that a reader can continue; a counter that no cell can reach by printing
    /// is not believed, and numbers begin at 0.
    pub fn resume(ring: &ConsoleRing) -> Self {
        let read = ring.written.load(Ordering::Acquire).saturating_sub(CONSOLE_LEN as u64);
        let end = if read < HIGHEST_NUMBER { read } else { 0 };
        let mut log = Self { end, read, ..Self::default() };
        log.drain(ring);
        log
    }

    /// Takes no more memory than what is kept needs: for a cell that prints nothing any more.
    pub fn shrink(&mut self) {
        self.kept.shrink_to_fit();
    }

    /// Takes over what the cell has written since the last time. Where the cell was faster than the ring is
    /// long, says how much is missing.
    pub fn drain(&mut self, ring: &ConsoleRing) {
        let written = ring.written.load(Ordering::Acquire);
        let ahead = written.wrapping_sub(self.read);
        let start = written.wrapping_sub(ahead.min(CONSOLE_LEN as u64));
        self.read = written;
        ring.read.store(written, Ordering::Relaxed);
        if ahead == 0 || ahead > u64::MAX / 2 {
            return;
        }
        let byte = |offset: u64| {
            let index = start.wrapping_add(offset) % CONSOLE_LEN as u64;
            ring.bytes.get(index as usize).map_or(0, |byte| byte.load(Ordering::Relaxed))
        };
        let bytes: Vec<u8> = (0..ahead.min(CONSOLE_LEN as u64)).map(byte).collect();
        // What the cell has overwritten since the copy began, or is overwriting, is not what it wrote before.
        fence(Ordering::Acquire);
        let since = ring.begun.load(Ordering::Relaxed).wrapping_sub(start);
        let torn = since.saturating_sub(CONSOLE_LEN as u64).min(bytes.len() as u64);
        let lost = (ahead - bytes.len() as u64) + torn;
        if lost > 0 {
            self.append(format!("\n[{lost} bytes of output are lost]\n").as_bytes());
        }
        self.append(bytes.get(torn as usize..).unwrap_or_default());
    }

    /// At most `max_bytes` bytes from number `from` on, or from the oldest that is kept where that is newer.
    pub fn piece(&self, from: u64, max_bytes: usize) -> LogPiece {
        let oldest = self.end.saturating_sub(self.kept.len() as u64);
        let from = from.max(oldest).min(self.end);
        let bytes = self.kept.iter().skip((from - oldest) as usize).take(max_bytes).copied().collect();
        LogPiece { from, bytes, end: self.end }
    }

    /// Never takes more memory than [`CAPACITY`], so that the supervisor's own can be counted by cells.
    fn append(&mut self, bytes: &[u8]) {
        let fits = bytes.get(bytes.len().saturating_sub(CAPACITY)..).unwrap_or_default();
        self.kept.drain(..(self.kept.len() + fits.len()).saturating_sub(CAPACITY));
        let wanted = self.kept.len() + fits.len();
        if wanted > self.kept.capacity() {
            self.kept.reserve_exact((2 * wanted).min(CAPACITY) - self.kept.len());
        }
        self.kept.extend(fits);
        self.end = self.end.saturating_add(bytes.len() as u64);
    }
}

#[cfg(test)]
pub(crate) mod tests;
