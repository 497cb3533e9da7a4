//! A queue over a driver that comes and goes with its service cell.
//!
//! ```text
//!   submit ---> driver ---> completion ---> caller
//!      |           | the link ends
//!      `-------> again --- next driver
//! ```

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::task::Waker;
use isola_ebbs::{cycles, platform};
use isola_platform::block::{
    BlockCompletion, BlockControl, BlockLimits, BlockOutcome, BlockQueue, BlockRefusal, BlockRequest,
    CompletionsPending, RejectedBlockRequest,
};
use spin::Mutex;

/// The most requests that wait for a driver.
const MOST_WAITING: usize = 1024;

/// The driver of a connection.
type Driver = Box<dyn BlockQueue + Send>;

/// What the queue and the task that connects it share.
pub(crate) struct Reconnecting {
    limits: BlockLimits,
    driver: Option<Driver>,
    /// Completions that no driver has any more.
    done: VecDeque<BlockCompletion>,
    /// Requests without an answer: for the next driver.
    again: VecDeque<(u64, BlockRequest)>,
    /// Wakes the task that takes completions.
    taker: Option<Waker>,
    /// Wakes the task that connects.
    connector: Option<Waker>,
    /// Whether the service violated the protocol: its driver is of no use.
    is_broken: bool,
    /// Whether the caller has given the device up: all requests fail.
    has_failed: bool,
    /// Whether the queue was dropped.
    is_dropped: bool,
    /// The number of connections after the first one.
    reconnections: u64,
}

/// What the task that connects has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing.
    Nothing,
    /// Connect again.
    Connection,
    /// End: nobody uses the device any more.
    End,
}

impl Reconnecting {
    pub(crate) fn new(limits: BlockLimits, driver: Driver) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            limits,
            driver: Some(driver),
            done: VecDeque::new(),
            again: VecDeque::new(),
            taker: None,
            connector: None,
            is_broken: false,
            has_failed: false,
            is_dropped: false,
            reconnections: 0,
        }))
    }

    /// Returns what the connecting task has to do, and wakes it at the next change.
    pub(crate) fn need(&mut self, connector: &Waker) -> Need {
        self.connector = Some(connector.clone());
        match () {
            () if self.is_dropped || self.has_failed => Need::End,
            () if self.is_broken => Need::Connection,
            () => Need::Nothing,
        }
    }

    /// Wakes the task that takes completions: for a doorbell of the service.
    pub(crate) fn wake_taker(&self) {
        self.taker.iter().for_each(Waker::wake_by_ref);
    }

    /// Takes the driver of a link that has ended. Its completions are delivered, its other requests wait for the next one.
    pub(crate) fn detach(&mut self) {
        let Some(mut driver) = self.driver.take() else { return };
        while let Some(completion) = driver.take_completion() {
            self.sort(completion);
        }
        driver.give_up();
        while let Some(completion) = driver.take_completion() {
            self.sort(completion);
        }
        self.is_broken = false;
        self.wake_taker();
    }

    /// Continues with the driver of a new link, if the device is the same. Returns whether it is.
    pub(crate) fn attach(&mut self, limits: &BlockLimits, driver: Driver) -> bool {
        if *limits != self.limits {
            self.fail();
            return false;
        }
        self.driver = Some(driver);
        self.reconnections += 1;
        self.submit_again();
        self.wake_taker();
        true
    }

    /// Fails all requests, now and later: the service will not be back.
    pub(crate) fn fail(&mut self) {
        self.has_failed = true;
        self.detach();
        self.wake_taker();
    }

    /// Keeps a completion of a driver, or the request of one without an answer.
    fn sort(&mut self, completion: BlockCompletion) {
        match completion {
            BlockCompletion { outcome: BlockOutcome::DeviceFailed, request: Some(request), id, .. }
                if !self.has_failed =>
            {
                self.again.push_back((id, request));
            }
            completion => self.done.push_back(completion),
        }
    }

    fn submit_again(&mut self) {
        let Some(driver) = self.driver.as_mut().filter(|_| !self.again.is_empty()) else { return };
        while let Some((id, request)) = self.again.pop_front() {
            match driver.submit(request, id) {
                Ok(()) => {}
                Err(RejectedBlockRequest {
                    request,
                    reason: BlockRefusal::Full | BlockRefusal::DeviceFailed,
                }) => {
                    self.again.push_front((id, request));
                    break;
                }
                Err(RejectedBlockRequest { request, .. }) => {
                    self.done.push_back(without_device(id, request, BlockOutcome::IoError));
                }
            }
        }
        driver.flush();
    }

    fn take(&mut self) -> Option<BlockCompletion> {
        if let Some(completion) = self.done.pop_front() {
            return Some(completion);
        }
        while let Some(completion) = self.driver.as_mut().and_then(|driver| driver.take_completion()) {
            let has_failed = completion.outcome == BlockOutcome::DeviceFailed;
            if has_failed && !self.has_failed && completion.request.is_some() {
                // The service violated the protocol.
                self.sort(completion);
                self.is_broken = true;
                self.connector.take().into_iter().for_each(Waker::wake);
                continue;
            }
            self.submit_again();
            return Some(completion);
        }
        if self.has_failed {
            let (id, request) = self.again.pop_front()?;
            return Some(without_device(id, request, BlockOutcome::DeviceFailed));
        }
        None
    }
}

/// Returns a completion that no device has made.
fn without_device(id: u64, request: BlockRequest, outcome: BlockOutcome) -> BlockCompletion {
    let submitted = platform().clock().instant(cycles());
    BlockCompletion { id, outcome, request: Some(request), data_len: 0, submitted, ahead: 0 }
}

/// The queue.
pub(crate) struct ReconnectingQueue(pub(crate) Arc<Mutex<Reconnecting>>);

impl Drop for ReconnectingQueue {
    fn drop(&mut self) {
        let mut shared = self.0.lock();
        shared.is_dropped = true;
        shared.connector.take().into_iter().for_each(Waker::wake);
    }
}

impl BlockQueue for ReconnectingQueue {
    fn vector(&self) -> Option<u8> {
        None
    }

    fn wake_by(&mut self, waker: &Waker) {
        self.0.lock().taker = Some(waker.clone());
    }

    fn attach(&mut self) {}

    fn submit(&mut self, request: BlockRequest, id: u64) -> Result<(), RejectedBlockRequest> {
        let mut guard = self.0.lock();
        let shared = &mut *guard;
        let rejected = |request, reason| Err(RejectedBlockRequest { request, reason });
        if shared.has_failed {
            return rejected(request, BlockRefusal::DeviceFailed);
        }
        let has_earlier = !shared.again.is_empty();
        match &mut shared.driver {
            Some(driver) if !has_earlier => match driver.submit(request, id) {
                // It gets the request when it is connected again.
                Err(RejectedBlockRequest { request, reason: BlockRefusal::DeviceFailed }) => {
                    shared.again.push_back((id, request));
                    Ok(())
                }
                result => result,
            },
            _ if shared.again.len() >= MOST_WAITING => rejected(request, BlockRefusal::Full),
            _ if len_of(&request) > shared.limits.data_len as usize => {
                rejected(request, BlockRefusal::TooLong)
            }
            _ => {
                shared.again.push_back((id, request));
                Ok(())
            }
        }
    }

    fn flush(&mut self) {
        if let Some(driver) = &mut self.0.lock().driver {
            driver.flush();
        }
    }

    fn take_completion(&mut self) -> Option<BlockCompletion> {
        self.0.lock().take()
    }

    fn give_up(&mut self) {
        let mut shared = self.0.lock();
        shared.fail();
        shared.connector.take().into_iter().for_each(Waker::wake);
    }

    fn in_flight(&self) -> u16 {
        let shared = self.0.lock();
        let kept = shared.done.len() + shared.again.len();
        let in_driver = shared.driver.as_ref().map_or(0, |driver| driver.in_flight());
        in_driver.saturating_add(u16::try_from(kept).unwrap_or(u16::MAX))
    }

    fn enable_interrupts(&mut self) -> CompletionsPending {
        let mut shared = self.0.lock();
        if !shared.done.is_empty() || shared.has_failed && !shared.again.is_empty() {
            return CompletionsPending::Yes;
        }
        shared.driver.as_mut().map_or(CompletionsPending::No, |driver| driver.enable_interrupts())
    }

    fn disable_interrupts(&mut self) {
        if let Some(driver) = &mut self.0.lock().driver {
            driver.disable_interrupts();
        }
    }
}

/// Returns the length of a request's data in bytes.
fn len_of(request: &BlockRequest) -> usize {
    match request {
        BlockRequest::Read { into, .. } => into.iter().map(|buffer| buffer.len()).sum(),
        BlockRequest::Write { from, .. } => from.len(),
        _ => 0,
    }
}

/// The device as a whole: its capacity does not change while it is connected.
pub(crate) struct ServedControl {
    pub(crate) sectors: u64,
}

impl BlockControl for ServedControl {
    fn capacity(&mut self) -> u64 {
        self.sectors
    }
}

#[cfg(test)]
mod tests;
