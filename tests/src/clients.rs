//! Client threads of a load, which check every answer until they are stopped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

/// The threads of a load. They share a [`Progress`].
#[derive(Debug, Default)]
pub(crate) struct ClientThreads {
    progress: Arc<Progress>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// The state that a load shares with its threads.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    stop: AtomicBool,
    answered: AtomicU64,
}

impl Progress {
    /// Returns whether the threads must end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Counts a correct answer.
    pub(crate) fn count_answer(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }
}

impl ClientThreads {
    /// Starts a thread with this work, which ends with an error at the first wrong answer.
    pub(crate) fn start(&mut self, work: impl FnOnce(&Progress) -> io::Result<()> + Send + 'static) {
        let progress = Arc::clone(&self.progress);
        self.threads.push(thread::spawn(move || work(&progress)));
    }

    /// Returns the number of correct answers so far.
    pub(crate) fn answered(&self) -> u64 {
        self.progress.answered.load(Ordering::Relaxed)
    }

    /// Checks that all clients still run.
    ///
    /// # Panics
    /// If a client has ended.
    pub(crate) fn check(&self) {
        let has_ended = self.threads.iter().any(JoinHandle::is_finished);
        assert!(!has_ended, "a client received a wrong answer or none");
    }

    /// Ends the clients; returns the number of correct answers.
    ///
    /// # Panics
    /// If a client received a wrong answer or none.
    pub(crate) fn end(self) -> u64 {
        self.progress.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a client does not panic").expect("every answer is correct");
        }
        self.progress.answered.load(Ordering::Relaxed)
    }
}
