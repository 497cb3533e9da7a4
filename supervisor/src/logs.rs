//! The cells' console output: read from the ring in a cell's report, and stored until the cell is removed.
//!
//! The ring is memory that the cell writes during the read. Its counter may go backwards, jump, or overtake the reader;
//! the worst effect is that the cell's own log is wrong.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use isola_abi::management::LogPiece;
use isola_abi::report::{CONSOLE_LEN, ConsoleRing};

/// The most bytes of a cell's log.
pub const CAPACITY: usize = 64 * 1024;

/// The limit for byte numbers from a cell's counter. Above it, another 2^62 bytes can be counted before an overflow.
const HIGHEST_NUMBER: u64 = 1 << 62;

/// The log of a cell. Bytes are numbered from the first that the cell ever printed.
#[derive(Debug, Default)]
pub struct Log {
    kept: VecDeque<u8>,
    end: u64,
    read: u64,
}

impl Log {
    /// Returns an empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Prepares for the ring of a recreated cell, which counts from 0.
    pub fn restart(&mut self) {
        self.read = 0;
    }

    /// Returns the log of a recovered cell, beginning with the contents of its ring. Bytes keep the cell's numbers, so
    /// that a reader of the log can continue. If no cell can have printed as many bytes as the counter says, numbers
    /// begin at 0.
    pub fn resume(ring: &ConsoleRing) -> Self {
        let read = ring.written.load(Ordering::Acquire).saturating_sub(CONSOLE_LEN as u64);
        let end = if read < HIGHEST_NUMBER { read } else { 0 };
        let mut log = Self { end, read, ..Self::default() };
        log.drain(ring);
        log
    }

    /// Releases unused memory, for a cell that has ended.
    pub fn shrink(&mut self) {
        self.kept.shrink_to_fit();
    }

    /// Appends the output since the last call. If the ring has overwritten a part, appends a line with the number of
    /// lost bytes.
    pub fn drain(&mut self, ring: &ConsoleRing) {
        let written = ring.written.load(Ordering::Acquire);
        let ahead = written.wrapping_sub(self.read);
        let start = written.wrapping_sub(ahead.min(CONSOLE_LEN as u64));
        self.read = written;
        ring.read.store(written, Ordering::Relaxed);
        if ahead == 0 || ahead > u64::MAX / 2 {
            return;
        }
        let len = ahead.min(CONSOLE_LEN as u64) as usize;
        let (rest, first) = ring.bytes.split_at((start % CONSOLE_LEN as u64) as usize);
        let mut bytes = Vec::with_capacity(len);
        for part in [first, rest] {
            let part = part.iter().take(len - bytes.len());
            bytes.extend(part.map(|byte| byte.load(Ordering::Relaxed)));
        }
        // The cell may have overwritten bytes during the copy; those are not the expected ones.
        fence(Ordering::Acquire);
        let since = ring.begun.load(Ordering::Relaxed).wrapping_sub(start);
        let torn = since.saturating_sub(CONSOLE_LEN as u64).min(bytes.len() as u64);
        let lost = (ahead - bytes.len() as u64) + torn;
        if lost > 0 {
            self.append(format!("\n[{lost} bytes of output are lost]\n").as_bytes());
        }
        self.append(bytes.get(torn as usize..).unwrap_or_default());
    }

    /// Returns at most `max_bytes` bytes from number `from` on, or from the oldest stored byte if that is newer.
    pub fn piece(&self, from: u64, max_bytes: usize) -> LogPiece {
        let oldest = self.end.saturating_sub(self.kept.len() as u64);
        let from = from.max(oldest).min(self.end);
        let start = ((from - oldest) as usize).min(self.kept.len());
        let end = self.kept.len().min(start.saturating_add(max_bytes));
        let mut bytes = Vec::with_capacity(end - start);
        bytes.extend(self.kept.range(start..end));
        LogPiece { from, bytes, end: self.end }
    }

    /// Appends bytes, and never allocates more than [`CAPACITY`], on which the size of the supervisor's heap depends.
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
