//! Connection handlers: their calls and the order of these.

use isola_hosted::Loss;
use isola_iobuf::{Chain, IoBuf};
use isola_net::{ConnectionHandler, FailReason, TcpConnection, connect, listen, listen_with};
use isola_test_cells::{dial, read_exactly, run_server_and_client};
use std::future::pending;
use std::sync::Mutex;
use std::time::Duration;

const PORT: u16 = 7;

/// The receive window of a paused handler in these tests.
const WINDOW: u32 = 8 << 10;

/// A handler that records its calls in a list of the test.
struct Noting(&'static Mutex<Vec<String>>);

impl Noting {
    fn record(&self, call: impl Into<String>) {
        self.0.lock().unwrap().push(call.into());
    }
}

impl ConnectionHandler for Noting {
    fn received(&mut self, _connection: &TcpConnection, data: Chain) {
        self.record(String::from_utf8(data.to_vec()).unwrap());
    }

    fn peer_closed(&mut self, connection: &TcpConnection) {
        self.record("peer closed");
        connection.shutdown();
    }

    fn ended(&mut self, reason: Option<FailReason>) {
        self.record(format!("ended: {reason:?}"));
    }
}

/// Serves every connection by a handler that `accept` creates, until the test ends.
async fn serve<H: ConnectionHandler>(accept: impl Fn(&TcpConnection) -> H + Send + Sync + 'static) {
    let _listening = listen_with(PORT, 4, accept).unwrap();
    pending::<()>().await;
}

async fn wait_for(notes: &Mutex<Vec<String>>, last: &str) {
    while notes.lock().unwrap().last().is_none_or(|record| record != last) {
        isola_events::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_handler_receives_data_and_both_ends() {
    static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let server = || serve(|_| Noting(&NOTES));
    run_server_and_client(1, Loss::Never, server, || async {
        let mut stream = dial(PORT).await;
        stream.write(IoBuf::from_static(b"one").into()).await.unwrap();
        wait_for(&NOTES, "one").await;
        stream.write(IoBuf::from_static(b"two").into()).await.unwrap();
        stream.shutdown();
        assert_eq!(stream.read().await, Ok(None));
        wait_for(&NOTES, "ended: None").await;
        assert_eq!(*NOTES.lock().unwrap(), ["one", "two", "peer closed", "ended: None"]);
    });
}

#[test]
fn a_handler_receives_the_reason_of_an_early_end() {
    static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let server = || serve(|_| Noting(&NOTES));
    run_server_and_client(1, Loss::Never, server, || async {
        let mut stream = dial(PORT).await;
        stream.write(IoBuf::from_static(b"one").into()).await.unwrap();
        wait_for(&NOTES, "one").await;
        stream.abort();
        wait_for(&NOTES, "ended: Some(Reset)").await;
    });
}

/// Pauses until a resume.
struct Paused;

impl ConnectionHandler for Paused {
    fn received(&mut self, connection: &TcpConnection, mut data: Chain) {
        connection.send(&mut data).unwrap();
    }
}

static RECEIVED: Mutex<Option<u64>> = Mutex::new(None);

#[test]
fn a_paused_handler_slows_its_peer_and_gets_everything_later() {
    let server = || async {
        let _listening = listen_with(PORT, 4, |connection| {
            connection.set_receive_window(WINDOW);
            connection.pause();
            let connection = connection.clone();
            isola_events::spawn_task(async move {
                isola_events::sleep(Duration::from_millis(200)).await;
                *RECEIVED.lock().unwrap() =
                    connection.statistics().map(|statistics| statistics.bytes_received);
                connection.resume();
            })
            .detach();
            Paused
        })
        .unwrap();
        pending::<()>().await;
    };
    run_server_and_client(1, Loss::Never, server, || async {
        let sent: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
        let mut stream = dial(PORT).await;
        stream.write(IoBuf::copy_from_slice(&sent).into()).await.unwrap();
        assert!(read_exactly(&mut stream, sent.len()).await == sent);
        let received = RECEIVED.lock().unwrap().expect("an open connection");
        // Data in transit before the window was set arrives, too.
        assert!(received < 150_000, "{received} bytes arrived for a paused handler");
    });
}

#[test]
fn a_handler_receives_the_unread_data_of_its_stream() {
    static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let server = || async {
        let _listening = listen(PORT, 4, |mut stream| async move {
            let first = stream.read().await.unwrap().unwrap();
            assert_eq!(first.to_vec(), b"hello");
            stream.write(first).await.unwrap();
            // More may arrive before the handler is set.
            isola_events::sleep(Duration::from_millis(50)).await;
            stream.serve_by(Noting(&NOTES));
        })
        .unwrap();
        pending::<()>().await;
    };
    run_server_and_client(1, Loss::Never, server, || async {
        let mut stream = dial(PORT).await;
        stream.write(IoBuf::from_static(b"hello").into()).await.unwrap();
        assert_eq!(read_exactly(&mut stream, 5).await, b"hello");
        stream.write(IoBuf::from_static(b"early").into()).await.unwrap();
        wait_for(&NOTES, "early").await;
        stream.write(IoBuf::from_static(b"late").into()).await.unwrap();
        stream.shutdown();
        assert_eq!(stream.read().await, Ok(None));
        wait_for(&NOTES, "ended: None").await;
        assert_eq!(*NOTES.lock().unwrap(), ["early", "late", "peer closed", "ended: None"]);
    });
}

/// Closes at the first data, after a last message.
struct Curt(&'static Mutex<Vec<String>>);

impl ConnectionHandler for Curt {
    fn received(&mut self, connection: &TcpConnection, _data: Chain) {
        connection.send(&mut IoBuf::from_static(b"bye").into()).unwrap();
        connection.close();
        assert_eq!(connection.peer(), None);
        self.0.lock().unwrap().push("closed".into());
    }

    fn ended(&mut self, _reason: Option<FailReason>) {
        self.0.lock().unwrap().push("called after it released the connection".into());
    }
}

#[test]
fn a_handler_is_not_called_after_close() {
    static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let server = || serve(|_| Curt(&NOTES));
    run_server_and_client(1, Loss::Never, server, || async {
        let mut stream = dial(PORT).await;
        stream.write(IoBuf::from_static(b"hello").into()).await.unwrap();
        assert_eq!(read_exactly(&mut stream, 3).await, b"bye");
        assert_eq!(stream.read().await, Ok(None));
        drop(stream);
        let peer = dial(PORT).await.peer().unwrap();
        assert!(connect(peer).await.is_ok());
        assert_eq!(*NOTES.lock().unwrap(), ["closed"]);
    });
}
