//! One connection: the states of RFC 9293 3.3.2 between a [`Sender`] and a [`Receiver`].
//!
//! ```text
//!   SYN-SENT ──────────────┬─> ESTABLISHED ──FIN in──> CLOSE-WAIT ──shut down──> LAST-ACK ──> CLOSED
//!   SYN-RECEIVED ──────────┘        │ shut down
//!   (of a simultaneous open;        v
//!    a listener's is in        FIN-WAIT-1 ──acked──> FIN-WAIT-2 ──FIN in──> TIME-WAIT
//!    listener.rs)                   └──FIN in──> CLOSING ──acked──────────────^
//! ```
//!
//! A connection has three kinds of input: segments (`segments.rs`), calls of the application (here), and the time
//! (`clock.rs`). After each, the caller reads the results: [`Connection::has_output`], [`Connection::deadline`], the
//! [`Signals`], and whether the connection is over.

mod clock;
mod ecn;
mod ends;
pub(crate) mod header_prediction;
mod output;
mod receiver;
mod segments;
mod sender;
mod signals;
mod view;

pub(crate) use clock::Expiry;
pub(crate) use ecn::{EcnAgreement, LongSegment, NewDataOnly};
pub(crate) use ends::FastPathResult;
pub(crate) use output::{FastOutgoing, MoreToSend, Outgoing};
pub(crate) use segments::Verdict;
pub(crate) use signals::{Signal, Signals};

use super::options::{Options, TIMESTAMPS_LEN};
use super::segment::{DEFAULT_MSS, MIN_MSS};
use super::seq::Seq;
use super::timestamps::Stamps;
use super::{KeepAlive, SendError, TcpConfig};
use crate::base::{Counters, FailReason, Flow, Instant, ListenerId, Owner, RateLimit};
use crate::tcp::cached_path::CachedPath;
use crate::tcp::sack::BLOCKS_ALONE;
use alloc::boxed::Box;
use ecn::Marks;
use isola_iobuf::{Chain, IoBuf};
use receiver::Receiver;
pub use receiver::StreamEnd;
use sender::{Fin, Sender, WantedSpace};

/// The bytes that a connection may have in flight over a link in memory whatever its congestion window is, until a loss: the
/// queue in front of a link has room for those of four connections that the neighbour does not read.
const LINK_WINDOW: u32 = 256 << 10;

/// The states of RFC 9293 that have a connection object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    /// Both directions have ended, our FIN first. The tables keep a TIME-WAIT entry instead of the connection.
    TimeWait,
    /// The connection is over.
    Closed,
}

/// Whether the application still holds the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldByApp {
    Yes,
    /// The application has closed it; further received data has no reader.
    No,
}

/// The environment of a connection while it acts.
pub(crate) struct Env<'a> {
    pub now: Instant,
    pub config: &'a TcpConfig,
    pub counters: &'a mut Counters,
    /// Limits the acknowledgements that forged segments can provoke, for all connections of the stack.
    pub challenges: &'a mut RateLimit,
}

/// Whether a connection is in a table: the flow map, the connections that wait for a neighbour, or those with a due
/// keep-alive probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Membership {
    #[default]
    Out,
    In,
}

/// A TCP connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub flow: Flow,
    pub state: State,
    /// The listener that accepted the connection.
    pub listener: Option<ListenerId>,
    pub held_by_app: HeldByApp,
    /// The owner of all work for the connection.
    pub owner: Owner,
    pub signals: Signals,
    pub fail: FailReason,
    /// Whether the connection is in the flow map.
    pub mapped: Membership,
    /// Whether the connection waits for a neighbour to be resolved.
    pub searching: Membership,
    /// The path to the peer, as it was last looked up.
    pub path: Option<CachedPath>,
    sender: Sender,
    receiver: Receiver,
    /// The clocks of the timestamps option, if both sides use it.
    stamps: Option<Stamps>,
    marks: Marks,
    /// Start of the current second of challenge acknowledgements, and their number in it.
    challenged: (Instant, u8),
    /// The segment size that this side announces.
    local_mss: u16,
    /// End of FIN-WAIT-2 for a connection that the application has closed.
    fin_wait_until: Option<Instant>,
    /// Keep-alive settings; the time of the last segment or probe; and the number of probes since the last segment.
    keep_alive: Option<KeepAlive>,
    silent_since: Instant,
    keep_alive_probes: u8,
    keep_alive_due: Membership,
    segments_in: u64,
    segments_out: u64,
}

/// A completed passive handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handshake {
    pub flow: Flow,
    pub listener: ListenerId,
    /// The initial sequence numbers of both sides.
    pub local_initial: Seq,
    pub remote_initial: Seq,
    /// The options of the peer's SYN.
    pub options: Options,
    /// The window of the peer's SYN.
    pub window: u16,
    /// The time at which our SYN-ACK was sent, if it was sent only once.
    pub answered_at: Option<Instant>,
    /// Whether our SYN-ACK agreed to ECN.
    pub ecn: EcnAgreement,
    /// The segment size that our SYN-ACK announced.
    pub mss: u16,
    /// Offset of our timestamp clock.
    pub timestamp_offset: u32,
    /// The path of our SYN-ACK, if the neighbour was known.
    pub path: Option<CachedPath>,
}

impl Connection {
    #[inline]
    fn new(flow: Flow, state: State, initial: Seq, mtu_mss: u16, stamps: Stamps, env: &Env<'_>) -> Self {
        let config = env.config;
        let mss = u32::from(mtu_mss.min(DEFAULT_MSS));
        let capacity = config.receive_window.min(super::MAX_WINDOW);
        Self {
            flow,
            state,
            listener: None,
            held_by_app: HeldByApp::Yes,
            owner: Owner::UNKNOWN,
            signals: Signals::NONE,
            fail: FailReason::Reset,
            mapped: Membership::Out,
            searching: Membership::Out,
            path: None,
            sender: Sender::new(initial, mss, config, env.now),
            receiver: Receiver::new(capacity, u32::from(mtu_mss), config.reassembly_pieces),
            stamps: Some(stamps),
            marks: Marks::new(EcnAgreement::No, initial),
            challenged: (env.now, 0),
            local_mss: mtu_mss,
            fin_wait_until: None,
            keep_alive: config.keep_alive,
            silent_since: env.now,
            keep_alive_probes: 0,
            keep_alive_due: Membership::Out,
            segments_in: 0,
            segments_out: 0,
        }
    }

    /// Returns a connection in SYN-SENT.
    pub fn connect(flow: Flow, initial: Seq, mtu_mss: u16, stamps: Stamps, env: &Env<'_>) -> Self {
        Self::new(flow, State::SynSent, initial, mtu_mss, stamps, env)
    }

    /// Returns an established connection for a handshake that a listener has completed.
    pub fn accept(handshake: &Handshake, env: &Env<'_>) -> Box<Self> {
        let Handshake { flow, local_initial, mss, timestamp_offset, .. } = *handshake;
        let stamps = Stamps::new(timestamp_offset, env.now);
        // Boxed before it is modified: the object is large, and boxing later would copy it once more.
        let mut connection = Box::new(Self::new(flow, State::Established, local_initial, mss, stamps, env));
        connection.path = handshake.path;
        connection.listener = Some(handshake.listener);
        connection.marks.agreed = handshake.ecn;
        connection.synchronize(handshake.remote_initial, handshake.options, env);
        let window = u32::from(handshake.window);
        connection.sender.establish(env.now, handshake.remote_initial, window);
        match handshake.answered_at {
            Some(sent) => connection.sender.rtt.measure(env.now.since(sent)),
            None => connection.sender.rtt.after_lost_syn(),
        }
        connection.signals.raise(Signal::Accepted);
        connection
    }

    /// Adopts the values of the peer's SYN. Window scaling, timestamps and SACK are used only if both sides offer them.
    fn synchronize(&mut self, remote_initial: Seq, options: Options, env: &Env<'_>) {
        self.receiver.synchronize(remote_initial, u32::from(self.receiver.initial_window()));
        if let Some(scale) = options.window_scale {
            self.sender.scale = scale;
            self.receiver.scale = env.config.window_scale();
        }
        self.receiver.sack = options.sack;
        self.sender.sack = options.sack;
        match (&mut self.stamps, options.timestamps) {
            (Some(stamps), Some(theirs)) => stamps.hear(env.now, theirs.value),
            _ => {
                self.stamps = None;
                self.receiver.report_room = BLOCKS_ALONE;
            }
        }
        let mss = options.mss.unwrap_or(DEFAULT_MSS).max(MIN_MSS).min(self.local_mss);
        self.sender.set_initial_mss(self.without_options(u32::from(mss)));
    }

    /// Returns the data size of segments with `mss` bytes behind a header without options (RFC 9293 3.7.1).
    fn without_options(&self, mss: u32) -> u32 {
        if self.stamps.is_some() { mss.saturating_sub(TIMESTAMPS_LEN as u32) } else { mss }
    }

    /// Queues data for sending, all of it or none.
    ///
    /// # Errors
    ///
    /// See [`SendError`]. After [`SendError::NoSpace`], a signal reports when the data fits.
    pub fn send(&mut self, chain: &mut Chain) -> Result<(), SendError> {
        self.may_send()?;
        let (space, len) = (self.sender.space(), chain.len());
        if len <= space {
            self.sender.push(chain);
            return Ok(());
        }
        if len > self.sender.limit {
            return Err(SendError::TooLong(self.sender.limit));
        }
        self.sender.want_space(len);
        Err(SendError::NoSpace { space })
    }

    /// Queues as much data from the chain's front as fits. Returns its length.
    pub fn send_some(&mut self, chain: &mut Chain) -> Result<usize, SendError> {
        self.may_send()?;
        let (space, len) = (self.sender.space(), chain.len());
        if len <= space {
            self.sender.push(chain);
            return Ok(len);
        }
        // Wakes the application for a good part of the limit, not for each byte.
        self.sender.want_space((len - space).min(self.sender.limit / 2).max(1));
        if let Some(mut front) = chain.split_to(space) {
            self.sender.push(&mut front);
        }
        Ok(space)
    }

    fn may_send(&self) -> Result<(), SendError> {
        match self.state {
            State::SynSent | State::SynReceived | State::Established | State::CloseWait
                if self.sender.fin == Fin::Open =>
            {
                Ok(())
            }
            State::Closed => Err(SendError::NoConnection),
            _ => Err(SendError::ShutDown),
        }
    }

    /// Returns the number of bytes that `send` accepts now.
    pub fn send_space(&self) -> usize {
        match self.may_send() {
            Ok(()) => self.sender.space(),
            Err(_) => 0,
        }
    }

    /// Sets the limit of the send queue, in bytes.
    pub fn set_send_limit(&mut self, limit: usize) {
        self.sender.limit = limit;
        self.signal_space();
    }

    /// Sets the keep-alive policy.
    pub fn set_keep_alive(&mut self, keep_alive: Option<KeepAlive>) {
        self.keep_alive = keep_alive;
        self.keep_alive_probes = 0;
    }

    /// Returns the next piece of received data, of at most `most` bytes.
    pub fn read(&mut self, most: usize) -> Option<IoBuf> {
        let piece = self.receiver.read(most);
        if piece.is_some() {
            self.signal_end(self.receiver.inbox.len());
        }
        piece
    }

    /// Updates the connection for a complete read, which [`Self::take_all`] performs afterwards. Returns whether the
    /// peer's stream has ended.
    #[inline]
    pub fn before_take_all(&mut self) -> StreamEnd {
        self.receiver.ack_if_opened(0);
        self.signal_end(0);
        self.receiver.has_ended()
    }

    /// Returns all received data.
    #[inline]
    pub fn take_all(&mut self) -> Chain {
        self.receiver.inbox.take()
    }

    /// Sets the receive window: the data that the peer may send before the application reads, in bytes.
    pub fn set_window(&mut self, bytes: u32) {
        self.receiver.set_capacity(bytes.min(65_535 << self.receiver.scale));
    }

    /// Closes the sending direction: a FIN follows the queued data.
    pub fn shut_down(&mut self) {
        if self.sender.fin != Fin::Open {
            return;
        }
        match self.state {
            // The FIN follows the handshake.
            State::SynSent | State::SynReceived => self.sender.fin = Fin::Wanted,
            State::Established => {
                self.sender.fin = Fin::Wanted;
                self.state = State::FinWait1;
            }
            State::CloseWait => {
                self.sender.fin = Fin::Wanted;
                self.state = State::LastAck;
            }
            _ => {}
        }
    }

    /// Closes the connection for the application. Returns the remaining work. Unread data is lost, and a reset informs
    /// the peer of that (RFC 9293 3.6.1, "CLOSE with data unread").
    pub fn release(&mut self, env: &Env<'_>) -> Release {
        self.held_by_app = HeldByApp::No;
        self.signals = Signals::NONE;
        let unread = self.receiver.inbox.len() > 0;
        self.receiver.clear();
        if self.is_over() {
            return Release::Done;
        }
        if unread || self.state == State::SynSent {
            return Release::Reset;
        }
        self.shut_down();
        if self.state == State::FinWait2 {
            self.fin_wait_until = Some(env.now + env.config.fin_wait_2);
        }
        Release::Finishing
    }

    /// Ends the connection at once, and signals the reason to the application.
    pub fn fail(&mut self, reason: FailReason) {
        if self.state == State::Closed {
            return;
        }
        self.state = State::Closed;
        self.receiver.clear();
        self.fail = reason;
        self.signals = self.signals.failed();
    }

    /// Signals the end if the connection is over and all but `unread` bytes have been read.
    #[inline]
    fn signal_end(&mut self, unread: usize) {
        if self.is_over() && unread == 0 && !self.signals.has(Signal::Failed) {
            self.signals.raise(Signal::Closed);
        }
    }

    fn signal_space(&mut self) {
        if self.sender.space_came() == WantedSpace::Yes {
            self.signals.raise(Signal::SendSpace);
        }
    }

    /// Returns whether the connection is over: in TIME-WAIT or CLOSED.
    #[inline]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::TimeWait | State::Closed)
    }

    /// Returns whether an acknowledgement or event is due after `read`.
    pub fn needs_care(&self) -> bool {
        self.receiver.must_ack() || !self.signals.is_empty()
    }

    /// Returns whether the peer's stream has ended and all of it has been read.
    pub fn is_at_end(&self) -> bool {
        self.receiver.has_ended() == StreamEnd::Yes && self.receiver.inbox.len() == 0
    }

    /// Returns the sequence and acknowledgement numbers for a reset or last acknowledgement.
    pub fn positions(&self) -> (Seq, Seq) {
        (self.sender.idle_seq(), self.receiver.nxt)
    }

    /// Returns whether an acknowledgement is due at once.
    pub fn owes_ack(&self) -> bool {
        self.receiver.must_ack()
    }

    /// Returns the acknowledgement with which the connection enters TIME-WAIT.
    pub fn last_ack(&mut self, now: Instant) -> super::segment::Header {
        self.segments_out += 1;
        self.header(now, self.sender.idle_seq(), super::segment::Flags::ACK)
    }

    /// Returns whether the peer knows of the connection, so that it must be reset if the connection is aborted.
    pub fn is_synchronized(&self) -> bool {
        !matches!(self.state, State::SynSent | State::TimeWait | State::Closed)
    }

    /// Returns whether `seq` is sent and not acknowledged.
    pub fn is_in_flight(&self, seq: Seq) -> bool {
        self.sender.is_in_flight(seq)
    }

    /// Returns a counter that increases with all data that proves that the peer receives our segments.
    pub fn progress(&self) -> u64 {
        self.sender.bytes_acked.wrapping_add(self.receiver.bytes)
    }

    /// Returns the number of consecutive timeouts, if unacknowledged data is queued, else 0.
    pub fn timeouts_of_data(&self) -> u8 {
        if self.is_synchronized() && self.sender.queued() > 0 { self.sender.timeouts() } else { 0 }
    }

    /// Sets the maximum data of a frame that the device segments, in bytes.
    pub fn set_burst(&mut self, bytes: u32) {
        self.sender.burst = bytes;
    }

    /// Adapts to a path that was looked up: `burst` is the maximum data of a frame, in bytes. A link in memory has room for
    /// [`LINK_WINDOW`] bytes at any time.
    pub fn set_path_limits(&mut self, burst: u32, over_link: bool) {
        self.set_burst(burst);
        self.sender.control.set_least(if over_link { LINK_WINDOW } else { 0 });
    }

    /// Returns the segment size to which the device must cut a segment with `payload_len` bytes of data; `None` if it
    /// is a single segment.
    #[inline]
    pub fn cut(&self, payload_len: usize) -> Option<u16> {
        (payload_len > self.sender.mss as usize).then_some(self.sender.mss as u16)
    }

    /// Limits the segment size to `mss` bytes behind a header without options, after a smaller path MTU was detected.
    pub fn shrink_mss(&mut self, mss: u32) -> MssReduced {
        let mss = self.without_options(mss);
        if mss >= self.sender.mss {
            return MssReduced::No;
        }
        self.sender.shrink_mss(mss);
        MssReduced::Yes
    }
}

/// Whether the segment size was reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MssReduced {
    Yes,
    No,
}

/// The remaining work after the application has closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// None.
    Done,
    /// The connection must be reset.
    Reset,
    /// The connection completes its close by itself.
    Finishing,
}
