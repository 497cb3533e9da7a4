//! A ring of `io_uring`: submissions that a program enters, and completions that it takes.
//!
//! Lock order: the state of the ring is the last lock. No lock is held while a task or a program is woken.

use super::chain::Chain;
use super::entry::{CancelRequest, Entry};
use super::in_flight::InFlight;
use super::operation::Submitter;
use super::pages::{COMPLETION_LEN, RingPages, RingWord};
use super::registered::Registered;
use super::{once, signal};
use crate::Errno;
use crate::environment::{TaskMaker, TaskPlacement};
use crate::thread::Thread;
use crate::wait_queue::WaitQueue;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::io_uring as abi;
use isola_linux_abi::numbers::O_RDWR;
use isola_linux_files::{Events, FileObject, InodeKind, Metadata, OpenFile, Pollee};
use isola_linux_memory::{MemoryCharge, PageSource};
use spin::Mutex;

/// The most submissions of a ring (`IORING_MAX_ENTRIES`).
pub const MOST_ENTRIES: u32 = 32_768;
/// The most completions of a ring (`IORING_MAX_CQ_ENTRIES`).
pub const MOST_COMPLETIONS: u32 = 2 * MOST_ENTRIES;
/// The most operations of a ring that are not complete, or whose completions did not fit.
pub const MOST_OPERATIONS: usize = 65_536;

/// The flags of `io_uring_setup`. Hints about the threads that submit have no effect.
const KNOWN_FLAGS: u32 = abi::IORING_SETUP_CQSIZE
    | abi::IORING_SETUP_CLAMP
    | abi::IORING_SETUP_R_DISABLED
    | abi::IORING_SETUP_SUBMIT_ALL
    | abi::IORING_SETUP_COOP_TASKRUN
    | abi::IORING_SETUP_TASKRUN_FLAG
    | abi::IORING_SETUP_SINGLE_ISSUER
    | abi::IORING_SETUP_DEFER_TASKRUN
    | abi::IORING_SETUP_NO_SQARRAY;

/// A ring.
pub struct Ring {
    flags: u32,
    pages: Arc<RingPages>,
    state: Mutex<State>,
    pollee: Pollee,
    /// Tasks that wait for completions.
    changes: WaitQueue,
    /// Registered files, buffers and event counter.
    pub registered: Registered,
}

struct State {
    /// The kernel's positions, of which the program sees copies.
    head: u32,
    tail: u32,
    /// Completions that did not fit.
    overflow: VecDeque<[u8; COMPLETION_LEN]>,
    in_flight: Vec<Arc<InFlight>>,
    /// Chains that run, and whether one of them excludes later ones.
    running: usize,
    is_draining: bool,
    /// Chains that wait for others to end.
    deferred: VecDeque<Chain>,
    /// The number of completions that are no timeouts.
    completed: u64,
    is_disabled: bool,
    is_closed: bool,
}

impl Ring {
    /// Creates a ring and its file, with the arguments of `io_uring_setup`: `completions` counts with
    /// `IORING_SETUP_CQSIZE` only.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for wrong numbers, and for flags that are not supported, such as `IORING_SETUP_SQPOLL`;
    /// [`Errno::ENOMEM`].
    pub fn open(
        entries: u32,
        completions: u32,
        flags: u32,
        charge: &Arc<dyn MemoryCharge>,
    ) -> Result<Arc<OpenFile>, Errno> {
        let clamps = flags & abi::IORING_SETUP_CLAMP != 0;
        let number = |number: u32, most: u32| match number {
            0 => Err(Errno::EINVAL),
            _ if number > most => {
                if clamps {
                    Ok(most)
                } else {
                    Err(Errno::EINVAL)
                }
            }
            _ => Ok(number.next_power_of_two()),
        };
        if flags & !KNOWN_FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        let deferred = flags & abi::IORING_SETUP_DEFER_TASKRUN != 0;
        if deferred && flags & abi::IORING_SETUP_SINGLE_ISSUER == 0 {
            return Err(Errno::EINVAL);
        }
        let entries = number(entries, MOST_ENTRIES)?;
        let completions = match flags & abi::IORING_SETUP_CQSIZE {
            0 => 2 * entries,
            _ => number(completions, MOST_COMPLETIONS)?,
        };
        if completions < entries {
            return Err(Errno::EINVAL);
        }
        let state = State {
            head: 0,
            tail: 0,
            overflow: VecDeque::new(),
            in_flight: Vec::new(),
            running: 0,
            is_draining: false,
            deferred: VecDeque::new(),
            completed: 0,
            is_disabled: flags & abi::IORING_SETUP_R_DISABLED != 0,
            is_closed: false,
        };
        let ring = Arc::new(Self {
            flags,
            pages: RingPages::new((entries, completions), charge)?,
            state: Mutex::new(state),
            pollee: Pollee::new(),
            changes: WaitQueue::default(),
            registered: Registered::default(),
        });
        Ok(OpenFile::of_object(Arc::new(RingFile { ring }), O_RDWR))
    }

    /// Returns the pages.
    pub fn pages(&self) -> &RingPages {
        &self.pages
    }

    /// Permits submissions to a ring that was created without (`IORING_SETUP_R_DISABLED`).
    ///
    /// # Errors
    /// [`Errno::EBADFD`] if they are permitted.
    pub fn enable(&self) -> Result<(), Errno> {
        let was_disabled = core::mem::replace(&mut self.state.lock().is_disabled, false);
        if was_disabled { Ok(()) } else { Err(Errno::EBADFD) }
    }

    /// Takes at most `most` entries that the program has submitted, and begins their operations. Returns the number of
    /// entries.
    ///
    /// # Errors
    /// [`Errno::EBADFD`] if the ring is disabled; [`Errno::EBUSY`] if too many operations are not complete, or completions
    /// that did not fit have not been taken.
    pub async fn submit(self: &Arc<Self>, thread: &Thread, most: u32) -> Result<u32, Errno> {
        if self.state.lock().is_disabled {
            return Err(Errno::EBADFD);
        }
        if most == 0 {
            return Ok(0);
        }
        if !self.flush() {
            return Err(Errno::EBUSY);
        }
        let submitter = Submitter::of(thread);
        let entries = self.pages.entries.0;
        // A program can write any tail.
        let tail = self.pages.load(RingWord::SubmissionTail);
        let head = self.state.lock().head;
        let available = tail.wrapping_sub(head).min(entries).min(most);
        let mut chain: Option<Chain> = None;
        let mut count = 0;
        while count < available {
            if self.is_full() {
                break;
            }
            let position = self.state.lock().head;
            let index = match self.flags & abi::IORING_SETUP_NO_SQARRAY {
                0 => self.pages.index(position),
                _ => position & (entries - 1),
            };
            self.advance_head();
            if index >= entries {
                let dropped = self.pages.load(RingWord::Dropped).wrapping_add(1);
                self.pages.store(RingWord::Dropped, dropped);
                break;
            }
            count += 1;
            let entry = Entry::read(thread, self, self.pages.submission(index)).await;
            // Memory that cannot be accessed is an error of the operation, not of its entry.
            let is_invalid = matches!(&entry.request, Err(error) if *error != Errno::EFAULT);
            let is_linked = entry.is_linked();
            let chain_now = chain.get_or_insert_with(|| Chain::new(self.clone(), submitter.clone()));
            let in_flight = chain_now.add(entry);
            self.state.lock().in_flight.push(in_flight);
            if !is_linked && let Some(chain) = chain.take() {
                self.begin(chain).await;
            }
            // As in Linux, the rest stays in the ring after an entry that cannot begin.
            if is_invalid && !is_linked && self.flags & abi::IORING_SETUP_SUBMIT_ALL == 0 {
                break;
            }
        }
        if let Some(chain) = chain {
            self.begin(chain).await;
        }
        if count == 0 && self.is_full() { Err(Errno::EBUSY) } else { Ok(count) }
    }

    fn is_full(&self) -> bool {
        let state = self.state.lock();
        state.in_flight.len() + state.overflow.len() >= MOST_OPERATIONS
    }

    fn advance_head(&self) {
        let mut state = self.state.lock();
        state.head = state.head.wrapping_add(1);
        self.pages.store(RingWord::SubmissionHead, state.head);
    }

    /// Begins a chain, or has it wait for others.
    async fn begin(self: &Arc<Self>, chain: Chain) {
        let chain = {
            let mut state = self.state.lock();
            if state.must_wait(&chain) {
                state.deferred.push_back(chain);
                return;
            }
            state.start(&chain);
            chain
        };
        self.attempt(chain).await;
    }

    /// Executes a chain that has been started: at once if it need not wait, otherwise as a task.
    async fn attempt(self: &Arc<Self>, mut chain: Chain) {
        if chain.begins_at_once() && once(chain.run()).await.is_some() {
            self.ended(&chain);
            return;
        }
        self.spawn(chain);
    }

    fn spawn(self: &Arc<Self>, mut chain: Chain) {
        let environment = chain.submitter.system.environment.clone();
        let task: TaskMaker = Box::new(move || {
            Box::pin(async move {
                chain.run().await;
                let ring = chain.ring.clone();
                ring.ended(&chain);
            })
        });
        environment.spawn(task, TaskPlacement::default());
    }

    /// Notes the end of a chain, and starts those that waited for it.
    fn ended(self: &Arc<Self>, ended: &Chain) {
        let mut started = Vec::new();
        let mut state = self.state.lock();
        state.running -= 1;
        state.is_draining &= !ended.drains;
        while let Some(next) = state.deferred.pop_front() {
            if state.is_blocked(&next) {
                state.deferred.push_front(next);
                break;
            }
            state.start(&next);
            started.push(next);
        }
        drop(state);
        for chain in started {
            self.spawn(chain);
        }
    }

    /// Adds a completion. `skips` says that the program does not want it.
    pub fn complete(&self, in_flight: &Arc<InFlight>, result: Result<u64, Errno>, skips: bool) {
        let number = match result {
            Ok(value) => value as i32,
            Err(errno) if errno >= Errno::ERESTARTSYS => -i32::from(Errno::EINTR.number()),
            Err(errno) => -i32::from(errno.number()),
        };
        let mut bytes = [0; COMPLETION_LEN];
        bytes[..8].copy_from_slice(&in_flight.user_data.to_le_bytes());
        bytes[8..12].copy_from_slice(&number.to_le_bytes());
        let mut state = self.state.lock();
        if let Some(at) = state.in_flight.iter().position(|other| Arc::ptr_eq(other, in_flight)) {
            state.in_flight.swap_remove(at);
        }
        state.completed += u64::from(!in_flight.is_timeout);
        if !skips && !state.is_closed {
            state.overflow.push_back(bytes);
            self.flush_state(&mut state);
        }
        drop(state);
        self.changes.wake_all();
        if !skips {
            self.pollee.notify(Events::IN);
            if self.pages.load(RingWord::CompletionFlags) & abi::IORING_CQ_EVENTFD_DISABLED == 0 {
                signal(&self.registered.counter());
            }
        }
    }

    /// Moves completions that did not fit to the ring. Returns whether all fit.
    pub fn flush(&self) -> bool {
        self.flush_state(&mut self.state.lock())
    }

    fn flush_state(&self, state: &mut State) -> bool {
        while let Some(bytes) = state.overflow.front() {
            let used = state.tail.wrapping_sub(self.pages.load(RingWord::CompletionHead));
            // Also if the program has written a head that cannot be.
            if used >= self.pages.entries.1 {
                break;
            }
            self.pages.put_completion(state.tail, bytes);
            state.tail = state.tail.wrapping_add(1);
            self.pages.store(RingWord::CompletionTail, state.tail);
            state.overflow.pop_front();
        }
        let flags = if state.overflow.is_empty() { 0 } else { abi::IORING_SQ_CQ_OVERFLOW };
        if self.pages.load(RingWord::SubmissionFlags) != flags {
            self.pages.store(RingWord::SubmissionFlags, flags);
        }
        state.overflow.is_empty()
    }

    /// Returns the number of completions that the program has not taken.
    pub fn available(&self) -> u32 {
        let state = self.state.lock();
        let head = self.pages.load(RingWord::CompletionHead);
        state.tail.wrapping_sub(head).min(self.pages.entries.1).saturating_add(state.overflow.len() as u32)
    }

    /// Waits until the program can take so many completions.
    pub async fn wait_for(&self, count: u32) {
        let count = count.min(self.pages.entries.1);
        self.changes
            .wait_until(|| {
                self.flush();
                (self.available() >= count).then_some(())
            })
            .await;
    }

    /// Returns the number of completions that are no timeouts after so many more; never reached if 0.
    pub fn completed_after(&self, count: u32) -> u64 {
        if count == 0 { u64::MAX } else { self.state.lock().completed + u64::from(count) }
    }

    /// Waits for a number of completions that are no timeouts.
    pub async fn wait_for_completed(&self, end: u64) {
        self.changes.wait_until(|| (self.state.lock().completed >= end).then_some(())).await;
    }

    /// Cancels operations. Returns 0, or their number if all that match were to be cancelled.
    pub fn cancel(&self, request: CancelRequest, by: &Arc<InFlight>) -> Result<u64, Errno> {
        let has = |flag| request.flags & flag != 0;
        let matches = |other: &&Arc<InFlight>| {
            !Arc::ptr_eq(other, by)
                && (!request.only_timeouts || other.is_timeout)
                && (has(abi::IORING_ASYNC_CANCEL_ANY)
                    || if has(abi::IORING_ASYNC_CANCEL_FD) {
                        other.descriptor as u32 as u64 == request.key
                    } else {
                        other.user_data == request.key
                    })
        };
        let all = has(abi::IORING_ASYNC_CANCEL_ALL) || has(abi::IORING_ASYNC_CANCEL_ANY);
        let most = if all { usize::MAX } else { 1 };
        let found: Vec<_> = {
            let state = self.state.lock();
            let waiting = |other: &&Arc<InFlight>| !other.is_cancelled();
            state.in_flight.iter().filter(matches).filter(waiting).take(most).cloned().collect()
        };
        let count = found.iter().filter(|other| other.cancel()).count() as u64;
        match count {
            0 if !all => Err(Errno::ENOENT),
            _ => Ok(if all { count } else { 0 }),
        }
    }

    /// Cancels all operations, as the ring's file ends.
    fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let deferred = core::mem::take(&mut state.deferred);
        let in_flight = core::mem::take(&mut state.in_flight);
        drop(state);
        drop(deferred);
        in_flight.iter().for_each(|operation| {
            operation.cancel();
        });
        self.registered.clear();
    }

    fn events(&self) -> Events {
        let read = if self.available() > 0 { Events::IN } else { Events::NONE };
        let head = self.state.lock().head;
        let used = self.pages.load(RingWord::SubmissionTail).wrapping_sub(head);
        let write = if used < self.pages.entries.0 { Events::OUT } else { Events::NONE };
        read | write
    }
}

impl State {
    /// Returns whether a chain waits for others that run.
    fn is_blocked(&self, chain: &Chain) -> bool {
        self.is_draining || chain.drains && self.running > 0
    }

    /// Returns whether a new chain waits for others that run, or that wait themselves.
    fn must_wait(&self, chain: &Chain) -> bool {
        self.is_blocked(chain) || !self.deferred.is_empty()
    }

    fn start(&mut self, chain: &Chain) {
        self.running += 1;
        self.is_draining |= chain.drains;
    }
}

/// The file of a ring, with whose end its operations are cancelled.
pub struct RingFile {
    /// The ring.
    pub ring: Arc<Ring>,
}

impl Drop for RingFile {
    fn drop(&mut self) {
        self.ring.close();
    }
}

impl FileObject for RingFile {
    fn can_be_read(&self) -> bool {
        false
    }

    fn ready(&self) -> Events {
        self.ring.events()
    }

    fn pollee(&self) -> Option<&Pollee> {
        Some(&self.ring.pollee)
    }

    fn pages(self: Arc<Self>) -> Option<Arc<dyn PageSource>> {
        Some(self.ring.pages.clone())
    }

    fn metadata(&self) -> Metadata {
        Metadata::anonymous(InodeKind::File, 0, 0o600)
    }

    fn description(&self) -> Vec<u8> {
        b"anon_inode:[io_uring]".to_vec()
    }
}
