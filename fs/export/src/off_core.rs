//! Runs blocking system calls on threads outside of the cores.
//!
//! A core must not wait for a disk. A few threads of the process do such work. When it is done, they interrupt the core
//! that requested it, and the interrupt handler wakes the waiting task.

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

/// The number of threads.
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
            // `work` catches its own panics.
            Ok(work) => work(),
            Err(_) => return,
        }
    }
}

/// Locks a mutex with plain data, which is consistent even after a panic of a thread that held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The completed work of a core, as the wakers of the tasks that wait for it.
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

/// The work has panicked, and its result is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkPanicked;

impl fmt::Display for WorkPanicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("blocking work has panicked: the process's error output has the reason")
    }
}

impl std::error::Error for WorkPanicked {}

/// The result of work, and the task that waits for it.
struct Slot<T> {
    output: Option<Result<T, WorkPanicked>>,
    waiting: Option<Waker>,
}

/// The core to interrupt when work is done.
struct Completion {
    platform: &'static dyn Platform,
    core: CoreIndex,
    vector: u8,
    done: Arc<Mutex<Vec<Waker>>>,
}

/// Runs `work`, which may block, on another thread, and returns its result. The work is completed even if the future is
/// dropped.
///
/// If the core has no free interrupt vector, `work` runs on the core and blocks it.
///
/// # Errors
/// Returns [`WorkPanicked`] if the work has panicked, in a process built with unwinding; applications end instead. The
/// work may be half done.
pub async fn off_core<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, WorkPanicked> {
    let work = move || catch_unwind(AssertUnwindSafe(work)).map_err(|_| WorkPanicked);
    let Some(vector) = COMPLETIONS.vector() else { return work() };
    let notice =
        Completion { platform: platform(), core: current_core(), vector, done: COMPLETIONS.done.clone() };
    let slot = Arc::new(Mutex::new(Slot { output: None, waiting: None }));
    let there = slot.clone();
    let work = Box::new(move || {
        let output = work();
        let waiting = {
            let mut slot = lock(&there);
            slot.output = Some(output);
            slot.waiting.take()
        };
        // A waker must be used on a core only, so this thread interrupts the core, which then wakes its task.
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
