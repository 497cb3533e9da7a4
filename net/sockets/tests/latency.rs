//! The service latencies in the report. The tests check lower bounds of time only.

use isola_abi::histogram::Distribution;
use isola_ebbs::platform;
use isola_events::{now, sleep, spawn_task};
use isola_hosted::Loss;
use isola_iobuf::{Chain, IoBuf};
use isola_net::latency::{self, answered};
use isola_net::{ConnectionHandler, TcpConnection, TcpStream, listen_with};
use isola_test_cells::{dial, read_exactly, run_server_and_client};
use std::future::pending;
use std::time::Duration;

const PORT: u16 = 7;

/// The latency of a slow request.
const SLOW: Duration = Duration::from_millis(20);

/// Returns the number of the cell's requests, and the number of slow ones, as a text.
fn request_counts() -> IoBuf {
    let clock = platform().clock();
    let slow = clock.cycles(now() + SLOW) - clock.cycles(now());
    let mut all = Distribution::default();
    platform().report().cores.iter().for_each(|core| all.add(&core.service.read()));
    IoBuf::copy_from_slice(format!("{:02} {:02}", all.count(), all.count_from(slow)).as_bytes())
}

/// A server with requests of one byte: it answers `q` at once, `s` after a while, `l` later, in a task; `?` is not
/// counted.
struct Server;

impl Server {
    fn answer(connection: &TcpConnection, answer: IoBuf) {
        connection.send(&mut answer.into()).unwrap();
    }
}

impl ConnectionHandler for Server {
    fn received(&mut self, connection: &TcpConnection, data: Chain) {
        for byte in data.to_vec() {
            match byte {
                b's' => {
                    let end = now() + SLOW + SLOW / 2;
                    while now() < end {}
                    answered(1);
                }
                b'l' => {
                    let (arrival, connection) = (latency::arrival(), connection.clone());
                    spawn_task(async move {
                        sleep(SLOW + SLOW / 2).await;
                        arrival.answered(1);
                        Self::answer(&connection, IoBuf::from_static(b"later"));
                    })
                    .detach();
                    continue;
                }
                b'q' => answered(1),
                _ => {}
            }
            Self::answer(connection, request_counts());
        }
    }
}

async fn serve() {
    let _listening = listen_with(PORT, 4, |_| Server).unwrap();
    pending::<()>().await;
}

async fn ask(stream: &mut TcpStream, question: &'static [u8]) -> String {
    stream.write(IoBuf::from_static(question).into()).await.unwrap();
    String::from_utf8(read_exactly(stream, 5 * question.len()).await).unwrap()
}

#[test]
fn requests_are_counted_with_their_latency_when_their_answers_are_sent() {
    run_server_and_client(2, Loss::Never, serve, || async {
        let mut stream = dial(PORT).await;
        assert_eq!(ask(&mut stream, b"?").await, "00 00");
        assert_eq!(ask(&mut stream, b"q").await, "00 00", "counted before its answer was sent");
        let request_counts = ask(&mut stream, b"?").await;
        assert!(request_counts.starts_with("01 "), "{request_counts}");
        ask(&mut stream, b"s").await;
        let request_counts = ask(&mut stream, b"?").await;
        assert!(request_counts.starts_with("02 ") && request_counts.as_str() >= "02 01", "{request_counts}");
    });
}

#[test]
fn an_answer_from_a_later_event_counts_from_the_arrival_of_its_request() {
    run_server_and_client(2, Loss::Never, serve, || async {
        let mut stream = dial(PORT).await;
        assert_eq!(ask(&mut stream, b"l").await, "later");
        let request_counts = ask(&mut stream, b"?").await;
        assert!(request_counts.as_str() >= "01 01", "{request_counts}");
    });
}

#[test]
fn each_request_of_a_batch_is_counted() {
    run_server_and_client(1, Loss::Never, serve, || async {
        let mut stream = dial(PORT).await;
        ask(&mut stream, b"qqqq").await;
        let request_counts = ask(&mut stream, b"?").await;
        assert!(request_counts.starts_with("04 "), "{request_counts}");
    });
}
