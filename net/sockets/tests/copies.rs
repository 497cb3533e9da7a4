//! Data between device and application is not copied in either direction, verified by the addresses of buffers.
//!
//! The server's device is observed. Data that the application receives must be in the buffers that the device filled,
//! and data that the device sends must be in the application's memory. Any other byte was copied.

use isola_hosted::{Loss, link};
use isola_iobuf::{Chain, IoBuf};
use isola_net::port::{Frame, ReceivedFrame};
use isola_net::{Filter, TcpStream, filter, listen};
use isola_test_cells::{dial, read_exactly, run_server_and_client_over};
use std::ops::Range;
use std::sync::{Arc, Mutex};

const PORT: u16 = 7;

/// Bytes in each direction: many frames, of several sizes.
const LEN: usize = 1_000_003;

/// Buffers, held so that no other buffer gets their addresses.
#[derive(Default)]
struct Buffers {
    buffers: Vec<IoBuf>,
}

impl Buffers {
    fn add(&mut self, buffer: &IoBuf) {
        self.buffers.push(buffer.clone());
    }

    fn ranges(&self) -> Vec<Range<usize>> {
        let mut ranges: Vec<_> = self.buffers.iter().map(|buffer| range(buffer)).collect();
        ranges.sort_by_key(|range| range.start);
        ranges
    }

    /// Returns the number of bytes of `other` that are in none of these buffers.
    fn count_copied(&self, other: &Buffers) -> usize {
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
struct Observations {
    device_received: Buffers,
    device_sent: Buffers,
    application_received: Buffers,
    application_sent: Buffers,
}

/// Records the frames of a device.
struct Observer(Arc<Mutex<Observations>>);

impl Filter for Observer {
    fn received(&mut self, frame: ReceivedFrame) -> Option<ReceivedFrame> {
        self.0.lock().unwrap().device_received.add(&frame.frame);
        Some(frame)
    }

    fn sending(&mut self, frame: Frame) -> Option<Frame> {
        frame.payload.parts().for_each(|part| self.0.lock().unwrap().device_sent.add(part));
        Some(frame)
    }
}

fn pattern(len: usize, step: usize) -> Vec<u8> {
    (0..len).map(|n| (n * step % 251) as u8).collect()
}

/// Receives [`LEN`] bytes, and sends as many of its own.
async fn serve(mut stream: TcpStream, observations: Arc<Mutex<Observations>>) {
    let mut received = Chain::new();
    while received.len() < LEN {
        received.append(stream.read().await.unwrap().expect("more data"));
    }
    received.parts().for_each(|part| observations.lock().unwrap().application_received.add(part));
    assert!(received.to_vec() == pattern(LEN, 7));
    let own = pattern(LEN, 11);
    let sizes = [1, 64, 1460, 4096, 65_536];
    let mut rest = own.as_slice();
    let mut pieces = sizes.iter().cycle();
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.len().min(*pieces.next().unwrap()));
        let piece = IoBuf::copy_from_slice(piece);
        observations.lock().unwrap().application_sent.add(&piece);
        stream.write(piece.into()).await.unwrap();
        rest = behind;
    }
    stream.shutdown();
}

fn exchange(loss: Loss) -> Observations {
    let (server_port, client_port) = link(loss);
    let observations = Arc::new(Mutex::new(Observations::default()));
    let server_port = filter(server_port, |_| Observer(observations.clone()));
    let server_observations = observations.clone();
    let server = move || {
        let observations = server_observations.clone();
        async move {
            let _listening = listen(PORT, 4, move |stream| serve(stream, observations.clone())).unwrap();
            std::future::pending::<()>().await;
        }
    };
    run_server_and_client_over((server_port, client_port), 1, server, || async {
        let mut stream = dial(PORT).await;
        stream.write(Chain::from(IoBuf::from(pattern(LEN, 7)))).await.unwrap();
        assert!(read_exactly(&mut stream, LEN).await == pattern(LEN, 11));
    });
    std::mem::take(&mut *observations.lock().unwrap())
}

#[test]
fn received_data_reaches_the_application_without_copies() {
    let observations = exchange(Loss::Never);
    assert_eq!(observations.application_received.len(), LEN);
    assert_eq!(
        observations.device_received.count_copied(&observations.application_received),
        0,
        "bytes were copied"
    );
}

#[test]
fn sent_data_reaches_the_device_without_copies() {
    // Frames are lost: a retransmission does not copy either.
    let observations = exchange(Loss::EveryNth(53));
    assert_eq!(observations.application_sent.len(), LEN);
    assert_eq!(observations.device_sent.count_copied(&observations.application_sent), 0, "bytes were copied");
}
