//! What Linux makes its callers wait for, done on threads beside the cores.
//!
//! A core is not to wait for a disk. A few threads of the process take such work, and interrupt the core that gave it when
//! it is done; the handler wakes the task that waits.

use isola_ebbs::{CellEbb, Ebb, Representative, current_core, platform};
use isola_events::interrupt::{Interrupt, allocate_interrupt};
use isola_platform::{CoreIndex, Platform};
use std::cell::OnceCell;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread;

/// Threads that wait in the cores' stead.
const THREADS: usize = 4;

type Work = Box<dyn FnOnce() + Send>;

static THREADS_OF_CELL: CellEbb<Threads> = CellEbb::new();
static COMPLETIONS: Ebb<Completions> = Ebb::new();

struct Threads {
    work: Mutex<Sender<Work>>,
}

impl Representative for Threads {
    fn create() -> Self {
        let (work, next) = channel::<Work>();
        let next = Arc::new(Mutex::new(next));
        for _ in 0..THREADS {
            let next = next.clone();
            thread::spawn(move || serve(&next));
        }
        Self { work: Mutex::new(work) }
    }
}

fn serve(next: &Mutex<Receiver<Work>>) {
    loop {
        let work = lock(next).recv();
        match work {
            // It catches its panics itself.
            Ok(work) => work(),
            Err(_) => return,
        }
    }
}

/// Plain data: a thread that panicked with the lock held has left it whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is done for a core, and whom it has to wake for it.
struct Completions {
    done: Arc<Mutex<Vec<Waker>>>,
    interrupt: OnceCell<Option<Interrupt>>,
}

impl Representative for Completions {
    fn create() -> Self {
        Self { done: Arc::default(), interrupt: OnceCell::new() }
    }
}

impl Completions {
    fn vector(&self) -> Option<u8> {
        let allocate = || {
            let done = self.done.clone();
            allocate_interrupt(move || std::mem::take(&mut *lock(&done)).into_iter().for_each(Waker::wake))
                .ok()
        };
        self.interrupt.get_or_init(allocate).as_ref().map(Interrupt::vector)
    }
}

/// The work has panicked: what it was to give is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("work beside the cores has panicked: what the process said then tells why")
    }
}

impl std::error::Error for Panicked {}

/// What comes back from a thread.
struct Slot<T> {
    output: Option<Result<T, Panicked>>,
    waiting: Option<Waker>,
}

/// Whom to tell that work is done.
struct Notice {
    platform: &'static dyn Platform,
    core: CoreIndex,
    vector: u8,
    done: Arc<Mutex<Vec<Waker>>>,
}

/// What `work` gives, which may wait for Linux: it is done on another thread. It is done even where nobody awaits it any
/// more.
///
/// A core without a free interrupt vector does it itself, and waits.
///
/// # Errors
/// [`Panicked`], where the process is built so that it survives that: applications are not, and end. What the work had in
/// its hands may be half done.
pub async fn off_core<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Panicked> {
    let work = move || catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked);
    let Some(vector) = COMPLETIONS.vector() else { return work() };
    let notice =
        Notice { platform: platform(), core: current_core(), vector, done: COMPLETIONS.done.clone() };
    let slot = Arc::new(Mutex::new(Slot { output: None, waiting: None }));
    let there = slot.clone();
    let work = Box::new(move || {
        let output = work();
        let waiting = {
            let mut slot = lock(&there);
            slot.output = Some(output);
            slot.waiting.take()
        };
        // No waker may be used on a thread that is no core: the core is interrupted, and wakes its task itself.
        if let Some(waiting) = waiting {
            lock(&notice.done).push(waiting);
            notice.platform.interrupt(notice.core, notice.vector);
        }
    });
    if let Err(unsent) = lock(&THREADS_OF_CELL.work).send(work) {
        (unsent.0)();
    }
    poll_fn(|context| {
        let mut slot = lock(&slot);
        match slot.output.take() {
            Some(output) => Poll::Ready(output),
            None => {
                slot.waiting = Some(context.waker().clone());
                Poll::Pending
            }
        }
    })
    .await
}
