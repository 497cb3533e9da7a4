//! Data between device and application is not copied in either direction, verified by the addresses of buffers.
//!
//! The server's device is observed. Data that the application receives must be in the buffers that the device filled,
//! and data that the device sends must be in the application's memory. Any other byte was copied.

use isola_hosted::{Loss, link};
use isola_iobuf::{Chain, IoBuf};
use isola_net::port::{Frame, ReceivedFrame};
use isola_net::{Filter, TcpStream, filter, listen};
use isola_test_cells::{dial, read_exactly, talk_over};
use std::ops::Range;
use std::sync::{Arc, Mutex};

const PORT: u16 = 7;

/// Bytes in each direction: many frames, of several sizes.
const LEN: usize = 1_000_003;

/// Buffers, held so that no other buffer gets their addresses.
#[derive(Default)]
struct Kept {
    buffers: Vec<IoBuf>,
}

impl Kept {
    fn keep(&mut self, buffer: &IoBuf) {
        self.buffers.push(buffer.clone());
    }

    fn ranges(&self) -> Vec<Range<usize>> {
        let mut ranges: Vec<_> = self.buffers.iter().map(|buffer| range(buffer)).collect();
        ranges.sort_by_key(|range| range.start);
        ranges
    }

    /// Returns the number of bytes of `other` that are in none of these buffers.
    fn count_copied(&self, other: &Kept) -> usize {
        let ranges = self.ranges();
        let is_within = |byte: usize| {
            let before = ranges.partition_point(|range| range.start <= byte);
            ranges[..before].iter().rev().take(4).any(|range| range.contains(&byte))
        };
        other.ranges().into_iter().flatten().filter(|byte| !is_within(*byte)).count()
    }

    fn len(&self) -> usize {
        self.buffers.iter().map(|buffer| buffer.len()).sum()
    }
}

fn range(bytes: &[u8]) -> Range<usize> {
    let range = bytes.as_ptr_range();
    range.start as usize..range.end as usize
}

/// The buffers that the device and the application have handled.
#[derive(Default)]
struct Seen {
    device_received: Kept,
    device_sent: Kept,
    application_received: Kept,
    application_sent: Kept,
}

/// Records the frames of a device.
struct Watched(Arc<Mutex<Seen>>);

impl Filter for Watched {
    fn received(&mut self, frame: ReceivedFrame) -> Option<ReceivedFrame> {
        self.0.lock().unwrap().device_received.keep(&frame.frame);
        Some(frame)
    }

    fn sending(&mut self, frame: Frame) -> Option<Frame> {
        frame.payload.parts().for_each(|part| self.0.lock().unwrap().device_sent.keep(part));
        Some(frame)
    }
}

fn pattern(len: usize, step: usize) -> Vec<u8> {
    (0..len).map(|n| (n * step % 251) as u8).collect()
}

/// Receives [`LEN`] bytes, and sends as many of its own.
async fn serve(mut stream: TcpStream, seen: Arc<Mutex<Seen>>) {
    let mut come = Chain::new();
    while come.len() < LEN {
        come.append(stream.read().await.unwrap().expect("more data"));
    }
    come.parts().for_each(|part| seen.lock().unwrap().application_received.keep(part));
    assert!(come.to_vec() == pattern(LEN, 7));
    let own = pattern(LEN, 11);
    let sizes = [1, 64, 1460, 4096, 65_536];
    let mut rest = own.as_slice();
    let mut pieces = sizes.iter().cycle();
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.len().min(*pieces.next().unwrap()));
        let piece = IoBuf::copy_from_slice(piece);
        seen.lock().unwrap().application_sent.keep(&piece);
        stream.write(piece.into()).await.unwrap();
        rest = behind;
    }
    stream.shutdown();
}

fn exchange(loss: Loss) -> Seen {
    let (server_port, client_port) = link(loss);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let server_port = filter(server_port, |_| Watched(seen.clone()));
    let server_seen = seen.clone();
    let server = move || {
        let seen = server_seen.clone();
        async move {
            let _listening = listen(PORT, 4, move |stream| serve(stream, seen.clone())).unwrap();
            std::future::pending::<()>().await;
        }
    };
    talk_over((server_port, client_port), 1, server, || async {
        let mut stream = dial(PORT).await;
        stream.write(Chain::from(IoBuf::from(pattern(LEN, 7)))).await.unwrap();
        assert!(read_exactly(&mut stream, LEN).await == pattern(LEN, 11));
    });
    std::mem::take(&mut *seen.lock().unwrap())
}

#[test]
fn received_data_reaches_the_application_without_copies() {
    let seen = exchange(Loss::Never);
    assert_eq!(seen.application_received.len(), LEN);
    assert_eq!(seen.device_received.count_copied(&seen.application_received), 0, "bytes were copied");
}

#[test]
fn sent_data_reaches_the_device_without_copies() {
    // Frames are lost: a retransmission does not copy either.
    let seen = exchange(Loss::EveryNth(53));
    assert_eq!(seen.application_sent.len(), LEN);
    assert_eq!(seen.device_sent.count_copied(&seen.application_sent), 0, "bytes were copied");
}
