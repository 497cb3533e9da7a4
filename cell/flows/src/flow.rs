//! A flow as a future.

use crate::ends::{Sink, Source};
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use isola_abi::id::ActivityId;
use isola_events::{CancelOnDrop, current_activity, spawn_task_for};
use isola_iobuf::Chain;

/// The window of a flow, in bytes, unless [`Flow::window`] sets another.
pub const DEFAULT_WINDOW: usize = 256 << 10;

/// The windows that a flow moves at most before other events of the core run.
const WINDOWS_PER_POLL: u64 = 4;

/// Whether a flow ends its sink's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkEnd {
    /// The sink can be used further.
    Stay,
    /// After all bytes, and not after an error.
    EndAfterLast,
}

/// The end that failed, with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowError<S, K> {
    /// The source failed.
    Source(S),
    /// The sink failed.
    Sink(K),
    /// The source ended before the flow's length: this many bytes are missing.
    TooShort(u64),
}

impl<S: fmt::Display, K: fmt::Display> fmt::Display for FlowError<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(error) => write!(f, "the source of a flow failed: {error}"),
            Self::Sink(error) => write!(f, "the sink of a flow failed: {error}"),
            Self::TooShort(missing) => write!(f, "the source of a flow ended {missing} bytes too early"),
        }
    }
}

impl<S: core::error::Error, K: core::error::Error> core::error::Error for FlowError<S, K> {}

/// The counts of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowStatistics {
    /// The successful reads of the source.
    pub reads: u64,
    /// The successful writes to the sink.
    pub writes: u64,
    /// How often the flow waited for its source, with nothing for the sink.
    pub source_waits: u64,
    /// How often it waited for its sink.
    pub sink_waits: u64,
    /// The most bytes that were read and not yet taken by the sink.
    pub most_waiting: usize,
}

/// The result of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it has the flow's error"]
pub struct Flowed<S, K> {
    /// The bytes that the sink took. If the sink failed, it may have lost some of them.
    pub bytes: u64,
    /// The counts.
    pub statistics: FlowStatistics,
    /// The end that failed.
    pub result: Result<(), FlowError<S, K>>,
}

/// A flow of bytes from a source to a sink. It is a future, which completes with [`Flowed`]; dropping it cancels it.
///
/// After its end, the source has no bytes of the flow left; after a cancellation, bytes that were read and not written
/// are lost.
#[must_use = "a flow moves nothing unless it is awaited or started"]
pub struct Flow<S, K> {
    source: S,
    sink: K,
    /// Bytes that were read and that the sink has not taken.
    waiting: Chain,
    window: usize,
    /// The bytes that are still to be read; `None`: all of the source.
    left: Option<u64>,
    sink_end: SinkEnd,
    source_has_ended: bool,
    bytes: u64,
    statistics: FlowStatistics,
}

/// Creates a flow of all bytes of a source.
pub fn flow<S: Source, K: Sink>(source: S, sink: K) -> Flow<S, K> {
    Flow {
        source,
        sink,
        waiting: Chain::new(),
        window: DEFAULT_WINDOW,
        left: None,
        sink_end: SinkEnd::Stay,
        source_has_ended: false,
        bytes: 0,
        statistics: FlowStatistics::default(),
    }
}

impl<S: Source, K: Sink> Flow<S, K> {
    /// Sets the window, in bytes.
    pub fn window(mut self, bytes: usize) -> Self {
        self.window = bytes.max(1);
        self
    }

    /// Sets the number of bytes. The rest of the source stays in it; a source that ends earlier is an error.
    pub fn length(mut self, bytes: u64) -> Self {
        self.left = Some(bytes);
        self
    }

    /// Sets whether the flow ends the sink's stream.
    pub fn sink_end(mut self, sink_end: SinkEnd) -> Self {
        self.sink_end = sink_end;
        self
    }

    /// Runs the flow in a task of its own, for the current activity. Dropping the result cancels it.
    pub fn start(self) -> CancelOnDrop<Flowed<S::Error, K::Error>>
    where
        Self: Future<Output = Flowed<S::Error, K::Error>> + 'static,
        S::Error: 'static,
        K::Error: 'static,
    {
        self.start_for(current_activity())
    }

    /// Runs the flow in a task of its own, for `activity`. Dropping the result cancels it.
    pub fn start_for(self, activity: ActivityId) -> CancelOnDrop<Flowed<S::Error, K::Error>>
    where
        Self: Future<Output = Flowed<S::Error, K::Error>> + 'static,
        S::Error: 'static,
        K::Error: 'static,
    {
        spawn_task_for(activity, self).cancel_on_drop()
    }

    /// Returns the counts so far.
    pub fn statistics(&self) -> FlowStatistics {
        self.statistics
    }

    fn flowed(&self, result: Result<(), FlowError<S::Error, K::Error>>) -> Poll<Flowed<S::Error, K::Error>> {
        Poll::Ready(Flowed { bytes: self.bytes, statistics: self.statistics, result })
    }

    /// Returns the number of bytes to ask the source for; 0 while less than half of the window is free.
    fn wanted(&self) -> usize {
        if self.source_has_ended {
            return 0;
        }
        let room = self.window.saturating_sub(self.waiting.len());
        let left = self.left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        if room >= self.window.div_ceil(2) { room.min(left) } else { 0 }
    }

    /// Asks the source for bytes. Returns whether it returned some, or ended.
    fn fill(&mut self, context: &mut Context<'_>) -> Result<bool, S::Error> {
        let wanted = self.wanted();
        if wanted == 0 {
            return Ok(false);
        }
        let before = self.waiting.len();
        let Poll::Ready(read) = self.source.poll_read(context, wanted, &mut self.waiting) else {
            return Ok(false);
        };
        read?;
        // Counted here, as the flow's length must hold for each source.
        let read = self.waiting.len() - before;
        self.statistics.reads += u64::from(read > 0);
        self.statistics.most_waiting = self.statistics.most_waiting.max(self.waiting.len());
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(read as u64);
        }
        self.source_has_ended = read == 0 || self.left == Some(0);
        Ok(true)
    }

    /// Passes bytes to the sink. Returns whether it took some.
    fn drain(&mut self, context: &mut Context<'_>) -> Result<bool, K::Error> {
        if self.waiting.is_empty() {
            return Ok(false);
        }
        let before = self.waiting.len();
        let Poll::Ready(written) = self.sink.poll_write(context, &mut self.waiting) else {
            return Ok(false);
        };
        written?;
        self.bytes += (before - self.waiting.len()) as u64;
        self.statistics.writes += 1;
        Ok(true)
    }

    /// Completes after the source's last byte.
    fn finish(&mut self, context: &mut Context<'_>) -> Poll<Flowed<S::Error, K::Error>> {
        match self.sink.poll_finish(context) {
            Poll::Pending => {
                self.statistics.sink_waits += 1;
                return Poll::Pending;
            }
            Poll::Ready(Err(error)) => return self.flowed(Err(FlowError::Sink(error))),
            Poll::Ready(Ok(())) => {}
        }
        if let Some(missing) = self.left.filter(|left| *left > 0) {
            return self.flowed(Err(FlowError::TooShort(missing)));
        }
        if self.sink_end == SinkEnd::EndAfterLast {
            self.sink.end();
        }
        self.flowed(Ok(()))
    }
}

impl<S: Source + Unpin, K: Sink + Unpin> Future for Flow<S, K> {
    type Output = Flowed<S::Error, K::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.source_has_ended |= this.left == Some(0);
        let most = this.bytes.saturating_add(WINDOWS_PER_POLL * this.window as u64);
        loop {
            let filled = match this.fill(context) {
                Ok(filled) => filled,
                Err(error) => return this.flowed(Err(FlowError::Source(error))),
            };
            let drained = match this.drain(context) {
                Ok(drained) => drained,
                Err(error) => return this.flowed(Err(FlowError::Sink(error))),
            };
            if this.source_has_ended && this.waiting.is_empty() {
                return this.finish(context);
            }
            if !filled && !drained {
                match this.waiting.is_empty() {
                    true => this.statistics.source_waits += 1,
                    false => this.statistics.sink_waits += 1,
                }
                return Poll::Pending;
            }
            if this.bytes >= most {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
}

impl<S, K> fmt::Debug for Flow<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.waiting.len();
        f.debug_struct("Flow").field("bytes", &self.bytes).field("waiting", &waiting).finish()
    }
}
