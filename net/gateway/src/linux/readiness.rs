//! The readiness of this core's sockets, and the tasks that wait for it.

use isola_ebbs::{Ebb, Representative};
use isola_events::interrupt::{Interrupt, allocate_interrupt};
use isola_hosted::file::{FileInterrupt, Interest};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

static READINESS: Ebb<Readiness> = Ebb::new();

/// The maximum number of events taken from epoll at once.
const BATCH: usize = 64;

/// The direction of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// The sockets of a core.
struct Readiness {
    epoll: Arc<OwnedFd>,
    interrupt: FileInterrupt,
    _handler: Interrupt,
    waiters: RefCell<BTreeMap<u64, Rc<Waiters>>>,
    next: Cell<u64>,
}

/// The tasks that wait for a socket.
#[derive(Default)]
struct Waiters {
    reader: Cell<Option<Waker>>,
    writer: Cell<Option<Waker>>,
}

impl Representative for Readiness {
    fn create() -> Self {
        let handler = allocate_interrupt(|| READINESS.wake_ready()).expect("a core has interrupts to spare");
        let created = epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from).and_then(|epoll| {
            let epoll = Arc::new(epoll);
            Ok((FileInterrupt::attach(epoll.clone(), Interest::Readable, handler.vector())?, epoll))
        });
        let (interrupt, epoll) =
            created.expect("Linux has a file descriptor for the sockets of a core: see ulimit -n");
        Self { epoll, interrupt, _handler: handler, waiters: RefCell::default(), next: Cell::new(0) }
    }
}

impl Readiness {
    /// Wakes the tasks that wait for ready sockets.
    fn wake_ready(&self) {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; BATCH];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) {
            for event in events {
                let (number, flags) = (event.data.u64(), event.flags);
                let Some(waiters) = self.waiters.borrow().get(&number).cloned() else { continue };
                let ended = EventFlags::HUP | EventFlags::ERR;
                if flags.intersects(EventFlags::IN | EventFlags::RDHUP | ended) {
                    waiters.reader.take().into_iter().for_each(Waker::wake);
                }
                if flags.intersects(EventFlags::OUT | ended) {
                    waiters.writer.take().into_iter().for_each(Waker::wake);
                }
            }
        }
        // Further ready sockets, now or later, interrupt again.
        self.interrupt.unmask();
    }
}

/// A non-blocking socket, with the tasks that wait for it.
pub(super) struct AsyncSocket<T> {
    socket: T,
    number: u64,
    waiters: Rc<Waiters>,
}

impl<T: AsFd> AsyncSocket<T> {
    pub fn new(socket: T) -> io::Result<Self> {
        let number = READINESS.next.get();
        READINESS.next.set(number + 1);
        // Edge-triggered: each operation is attempted before its task waits.
        let all = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&READINESS.epoll, &socket, EventData::new_u64(number), all)?;
        let waiters = Rc::<Waiters>::default();
        READINESS.waiters.borrow_mut().insert(number, waiters.clone());
        Ok(Self { socket, number, waiters })
    }

    /// Returns the socket.
    pub fn get(&self) -> &T {
        &self.socket
    }

    /// Attempts an operation, and waits for the socket if it would block.
    pub fn poll<R>(
        &self,
        context: &mut Context<'_>,
        direction: Direction,
        mut attempt: impl FnMut(&T) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            match attempt(&self.socket) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let waiting = match direction {
                        Direction::Read => &self.waiters.reader,
                        Direction::Write => &self.waiters.writer,
                    };
                    // No edge is lost: this core takes the edge that ends the wait, in a later event.
                    waiting.set(Some(context.waker().clone()));
                    return Poll::Pending;
                }
                done => return Poll::Ready(done),
            }
        }
    }

    /// Attempts an operation as [`Self::poll`] does, as a future.
    pub async fn when_ready<R>(
        &self,
        direction: Direction,
        mut attempt: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        std::future::poll_fn(|context| self.poll(context, direction, &mut attempt)).await
    }
}

impl<T> Drop for AsyncSocket<T> {
    fn drop(&mut self) {
        // The socket is closed next, which removes it from the epoll set.
        READINESS.waiters.borrow_mut().remove(&self.number);
    }
}
