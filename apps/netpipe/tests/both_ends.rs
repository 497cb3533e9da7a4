//! Both ends, each in a cell of this process, on a link in memory.

use isola_gateway::test_cells::{dial, talk};
use isola_hosted::Loss;
use isola_iobuf::IoBuf;
use isola_net::{StreamError, listen};
use isola_netpipe::end::EndError;
use isola_netpipe::round::Round;
use isola_netpipe::{Settings, measure_all, serve};
use std::future::{Future, pending};
use std::sync::Mutex;
use std::time::Duration;

const PORT: u16 = 5002;

/// How the server's connections ended.
static ENDED: Mutex<Vec<Result<(), EndError>>> = Mutex::new(Vec::new());

fn with_server<C: Future<Output = ()> + 'static>(client: fn() -> C) {
    let server = || async {
        let listening = listen(PORT, 4, |stream| async {
            let ended = serve(stream).await;
            ENDED.lock().unwrap().push(ended);
        });
        let _listening = listening.unwrap();
        pending::<()>().await;
    };
    talk(1, Loss::Never, server, client);
}

#[test]
fn all_sizes_are_measured_in_their_order() {
    with_server(|| async {
        let mut measured = Vec::new();
        let settings = Settings { most: 100_000, round: Duration::from_millis(1), rounds: 2, least_count: 1 };
        measure_all(dial(PORT).await, settings, |size| measured.push(size)).await.unwrap();
        let sizes: Vec<usize> = measured.iter().map(|measured| measured.size).collect();
        assert_eq!(sizes, isola_netpipe::sizes::sizes(100_000));
        assert!(measured.iter().all(|measured| measured.one_way_ns > 0 && measured.count > 0));
    });
}

#[test]
fn who_asks_for_what_is_too_large_or_leaves_in_the_middle_holds_nothing_up() {
    with_server(|| async {
        let mut greedy = dial(PORT).await;
        let round = [Round { size: 1, count: 1 }.to_bytes(), [0xff; 8]].concat();
        greedy.write(IoBuf::from([&round[..8], b"x", &round[8..]].concat()).into()).await.unwrap();
        let mut answer = Vec::new();
        loop {
            match greedy.read().await {
                Ok(Some(data)) => answer.extend(data.to_vec()),
                Ok(None) | Err(StreamError::Failed(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(answer, b"n");
        let mut leaver = dial(PORT).await;
        let round = Round { size: 1_000, count: 9 }.to_bytes();
        leaver.write(IoBuf::copy_from_slice(&round).into()).await.unwrap();
        leaver.write(IoBuf::from_static(b"not all of it").into()).await.unwrap();
        leaver.shutdown();
        assert!(matches!(leaver.read().await, Ok(None)));
        let ended = ENDED.lock().unwrap().clone();
        assert!(
            ended.contains(&Err(EndError::Protocol)) && ended.contains(&Err(EndError::Short)),
            "{ended:?}"
        );
        let settings = Settings { most: 8, round: Duration::ZERO, rounds: 1, least_count: 1 };
        measure_all(dial(PORT).await, settings, |_| ()).await.unwrap();
    });
}
