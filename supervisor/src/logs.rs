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
pub(crate) mod tests {
    use super::*;
    use crate::report::tests::blank;
    use isola_abi::report::Report;
    use proptest::prelude::*;

    /// Prints as a cell does.
    pub(crate) fn print(report: &Report, text: &[u8]) {
        let ring = &report.console;
        let written = ring.written.load(Ordering::Relaxed);
        ring.begun.store(written + text.len() as u64, Ordering::Relaxed);
        for (index, byte) in text.iter().enumerate() {
            ring.bytes[(written as usize + index) % CONSOLE_LEN].store(*byte, Ordering::Relaxed);
        }
        ring.written.store(written + text.len() as u64, Ordering::Release);
    }

    #[test]
    fn what_is_printed_is_read_once_and_in_order() {
        let (report, mut log) = (blank(), Log::new());
        for number in 0..2000 {
            print(&report, format!("line {number}\n").as_bytes());
            log.drain(&report.console);
            log.drain(&report.console);
        }
        let mut all = Vec::new();
        loop {
            let piece = log.piece(all.len() as u64, 1000);
            if piece.bytes.is_empty() {
                break;
            }
            all.extend(piece.bytes);
        }
        let expected: alloc::string::String = (0..2000).map(|number| format!("line {number}\n")).collect();
        assert_eq!(all, expected.as_bytes());
    }

    #[test]
    fn old_bytes_give_way_and_offsets_stay() {
        let (report, mut log) = (blank(), Log::new());
        for letter in b'a'..=b'h' {
            print(&report, &[letter; 10_000]);
            log.drain(&report.console);
        }
        let piece = log.piece(0, 1);
        assert_eq!((piece.from, piece.bytes, piece.end), (80_000 - CAPACITY as u64, b"b".to_vec(), 80_000));
        assert_eq!(log.piece(u64::MAX, 10).from, 80_000);
    }

    #[test]
    fn a_gap_is_told() {
        let (report, mut log) = (blank(), Log::new());
        print(&report, &[b'x'; CONSOLE_LEN]);
        print(&report, b"end");
        log.drain(&report.console);
        let piece = log.piece(0, usize::MAX);
        assert!(piece.bytes.starts_with(b"\n[3 bytes of output are lost]\nxxx"));
        assert!(piece.bytes.ends_with(b"xend"));
    }

    #[test]
    fn a_cell_that_starts_again_goes_on_in_its_log() {
        let mut log = Log::new();
        for _ in 0..2 {
            let report = blank();
            log.restart();
            print(&report, b"hello\n");
            log.drain(&report.console);
        }
        assert_eq!(log.piece(0, 100).bytes, b"hello\nhello\n");
    }

    #[test]
    fn a_line_that_is_being_printed_is_not_taken_for_what_stood_in_its_place() {
        let (report, mut log) = (blank(), Log::new());
        print(&report, &[b'o'; CONSOLE_LEN]);
        let ring = &report.console;
        ring.begun.store(CONSOLE_LEN as u64 + 10, Ordering::Relaxed);
        ring.bytes[..4].iter().for_each(|byte| byte.store(b'n', Ordering::Relaxed));
        log.drain(ring);
        let kept = log.piece(0, usize::MAX).bytes;
        let told = b"\n[10 bytes of output are lost]\n";
        assert!(kept.starts_with(told) && kept[told.len()..] == [b'o'; CONSOLE_LEN - 10]);
    }

    #[test]
    fn a_log_is_resumed_at_the_number_at_which_it_ended() {
        let (report, mut log) = (blank(), Log::new());
        (0..5).for_each(|_| print(&report, &[b'x'; 10_000]));
        log.drain(&report.console);
        let resumed = Log::resume(&report.console).piece(u64::MAX, 1);
        assert_eq!((resumed.from, resumed.end), (50_000, 50_000));
        report.console.begun.store(u64::MAX, Ordering::Relaxed);
        report.console.written.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(Log::resume(&report.console).piece(u64::MAX, 1).end, CONSOLE_LEN as u64);
    }

    /// Counters as cells have them, and such as wrap around at the end of all numbers.
    fn any_counter() -> impl Strategy<Value = u64> {
        let near = |middle: u64| (0..200_000_u64).prop_map(move |offset| middle.wrapping_add(offset));
        prop_oneof![near(0), near(HIGHEST_NUMBER - 100_000), near(u64::MAX - 100_000), any::<u64>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_counter_does_harm(
            first in any_counter(),
            counters in proptest::collection::vec((any_counter(), any_counter()), 1..20),
            from in any_counter(),
        ) {
            let report = blank();
            report.console.written.store(first, Ordering::Relaxed);
            for mut log in [Log::new(), Log::resume(&report.console)] {
                for (written, begun) in &counters {
                    report.console.written.store(*written, Ordering::Relaxed);
                    report.console.begun.store(*begun, Ordering::Relaxed);
                    log.drain(&report.console);
                    let piece = log.piece(from, usize::MAX);
                    prop_assert!(piece.bytes.len() <= CAPACITY && log.kept.capacity() <= CAPACITY);
                    prop_assert_eq!(piece.from + piece.bytes.len() as u64, piece.end);
                    prop_assert!(piece.end < 2 * HIGHEST_NUMBER);
                }
            }
        }
    }
}
