//! Reading and storing the console output in a report that the cell may write at any time.

use super::*;
use isola_abi::report::Report;
use isola_supervisor_fake::report::blank;
use proptest::prelude::*;

/// Prints like a cell.
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
fn output_is_read_once_and_in_order() {
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
fn new_bytes_replace_the_oldest_and_keep_their_offsets() {
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
fn lost_output_is_noted_in_the_log() {
    let (report, mut log) = (blank(), Log::new());
    print(&report, &[b'x'; CONSOLE_LEN]);
    print(&report, b"end");
    log.drain(&report.console);
    let piece = log.piece(0, usize::MAX);
    assert!(piece.bytes.starts_with(b"\n[3 bytes of output are lost]\nxxx"));
    assert!(piece.bytes.ends_with(b"xend"));
}

#[test]
fn a_recreated_cell_continues_its_log() {
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
fn output_that_is_being_overwritten_counts_as_lost() {
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

/// Returns plausible counters, and such that overflow.
fn any_counter() -> impl Strategy<Value = u64> {
    let near = |middle: u64| (0..200_000_u64).prop_map(move |offset| middle.wrapping_add(offset));
    prop_oneof![near(0), near(HIGHEST_NUMBER - 100_000), near(u64::MAX - 100_000), any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_counters_are_safe(
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
