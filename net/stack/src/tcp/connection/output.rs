//! The output of a connection, built when the device requests it.

use super::{Connection, EcnAgreement, Membership, NewDataOnly, State};
use crate::base::Instant;
use crate::tcp::options::{Options, Sack};
use crate::tcp::sack::SackBlocks;
use crate::tcp::segment::{Flags, Header};
use crate::tcp::seq::Seq;
use crate::tcp::{Ecn, TcpConfig};
use isola_iobuf::{Chain, IoBuf};

/// An outgoing segment.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub header: Header,
    pub sack: SackBlocks,
    /// Whether routers may mark the packet (ECT).
    pub markable: NewDataOnly,
    /// Whether another segment may follow at once.
    pub more: MoreToSend,
}

/// An outgoing fast-path segment.
pub(crate) struct FastOutgoing {
    pub header: Header,
    /// `None` for a segment without data.
    pub payload: Option<IoBuf>,
    pub more: MoreToSend,
}

/// Whether the connection may have more to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoreToSend {
    Maybe,
    No,
}

impl Connection {
    /// Returns whether there is something to send now.
    pub fn has_output(&self) -> bool {
        match self.state {
            State::Closed | State::TimeWait => false,
            State::SynSent | State::SynReceived => self.sender.has_output(),
            _ => {
                self.receiver.must_ack() || self.sender.has_output() || self.keep_alive_due == Membership::In
            }
        }
    }

    /// Builds the next segment, which acknowledges all received data, and puts its data into `payload`, which is empty.
    #[inline]
    pub fn next_segment(
        &mut self,
        now: Instant,
        config: &TcpConfig,
        payload: &mut Chain,
    ) -> Option<Outgoing> {
        let synchronised = match self.state {
            State::Closed | State::TimeWait => return None,
            State::SynSent | State::SynReceived => false,
            _ => true,
        };
        let mut fresh = NewDataOnly::No;
        let (seq, mut flags) =
            match self.sender.next(now, self.receiver.reports_len(), self.marks.long(), payload) {
                Some(piece) => {
                    fresh = piece.fresh;
                    (piece.seq, piece.flags)
                }
                None if !synchronised => return None,
                None if self.receiver.must_ack() => (self.sender.idle_seq(), Flags::NONE),
                // The peer answers a sequence number that it has acknowledged already (RFC 9293 3.8.4).
                None if self.keep_alive_due == Membership::In => (self.sender.una.back(1), Flags::NONE),
                None => return None,
            };
        self.keep_alive_due = Membership::Out;
        self.segments_out += 1;
        if flags.has(Flags::SYN) {
            let (header, sack) = (self.syn_header(now, config), SackBlocks::NONE);
            return Some(Outgoing { header, sack, markable: NewDataOnly::No, more: MoreToSend::Maybe });
        }
        if self.marks.agreed == EcnAgreement::Yes {
            flags = flags | self.marks.flags(fresh);
        } else {
            fresh = NewDataOnly::No;
        }
        let header = self.header(now, seq, flags | Flags::ACK);
        let more = if self.sender.has_sent_all() { MoreToSend::No } else { MoreToSend::Maybe };
        Some(Outgoing { header, sack: self.receiver.take_reports(), markable: fresh, more })
    }

    /// Builds the next segment if it is a fast-path segment: new data in one view, or a plain acknowledgement, with no
    /// options but timestamps, on a connection without recovery, probe, close or SACK blocks. Otherwise returns `None`
    /// without any change; the caller then calls [`Self::next_segment`].
    #[inline(always)]
    pub fn next_fast(&mut self, now: Instant) -> Option<FastOutgoing> {
        let calm = self.state == State::Established && self.marks.agreed == EcnAgreement::No;
        if !calm || !self.sender.is_fast() || self.receiver.reports_len() > 0 {
            return None;
        }
        let (payload, seq, flags) = if self.sender.has_unsent() {
            let (data, piece) = self.sender.next_fast(now)?;
            (Some(data), piece.seq, piece.flags)
        } else if self.receiver.must_ack() {
            (None, self.sender.idle_seq(), Flags::NONE)
        } else {
            return None;
        };
        self.keep_alive_due = Membership::Out;
        self.segments_out += 1;
        let more = if self.sender.has_unsent() { MoreToSend::Maybe } else { MoreToSend::No };
        Some(FastOutgoing { header: self.header(now, seq, flags | Flags::ACK), payload, more })
    }

    #[inline(always)]
    pub(super) fn header(&mut self, now: Instant, seq: Seq, flags: Flags) -> Header {
        let timestamps = self.stamps.map(|stamps| stamps.option(now));
        Header {
            source_port: self.flow.local.port(),
            destination_port: self.flow.remote.port(),
            seq,
            ack: self.receiver.nxt,
            flags,
            window: self.receiver.tell_window(),
            options: Options::with_timestamps(timestamps),
        }
    }

    /// Returns the header of our SYN, or of our SYN-ACK in a simultaneous open. The SYN-ACK has a window scale only if
    /// the peer's SYN has one.
    fn syn_header(&self, now: Instant, config: &TcpConfig) -> Header {
        let answer = self.state == State::SynReceived;
        let offers = !answer && config.ecn == Ecn::Offered && self.sender.is_first_syn();
        let asks = if offers { Flags::ECE | Flags::CWR } else { Flags::NONE };
        let scaled = !answer || self.receiver.scale > 0 || self.sender.scale > 0;
        Header {
            source_port: self.flow.local.port(),
            destination_port: self.flow.remote.port(),
            seq: self.sender.una,
            ack: if answer { self.receiver.nxt } else { Seq(0) },
            flags: if answer { Flags::SYN | Flags::ACK } else { Flags::SYN | asks },
            window: self.receiver.initial_window(),
            options: Options {
                mss: Some(self.local_mss),
                window_scale: scaled.then(|| config.window_scale()),
                sack: if answer { self.receiver.sack } else { Sack::Permitted },
                timestamps: self.stamps.map(|stamps| stamps.option(now)),
            },
        }
    }
}
