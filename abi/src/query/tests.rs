use super::*;
use alloc::boxed::Box;
use alloc::vec;
use proptest::prelude::*;

fn answers() -> Box<Answers> {
    Box::new(Answers::new())
}

/// The size of a small ring, in words and in bytes.
const SMALL: usize = 64;
const SMALL_BYTES: u64 = 512;

fn push(ring: &Ring<'_>, record: &[u8]) -> Result<(), RecordDropped> {
    // Pieces with lengths that are not multiples of a word.
    ring.push_pieces(record.len(), record.chunks(5))
}

#[test]
fn a_query_reads_back_and_replaces_only_the_previous_one_on_its_line() {
    let queries = Queries::default();
    assert_eq!(queries.get(Line::Facts), None);
    let first = queries.put(Line::Facts, b"counters").unwrap();
    let frames = queries.put(Line::Frames, b"frames").unwrap();
    let second = queries.put(Line::Facts, b"connections").unwrap();
    assert!(first != 0 && first != second);
    assert_eq!(queries.get(Line::Facts), Some((second, b"connections".to_vec())));
    assert_eq!(queries.get(Line::Frames), Some((frames, b"frames".to_vec())));
    assert_eq!(queries.put(Line::Facts, &[0; MAX_QUERY + 1]), None);
    assert_eq!(queries.number(Line::Facts), second, "a query that is too long changes nothing");
}

#[test]
fn the_longest_queries_fit() {
    let filter = FrameFilter { port: Some(u16::MAX), host: Some([u16::MAX; 8].into()) };
    for query in [
        Query::Counters,
        Query::Connections { filter, most: u32::MAX },
        Query::Capture(CaptureSpec { filter, snap_len: u32::MAX }),
        Query::EndCapture,
        Query::Trace(TraceSpec { cores: u64::MAX }),
        Query::Profile(ProfileSpec { cores: u64::MAX }),
    ] {
        let bytes = query.encode();
        assert!(bytes.len() <= MAX_QUERY);
        assert_eq!(Query::decode(&bytes), Some(query));
    }
    assert_eq!(Query::decode(&[9, 9, 9]), None);
}

#[test]
fn an_answer_belongs_to_its_query() {
    let answers = answers();
    let ring = answers.on(Line::Facts);
    assert_eq!(ring.piece(1, 1, 0, 4096).state, QueryState::Open);
    ring.begin(1);
    push(&ring, b"old").unwrap();
    assert_eq!(ring.piece(1, 2, 0, 4096).state, QueryState::Replaced);
    assert_eq!(ring.piece(2, 2, 0, 4096).state, QueryState::Open);
    ring.begin(2);
    push(&ring, b"new").unwrap();
    let piece = ring.piece(2, 2, 0, 4096);
    let mut records = Records::default();
    records.add(&piece).unwrap();
    assert_eq!(records.next_record(), Ok(Some(&b"new"[..])));
    assert_eq!(records.next_record(), Ok(None));
}

#[test]
fn an_unread_ring_drops_and_counts_records_until_it_is_read() {
    let answers = answers();
    let ring = answers.on(Line::Frames);
    ring.begin(1);
    let record = [7; 1000];
    let fit = (0..1000).take_while(|_| push(&ring, &record).is_ok()).count();
    assert_eq!(fit, FRAMES_BYTES / 1008);
    assert_eq!(push(&ring, &record), Err(RecordDropped));
    let piece = ring.piece(1, 1, 0, 1008);
    assert_eq!((piece.bytes.len(), piece.lost), (1008, 2));
    assert_eq!(push(&ring, &record), Err(RecordDropped), "the reader has not acknowledged the piece");
    ring.piece(1, 1, 1008, 0);
    assert_eq!(push(&ring, &record), Ok(()));
    assert_eq!(push(&ring, &record), Err(RecordDropped));
    ring.begin(2);
    assert_eq!(ring.piece(2, 2, 0, 0).lost, 0, "each answer has its own count");
    assert_eq!(ring.room(), FRAMES_BYTES as u64);
}

#[test]
fn a_record_longer_than_the_ring_is_dropped() {
    let answers = answers();
    let ring = answers.on(Line::Facts);
    ring.begin(1);
    assert_eq!(ring.push(&vec![0; FACTS_BYTES]), Err(RecordDropped));
    assert_eq!(ring.push(&vec![0; FACTS_BYTES - 8]), Ok(()));
}

#[test]
fn a_record_with_more_bytes_than_its_frame_is_refused() {
    let head = FrameHead { unix_ns: 1, direction: Direction::In, len_bytes: 3, sum: None };
    let mut buffer = [0; FrameHead::MAX_ENCODED];
    let mut record = head.encode(&mut buffer).to_vec();
    record.extend([1, 2, 3]);
    assert_eq!(FrameHead::decode(&record), Ok((head, &[1, 2, 3][..])));
    record.push(4);
    assert_eq!(FrameHead::decode(&record), Err(RecordError::Malformed));
    assert_eq!(FrameHead::decode(&[]), Err(RecordError::Malformed));
}

#[test]
fn the_longest_header_fits_in_its_buffer() {
    let sum = PartialSum { start: u16::MAX, offset: u16::MAX, segment_len: Some(u16::MAX) };
    let head =
        FrameHead { unix_ns: u64::MAX, direction: Direction::Out, len_bytes: u32::MAX, sum: Some(sum) };
    let mut buffer = [0; FrameHead::MAX_ENCODED];
    assert_eq!(FrameHead::decode(head.encode(&mut buffer)), Ok((head, &[][..])));
}

proptest! {
    /// A writer's records equal those of a reader that takes parts of any size, except for the records counted as
    /// dropped.
    #[test]
    fn records_round_trip_through_the_ring(
        steps in proptest::collection::vec((0..300_usize, 0..900_usize), 1..100),
    ) {
        let words = AnswerWords::<SMALL>::new();
        let ring = Ring { head: &words.head, words: &words.words };
        // Positions wrap around soon, as after a long run.
        ring.head.written.store(SMALL_BYTES * 3 - 64, Ordering::Relaxed);
        ring.begin(5);
        let (mut records, mut expected, mut lost) = (Records::default(), Vec::new(), 0);
        for (number, (len, max_bytes)) in steps.into_iter().enumerate() {
            let record: Vec<u8> = (0..len).map(|at| (at * 31 + number) as u8).collect();
            match push(&ring, &record) {
                Ok(()) => expected.push(record),
                Err(RecordDropped) => lost += 1,
            }
            let piece = ring.piece(5, 5, records.end(), max_bytes);
            prop_assert_eq!(piece.lost, lost);
            records.add(&piece).unwrap();
            while let Some(record) = records.next_record().unwrap() {
                prop_assert!(!expected.is_empty());
                prop_assert_eq!(record, &expected.remove(0)[..]);
            }
        }
    }

    /// A cell may write anything into its answers.
    #[test]
    fn hostile_rings_are_read_within_bounds(
        (start, written, read, lost) in any::<(u64, u64, u64, u64)>(),
        words in proptest::collection::vec(any::<u64>(), 8),
        (from, max_bytes) in (any::<u64>(), 0..100_000_usize),
    ) {
        let words_of_cell = AnswerWords::<SMALL>::new();
        let ring = Ring { head: &words_of_cell.head, words: &words_of_cell.words };
        ring.head.start.store(start, Ordering::Relaxed);
        ring.head.written.store(written, Ordering::Relaxed);
        ring.head.read.store(read, Ordering::Relaxed);
        ring.head.lost.store(lost, Ordering::Relaxed);
        ring.head.number.store(3, Ordering::Relaxed);
        ring.words.iter().zip(words.iter().cycle()).for_each(|(place, word)| place.store(*word, Ordering::Relaxed));
        let piece = ring.piece(3, 3, from, max_bytes);
        prop_assert!(piece.bytes.len() <= max_bytes.min(SMALL_BYTES as usize));
        let mut records = Records::default();
        records.add(&piece).unwrap();
        while let Ok(Some(record)) = records.next_record() {
            let _ = (AnswerRecord::decode(record), FrameHead::decode(record), Query::decode(record));
            let _ = TraceRecord::decode(record);
        }
        let _ = ring.push(&[1; 100]);
    }

    /// The reader accepts any bytes.
    #[test]
    fn any_bytes_are_cut_into_records_or_refused(pieces in proptest::collection::vec(
        (any::<u64>(), proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..300)), 0..6,
    )) {
        let mut records = Records::default();
        for (from, bytes) in pieces {
            let from = if from % 4 == 0 { from } else { records.end() };
            let state = QueryState::Answered;
            if records.add(&AnswerPiece { state, from, bytes, end: 0, lost: 0 }).is_err() {
                break;
            }
            while let Ok(Some(_)) = records.next_record() {}
        }
    }
}
