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
//! A connection acts on three things: a segment (`segments.rs`), a call of the application (here), and the
//! time (`clock.rs`). After each, its owner reads off what it wants: [`Connection::has_output`],
//! [`Connection::deadline`], the [`Signals`], and whether it has ended.

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
pub(crate) use ecn::{Agreed, Fresh, Long};
pub(crate) use ends::Taken;
pub(crate) use output::{FastOutgoing, More, Outgoing};
pub(crate) use segments::Verdict;
pub(crate) use signals::{Signal, Signals};

use super::options::{Options, TIMESTAMPS_LEN};
use super::segment::{DEFAULT_MSS, MIN_MSS};
use super::seq::Seq;
use super::timestamps::Stamps;
use super::{KeepAlive, SendError, TcpConfig};
use crate::address::Flow;
use crate::counters::Counters;
use crate::event::{FailReason, ListenerId};
use crate::limit::RateLimit;
use crate::owner::Owner;
use crate::tcp::sack::BLOCKS_ALONE;
use crate::tcp::tables::Way;
use crate::time::Instant;
use alloc::boxed::Box;
use ecn::Marks;
use isola_iobuf::{Chain, IoBuf};
pub use receiver::EndCame;
use receiver::Receiver;
use sender::{Fin, Sender, SpaceCame};

/// The states, without those that have no connection.
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
    /// Both directions ended with our FIN first: the owner keeps the TIME-WAIT entry.
    TimeWait,
    /// The end.
    Closed,
}

/// Whether the application still holds the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Yes,
    /// It has closed: what comes in now has no reader.
    No,
}

/// What a connection needs from outside while it acts.
pub(crate) struct Env<'a> {
    pub now: Instant,
    pub config: &'a TcpConfig,
    pub counters: &'a mut Counters,
    /// Bounds the acknowledgements that forged segments can provoke.
    pub challenges: &'a mut RateLimit,
}

/// Whether something is the case: in the flow map, with a neighbour's search, due to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    #[default]
    Out,
    In,
}

/// A TCP connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub flow: Flow,
    pub state: State,
    /// The listener that it came from.
    pub listener: Option<ListenerId>,
    pub held: Held,
    /// The owner of all work for the connection.
    pub owner: Owner,
    pub signals: Signals,
    pub fail: FailReason,
    /// Whether it is in the flow map.
    pub mapped: Place,
    /// Whether it waits for a neighbour's search.
    pub searching: Place,
    /// The neighbour that it sends through, as it was looked up last.
    pub path: Option<Way>,
    sender: Sender,
    receiver: Receiver,
    /// The clocks of the timestamps option, where both sides use it.
    stamps: Option<Stamps>,
    marks: Marks,
    /// When the last second began in which forged segments were answered, and how many were.
    challenged: (Instant, u8),
    /// The segment size that this side announces.
    local_mss: u16,
    /// When a closed connection stops waiting for the peer's end.
    fin_wait_until: Option<Instant>,
    /// Whether a silent peer is probed; when it was last heard or probed, and how often it was probed since it was
    /// heard.
    keep_alive: Option<KeepAlive>,
    silent_since: Instant,
    keep_alive_probes: u8,
    keep_alive_due: Place,
    segments_in: u64,
    segments_out: u64,
}

/// The peer's side of a handshake that a listener has completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handshake {
    pub flow: Flow,
    pub listener: ListenerId,
    /// Our initial sequence number and the peer's.
    pub local_initial: Seq,
    pub remote_initial: Seq,
    /// What the peer's SYN said.
    pub options: Options,
    /// The window of the peer's SYN.
    pub window: u16,
    /// When our SYN went out, where it went out once only.
    pub answered_at: Option<Instant>,
    /// Whether our answer said that we know marks.
    pub ecn: Agreed,
    /// The segment size that our answer told of.
    pub mss: u16,
    /// Where our timestamps begin.
    pub timestamp_offset: u32,
    /// The way that our answer went, where that was known.
    pub path: Option<Way>,
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
            held: Held::Yes,
            owner: Owner::UNKNOWN,
            signals: Signals::NONE,
            fail: FailReason::Reset,
            mapped: Place::Out,
            searching: Place::Out,
            path: None,
            sender: Sender::new(initial, mss, config, env.now),
            receiver: Receiver::new(capacity, u32::from(mtu_mss), config.reassembly_pieces),
            stamps: Some(stamps),
            marks: Marks::new(Agreed::No, initial),
            challenged: (env.now, 0),
            local_mss: mtu_mss,
            fin_wait_until: None,
            keep_alive: config.keep_alive,
            silent_since: env.now,
            keep_alive_probes: 0,
            keep_alive_due: Place::Out,
            segments_in: 0,
            segments_out: 0,
        }
    }

    /// A connection that begins with our SYN.
    pub fn connect(flow: Flow, initial: Seq, mtu_mss: u16, stamps: Stamps, env: &Env<'_>) -> Self {
        Self::new(flow, State::SynSent, initial, mtu_mss, stamps, env)
    }

    /// A connection whose handshake a listener has done.
    pub fn accept(handshake: &Handshake, env: &Env<'_>) -> Box<Self> {
        let Handshake { flow, local_initial, mss, timestamp_offset, .. } = *handshake;
        let stamps = Stamps::new(timestamp_offset, env.now);
        // Boxed before it is changed: it is large, and would be moved once more.
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

    /// Takes over what the peer's SYN says. Windows are scaled, times stamped and blocks acknowledged
    /// selectively only where both sides say so.
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

    /// What is left for data of segments with `mss` bytes behind a header without options (RFC 9293 3.7.1).
    fn without_options(&self, mss: u32) -> u32 {
        if self.stamps.is_some() { mss.saturating_sub(TIMESTAMPS_LEN as u32) } else { mss }
    }

    /// Takes data for sending, all of it or none.
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

    /// Takes as much data as fits off the chain's front; returns how much.
    pub fn send_some(&mut self, chain: &mut Chain) -> Result<usize, SendError> {
        self.may_send()?;
        let (space, len) = (self.sender.space(), chain.len());
        if len <= space {
            self.sender.push(chain);
            return Ok(len);
        }
        // Woken for a good part of the limit, not for every byte.
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

    /// Bytes that `send` takes now.
    pub fn send_space(&self) -> usize {
        match self.may_send() {
            Ok(()) => self.sender.space(),
            Err(_) => 0,
        }
    }

    /// Sets how many bytes are kept for sending and sending again.
    pub fn set_send_limit(&mut self, limit: usize) {
        self.sender.limit = limit;
        self.signal_space();
    }

    /// Sets whether the peer is probed when it is silent.
    pub fn set_keep_alive(&mut self, keep_alive: Option<KeepAlive>) {
        self.keep_alive = keep_alive;
        self.keep_alive_probes = 0;
    }

    /// Takes the next piece of what came in.
    pub fn read(&mut self) -> Option<IoBuf> {
        let piece = self.receiver.read();
        if piece.is_some() {
            self.signal_end(self.receiver.inbox.len());
        }
        piece
    }

    /// Sees to what follows when all that came in is taken, which [`Self::take_all`] does then; says whether that is the end.
    #[inline]
    pub fn before_take_all(&mut self) -> EndCame {
        self.receiver.ack_if_opened(0);
        self.signal_end(0);
        self.receiver.has_ended()
    }

    /// Takes all that came in.
    #[inline]
    pub fn take_all(&mut self) -> Chain {
        self.receiver.inbox.take()
    }

    /// Lets the peer send `bytes` ahead of the application.
    pub fn set_window(&mut self, bytes: u32) {
        self.receiver.set_capacity(bytes.min(65_535 << self.receiver.scale));
    }

    /// Ends this side's direction after what is queued.
    pub fn shut_down(&mut self) {
        if self.sender.fin != Fin::Open {
            return;
        }
        match self.state {
            // The FIN follows once the handshake is done.
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

    /// The application lets go. Returns whether the peer must be told by a reset, as data is lost unread
    /// (RFC 9293 3.6.1's "CLOSE with data unread").
    pub fn release(&mut self, env: &Env<'_>) -> Release {
        self.held = Held::No;
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

    /// Ends at once, for a reason that the application is told.
    pub fn fail(&mut self, reason: FailReason) {
        if self.state == State::Closed {
            return;
        }
        self.state = State::Closed;
        self.receiver.clear();
        self.fail = reason;
        self.signals = self.signals.failed();
    }

    /// Signals the end, where it has come and everything but `unread` bytes was read.
    #[inline]
    fn signal_end(&mut self, unread: usize) {
        if self.is_over() && unread == 0 && !self.signals.has(Signal::Failed) {
            self.signals.raise(Signal::Closed);
        }
    }

    fn signal_space(&mut self) {
        if self.sender.space_came() == SpaceCame::Yes {
            self.signals.raise(Signal::SendSpace);
        }
    }

    /// Whether both directions have ended.
    #[inline]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::TimeWait | State::Closed)
    }

    /// Whether the owner has something to see to after `read`: an acknowledgement or an event.
    pub fn needs_care(&self) -> bool {
        self.receiver.must_ack() || !self.signals.is_empty()
    }

    /// Whether all that the peer will ever send was read.
    pub fn is_at_end(&self) -> bool {
        self.receiver.has_ended() == EndCame::Yes && self.receiver.inbox.len() == 0
    }

    /// The positions with which a reset or a last acknowledgement of this connection goes out.
    pub fn positions(&self) -> (Seq, Seq) {
        (self.sender.idle_seq(), self.receiver.nxt)
    }

    /// Whether the peer waits for an acknowledgement.
    pub fn owes_ack(&self) -> bool {
        self.receiver.must_ack()
    }

    /// The acknowledgement with which the connection enters TIME-WAIT.
    pub fn last_ack(&mut self, now: Instant) -> super::segment::Header {
        self.segments_out += 1;
        self.header(now, self.sender.idle_seq(), super::segment::Flags::ACK)
    }

    /// Whether the peer knows of the connection, so that it must be told of an abrupt end.
    pub fn is_synchronized(&self) -> bool {
        !matches!(self.state, State::SynSent | State::TimeWait | State::Closed)
    }

    /// Whether `seq` lies within what was sent and not acknowledged.
    pub fn is_in_flight(&self, seq: Seq) -> bool {
        self.sender.is_in_flight(seq)
    }

    /// A number that grows with everything that shows that the peer hears this side.
    pub fn progress(&self) -> u64 {
        self.sender.bytes_acked.wrapping_add(self.receiver.bytes)
    }

    /// Timeouts in a row while data was under way.
    pub fn timeouts_of_data(&self) -> u8 {
        if self.is_synchronized() && self.sender.queued() > 0 { self.sender.timeouts() } else { 0 }
    }

    /// Lets frames carry up to `bytes` of data, which the device cuts.
    pub fn set_burst(&mut self, bytes: u32) {
        self.sender.burst = bytes;
    }

    /// How the device is to cut a segment with so much data, where it is to.
    #[inline]
    pub fn cut(&self, payload_len: usize) -> Option<u16> {
        (payload_len > self.sender.mss as usize).then_some(self.sender.mss as u16)
    }

    /// A link on the way takes packets only with `mss` bytes behind a header without options.
    pub fn shrink_mss(&mut self, mss: u32) -> Shrunk {
        let mss = self.without_options(mss);
        if mss >= self.sender.mss {
            return Shrunk::No;
        }
        self.sender.shrink_mss(mss);
        Shrunk::Yes
    }
}

/// Whether a connection sends shorter segments than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shrunk {
    Yes,
    No,
}

/// What is left to do when the application has let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// Nothing.
    Done,
    /// The peer is to be told that the connection is gone.
    Reset,
    /// The connection ends in good order by itself.
    Finishing,
}
