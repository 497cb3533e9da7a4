//! One reading of the machine at a time, for any number of requests.
//!
//! A thread makes the readings. A reading answers all requests that arrived before it began, and none that arrived
//! later: each request gets values that are newer than the request, and many clients do not multiply the work of the
//! supervisor.

use super::series::Metrics;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

/// A reading, or the reason why there is none.
pub type Answer = Result<Arc<Metrics>, String>;

/// The thread that makes readings.
#[derive(Debug)]
pub struct ReadingThread {
    requests: Sender<SyncSender<Answer>>,
}

impl ReadingThread {
    /// Starts the thread, which calls `read` for each reading. It ends with this value.
    pub fn start(read: impl FnMut() -> Result<Metrics, String> + Send + 'static) -> Self {
        let (requests, receiver) = channel();
        thread::spawn(move || answer_all(&receiver, read));
        Self { requests }
    }

    /// Waits for the next reading for at most `limit`. Returns `None` after that time; the reading continues.
    pub fn next(&self, limit: Duration) -> Option<Answer> {
        let (answer, receiver) = sync_channel(1);
        self.requests.send(answer).ok()?;
        receiver.recv_timeout(limit).ok()
    }
}

fn answer_all(requests: &Receiver<SyncSender<Answer>>, mut read: impl FnMut() -> Result<Metrics, String>) {
    while let Ok(first) = requests.recv() {
        let waiting: Vec<_> = [first].into_iter().chain(requests.try_iter()).collect();
        let answer = read().map(Arc::new);
        for request in waiting {
            // A request that has timed out has no receiver any more.
            let _ = request.try_send(answer.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::sleep;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn requests_during_a_reading_share_the_next_one() {
        let readings = Arc::new(AtomicUsize::new(0));
        let (begun, wait_for_begin) = channel();
        let (go_on, wait_to_go_on) = sync_channel::<()>(0);
        let counted = Arc::clone(&readings);
        let reading = ReadingThread::start(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            let _ = begun.send(());
            let _ = wait_to_go_on.recv();
            Ok(Metrics::default())
        });
        thread::scope(|scope| {
            let reading = &reading;
            let mut requests = vec![scope.spawn(|| reading.next(LONG))];
            wait_for_begin.recv().unwrap();
            requests.extend((0..8).map(|_| scope.spawn(|| reading.next(LONG))));
            // The requests are in the queue before the first reading ends.
            sleep(Duration::from_millis(300));
            go_on.send(()).unwrap();
            wait_for_begin.recv().unwrap();
            drop(go_on);
            assert!(requests.into_iter().all(|request| matches!(request.join().unwrap(), Some(Ok(_)))));
        });
        assert_eq!(readings.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_request_waits_for_a_limited_time() {
        let reading = ReadingThread::start(|| {
            sleep(LONG);
            Err("late".to_owned())
        });
        assert!(reading.next(Duration::from_millis(20)).is_none());
    }
}
