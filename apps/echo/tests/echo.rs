//! The server in one cell of this process, a client in another, connected by an in-memory link.

use isola_hosted::Loss;
use isola_iobuf::{Chain, IoBuf};
use isola_net::listen_with;
use isola_test_cells::{dial, read_exactly, run_server_and_client};
use std::future::{Future, pending};

const PORT: u16 = 7;

/// Runs the server on two cores until `client` has finished on a cell of its own.
fn with_server<C: Future<Output = ()> + 'static>(client: fn() -> C) {
    let server = || async {
        let _listening = listen_with(PORT, 16, |_| isola_echo::Echo::default()).unwrap();
        pending::<()>().await;
    };
    run_server_and_client(2, Loss::Never, server, client);
}

#[test]
fn received_data_is_returned() {
    with_server(|| async {
        let mut stream = dial(PORT).await;
        for turn in 0..100_u8 {
            stream.write(IoBuf::copy_from_slice(&[turn; 64]).into()).await.unwrap();
            assert_eq!(read_exactly(&mut stream, 64).await, [turn; 64]);
        }
    });
}

#[test]
fn a_client_that_has_closed_its_side_gets_all_data_back() {
    with_server(|| async {
        let sent: Vec<u8> = (0..300_000_u32).map(|n| (n * 7 % 251) as u8).collect();
        let mut stream = dial(PORT).await;
        stream.write(IoBuf::copy_from_slice(&sent).into()).await.unwrap();
        stream.shutdown();
        let mut back = Chain::new();
        while let Some(data) = stream.read().await.unwrap() {
            back.append(data);
        }
        assert!(back.to_vec() == sent);
    });
}

#[test]
fn an_aborted_connection_does_not_affect_others() {
    with_server(|| async {
        let mut leaver = dial(PORT).await;
        let mut stayer = dial(PORT).await;
        leaver.write(IoBuf::from_static(b"half a wo").into()).await.unwrap();
        leaver.abort();
        stayer.write(IoBuf::from_static(b"hello").into()).await.unwrap();
        assert_eq!(read_exactly(&mut stayer, 5).await, b"hello");
    });
}
