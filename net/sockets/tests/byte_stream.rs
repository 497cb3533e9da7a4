//! Streams with the traits of `embedded-io-async`, between two cells of this process.

use edge_ws::{FrameHeader, FrameType};
use embedded_io_async::{BufRead, Error, ErrorKind, Read, ReadExactError, Write};
use isola_events::future::join;
use isola_hosted::Loss;
use isola_iobuf::{Chain, IoBuf};
use isola_net::{ByteStream, StreamError, TcpStream, listen};
use isola_test_cells::{CLIENT, dial, read_exactly, run_server_and_client};
use std::future::{Future, pending};

const PORT: u16 = 7;

/// Bytes that fill all queues between the cells, in both directions, several times.
const LARGE: usize = 3_000_001;

/// A window larger than the initial one.
const WINDOW: u32 = 500_000;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 % 251) as u8).collect()
}

/// Runs a server until `client` ends.
fn with_server<S, C>(serve: fn(TcpStream) -> S, client: fn() -> C)
where
    S: Future<Output = ()> + 'static,
    C: Future<Output = ()> + 'static,
{
    let server = move || async move {
        let _listening = listen(PORT, 16, serve).unwrap();
        pending::<()>().await;
    };
    run_server_and_client(2, Loss::EveryNth(101), server, client);
}

/// Echoes each message of a WebSocket.
async fn web_socket(stream: TcpStream) {
    let mut stream = ByteStream::from(stream);
    let mut message = vec![0; 100_000];
    loop {
        let header = FrameHeader::recv(&mut stream).await.unwrap();
        let payload = header.recv_payload(&mut stream, &mut message).await.unwrap();
        if header.frame_type == FrameType::Close {
            return;
        }
        let answer = FrameHeader { mask_key: None, ..header };
        answer.send(&mut stream).await.unwrap();
        answer.send_payload(&mut stream, payload).await.unwrap();
    }
}

#[test]
fn a_websocket_crate_runs_over_a_stream() {
    with_server(web_socket, || async {
        let mut stream = ByteStream::from(dial(PORT).await);
        let mut answer = vec![0; 100_000];
        for len in [0, 1, 125, 126, 65_535, 65_536, 99_999] {
            let message = pattern(len);
            let frame_type = FrameType::Binary(false);
            let header = FrameHeader { frame_type, payload_len: len as u64, mask_key: Some(0x0102_0304) };
            header.send(&mut stream).await.unwrap();
            header.send_payload(&mut stream, &message).await.unwrap();
            let header = FrameHeader::recv(&mut stream).await.unwrap();
            assert_eq!(header.payload_len, len as u64);
            assert!(header.recv_payload(&mut stream, &mut answer).await.unwrap() == message);
        }
        let close = FrameHeader { frame_type: FrameType::Close, payload_len: 0, mask_key: Some(1) };
        close.send(&mut stream).await.unwrap();
        assert_eq!(stream.read(&mut answer).await, Ok(0));
    });
}

async fn echo(mut stream: TcpStream) {
    while let Ok(Some(data)) = stream.read().await {
        if stream.write(data).await.is_err() {
            return;
        }
    }
    stream.shutdown();
}

#[test]
fn both_directions_transfer_concurrently_in_different_pieces() {
    with_server(echo, || async {
        let mut stream = ByteStream::from(dial(PORT).await);
        let sent = pattern(LARGE);
        let mut back = Vec::new();
        let (mut reader, mut writer) = stream.split();
        let writing = async {
            let mut rest = sent.as_slice();
            for len in [1, 100, 1_460, 70_000, 200_000].into_iter().cycle() {
                let (piece, behind) = rest.split_at(len.min(rest.len()));
                writer.write_all(piece).await.unwrap();
                rest = behind;
                if rest.is_empty() {
                    break;
                }
            }
            writer.flush().await.unwrap();
            writer.shutdown();
        };
        let reading = async {
            let mut piece = [0; 10_007];
            loop {
                match reader.read(&mut piece).await.unwrap() {
                    0 => break,
                    count => back.extend_from_slice(&piece[..count]),
                }
            }
        };
        join(reading, writing).await;
        assert!(back == sent);
        assert_eq!(stream.read(&mut [0; 1]).await, Ok(0));
        assert_eq!(stream.fill_buf().await, Ok(&[][..]));
        assert_eq!(stream.read_exact(&mut [0; 1]).await, Err(ReadExactError::UnexpectedEof));
    });
}

#[test]
fn lines_are_read_without_copies() {
    with_server(echo, || async {
        let mut stream = ByteStream::from(dial(PORT).await);
        stream.write_all(b"one\ntwo\nrest").await.unwrap();
        stream.stream().shutdown();
        let mut lines = vec![Vec::new()];
        loop {
            let filled = stream.fill_buf().await.unwrap();
            if filled.is_empty() {
                break;
            }
            let end = filled.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(filled.len(), |end| end + 1);
            lines.last_mut().unwrap().extend_from_slice(&filled[..taken]);
            stream.consume(taken);
            if end.is_some() {
                lines.push(Vec::new());
            }
        }
        assert_eq!(lines, [b"one\n".to_vec(), b"two\n".to_vec(), b"rest".to_vec()]);
    });
}

#[test]
fn unread_data_is_returned_by_into_inner() {
    with_server(echo, || async {
        let mut stream = ByteStream::from(dial(PORT).await);
        stream.write_all(b"hello").await.unwrap();
        let mut first = [0; 1];
        assert_eq!(stream.read(&mut first).await, Ok(1));
        let (mut stream, mut rest) = stream.into_inner();
        while rest.len() < 4 {
            rest.append(stream.read().await.unwrap().unwrap());
        }
        assert_eq!((first, rest.to_vec().as_slice()), (*b"h", &b"ello"[..]));
    });
}

#[test]
fn a_reset_has_the_error_kind_of_the_traits() {
    async fn abort(mut stream: TcpStream) {
        stream.read().await.unwrap();
        stream.abort();
    }
    with_server(abort, || async {
        let mut stream = ByteStream::from(dial(PORT).await);
        stream.write_all(b"x").await.unwrap();
        let error = stream.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(StreamError::Closed.kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn the_application_sets_the_send_limit() {
    async fn silent(stream: TcpStream) {
        pending::<()>().await;
        drop(stream);
    }
    with_server(silent, || async {
        let mut stream = dial(PORT).await;
        stream.set_send_limit(1_000);
        assert_eq!(stream.send_space(), 1_000);
        stream.write(Chain::from(IoBuf::from(vec![1; 400]))).await.unwrap();
        assert_eq!(stream.send_space(), 600);
        stream.set_send_limit(300);
        assert_eq!(stream.send_space(), 0);
    });
}

#[test]
fn the_application_sets_the_receive_window() {
    async fn serve(mut stream: TcpStream) {
        stream.set_receive_window(WINDOW);
        // The new window is in this segment's header.
        stream.write(IoBuf::from_static(b"!").into()).await.unwrap();
        stream.read().await.unwrap();
    }
    with_server(serve, || async {
        let mut stream = dial(PORT).await;
        assert_eq!(read_exactly(&mut stream, 1).await, b"!");
        let window = stream.statistics().unwrap().peer_window;
        assert!(window <= WINDOW && window > WINDOW - 1_000, "{window} bytes");
        assert_eq!(stream.local().unwrap().ip(), CLIENT);
    });
}
