//! Flows from and to TCP streams, and relays between two of them.

use isola_events::{sleep, timeout};
use isola_flows::{FlowError, SinkEnd, flow};
use isola_hosted::Loss;
use isola_iobuf::{Chain, IoBuf};
use isola_net::{PortListener, StreamError, TcpStream, connect, listen, relay};
use isola_test_cells::{CLIENT, dial, read_exactly, run_server_and_client};
use std::future::pending;
use std::time::Duration;

const LEN: usize = 3_000_001;

fn contents() -> Vec<u8> {
    (0..LEN).map(|at| (at * 7 % 251) as u8).collect()
}

fn chain(bytes: &[u8], part: usize) -> Chain {
    bytes.chunks(part).map(IoBuf::copy_from_slice).collect()
}

/// Sends all contents from memory by a flow, with the stream's end.
async fn serve_contents() {
    let listening = listen(7, 8, |mut stream: TcpStream| async move {
        let source = chain(&contents(), 4096);
        let flowed = flow(source, &mut stream).window(100_000).sink_end(SinkEnd::EndAfterLast).await;
        assert_eq!((flowed.bytes, flowed.result), (LEN as u64, Ok(())));
        assert!(flowed.statistics.sink_waits > 0 && flowed.statistics.most_waiting <= 100_000, "{flowed:?}");
        while let Ok(Some(_)) = stream.read().await {}
    })
    .unwrap();
    pending::<()>().await;
    drop(listening);
}

#[test]
fn memory_flows_to_a_stream_and_a_stream_to_memory() {
    for loss in [Loss::Never, Loss::EveryNth(41)] {
        run_server_and_client(1, loss, serve_contents, || async {
            let mut stream = dial(7).await;
            let mut all = Chain::new();
            let flowed = flow(&mut stream, &mut all).window(50_000).length(1_000_000).await;
            assert_eq!((flowed.bytes, flowed.result, all.len()), (1_000_000, Ok(()), 1_000_000));
            assert!(flowed.statistics.most_waiting <= 50_000, "{flowed:?}");
            // The rest has stayed in the stream.
            let flowed = flow(&mut stream, &mut all).await;
            assert_eq!((flowed.bytes, flowed.result), ((LEN - 1_000_000) as u64, Ok(())));
            assert!(all.to_vec() == contents());
            let flowed = flow(&mut stream, &mut all).length(10).await;
            assert_eq!((flowed.bytes, flowed.result), (0, Err(FlowError::TooShort(10))));
        });
    }
}

#[test]
fn a_reset_is_an_error_of_its_end() {
    let reset = || async {
        let listening = listen(7, 8, |mut stream: TcpStream| async move {
            if stream.read().await.is_ok() {
                stream.abort();
            }
        })
        .unwrap();
        pending::<()>().await;
        drop(listening);
    };
    run_server_and_client(1, Loss::Never, reset, || async {
        let mut stream = dial(7).await;
        let flowed = flow(chain(&contents(), 9000), &mut stream).await;
        assert!(matches!(flowed.result, Err(FlowError::Sink(StreamError::Failed(_)))), "{flowed:?}");
        assert!(flowed.bytes < LEN as u64);
        let mut stream = dial(7).await;
        stream.write(IoBuf::from_static(b"x").into()).await.unwrap();
        let flowed = flow(&mut stream, Chain::new()).await;
        assert!(matches!(flowed.result, Err(FlowError::Source(StreamError::Failed(_)))), "{flowed:?}");
    });
}

/// A relay on port 8 to port 9 of the client's cell.
async fn serve_relay() {
    let _relay = listen(8, 64, |mut front: TcpStream| async move {
        let Ok(mut back) = connect((CLIENT, 9).into()).await else { return };
        let relayed = relay(&mut front, &mut back, 64 << 10).await;
        let [there, again] = [relayed.forward, relayed.backward].map(|flowed| flowed.map(|it| it.bytes));
        assert!(there.is_none() || again.is_none() || again <= there, "{relayed:?}");
    })
    .unwrap();
    pending::<()>().await;
}

/// Sends everything back that it receives.
fn echo() -> PortListener {
    let serve = |mut stream: TcpStream| async move {
        let (mut read, mut write) = stream.split();
        let flowed = flow(&mut read, &mut write).sink_end(SinkEnd::EndAfterLast).await;
        if flowed.result.is_ok() {
            while let Ok(Some(_)) = stream.read().await {}
        }
    };
    listen(9, 64, serve).unwrap()
}

#[test]
fn a_relay_moves_both_directions_and_passes_the_ends_on() {
    for loss in [Loss::Never, Loss::EveryNth(53)] {
        run_server_and_client(1, loss, serve_relay, || async {
            let _echo = echo();
            let mut stream = dial(8).await;
            let (mut read, mut write) = stream.split();
            let mut back = Chain::new();
            let there = flow(chain(&contents(), 5000), &mut write).sink_end(SinkEnd::EndAfterLast);
            let again = flow(&mut read, &mut back);
            let (there, again) = isola_events::future::join(there, again).await;
            assert_eq!((there.bytes, there.result), (LEN as u64, Ok(())));
            assert_eq!((again.bytes, again.result), (LEN as u64, Ok(())));
            assert!(back.to_vec() == contents());
        });
    }
}

#[test]
fn a_slow_reader_stops_a_relay_and_its_sender() {
    run_server_and_client(1, Loss::Never, serve_relay, || async {
        let _echo = echo();
        let mut sender = dial(8).await;
        // Windows and queues of three connections are full long before this.
        let data = chain(&vec![1; 40 << 20], 64 << 10);
        assert!(timeout(Duration::from_millis(700), sender.write(data)).await.is_err(), "nothing stops it");
        assert!(read_exactly(&mut sender, 100_000).await.iter().all(|byte| *byte == 1));
        sender.abort();
        sleep(Duration::from_millis(10)).await;
    });
}

#[test]
fn a_cancelled_flow_leaves_the_stream_usable() {
    run_server_and_client(1, Loss::Never, serve_contents, || async {
        let mut stream = dial(7).await;
        let mut all = Chain::new();
        for polls in 0..40 {
            let mut flow = std::pin::pin!(flow(&mut stream, &mut all).window(8 << 10));
            let mut left = polls;
            let cancelled = std::future::poll_fn(|context| {
                let ended = flow.as_mut().poll(context).is_ready();
                left -= 1;
                if ended || left < 0 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            });
            cancelled.await;
        }
        let flowed = flow(&mut stream, &mut all).await;
        assert_eq!(flowed.result, Ok(()));
        // A sink without limits leaves nothing waiting in a flow that is cancelled.
        assert!(all.to_vec() == contents());
    });
}
