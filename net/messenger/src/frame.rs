//! The protocol between machines: frames in a stream of bytes, with integers in network byte order.
//!
//! ```text
//!  0  length of the rest, in bytes
//!  4  kind                                8  receiving machine               12  sending machine
//! 16  number of the call, the caller's   24  id of the Ebb, or a code       32  payload
//! ```
//!
//! | kind | receiver | sender | call | 24 | payload |
//! |---|---|---|---|---|---|
//! | 1 hello | 0 | its previous number, or 0 | the incarnation of the first machine that it expects, or 0 | [`MAGIC`] | none |
//! | 2 welcome | its number from now on | the first machine | 0 | [`MAGIC`] | none |
//! | 3 call | the called machine | the caller | its number | the Ebb | the request |
//! | 4 answer | the caller | the called machine | as in the call | 0 | the answer |
//! | 5 refusal | the caller | the called machine | as in the call | a [`Refusal`] | none |
//! | 6 locate | 0 | 0 | 0 | [`MAGIC`] | none |
//! | 7 location | 0 | the first machine | its incarnation | [`MAGIC`] | its cell's name if it serves channels |
//!
//! A machine may send one locate before its hello.
//!
//! All input is validated before use; a violation ends the stream.

use alloc::string::String;
use core::fmt;
use core::num::NonZeroU64;
use isola_abi::management::MAX_NAME_LEN;
use isola_ebbs::{EbbId, MachineId};
use isola_iobuf::{Chain, Emitter, IoBuf, IoBufMut};

/// The constant in hello and welcome that identifies this protocol and its version.
pub const MAGIC: u64 = u64::from_be_bytes(*b"isola\0\0\x02");

/// The maximum length of a payload, in bytes.
pub const MAX_PAYLOAD: usize = 1 << 20;

const LENGTH: usize = 4;
const HEADER: usize = 28;

/// The length of a hello or a welcome, in bytes.
pub(crate) const GREETING_LEN: usize = LENGTH + HEADER;

/// The most bytes of a location.
pub(crate) const LOCATION_LEN: usize = GREETING_LEN + MAX_NAME_LEN;

/// A frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Hello {
        before: Option<MachineId>,
        /// The incarnation of the first machine; `None` for any.
        first: Option<NonZeroU64>,
    },
    Welcome {
        you: MachineId,
    },
    /// Asks a first machine where it is.
    Locate,
    Location {
        incarnation: NonZeroU64,
        /// The name of its cell; empty if it cannot be reached by channels.
        cell: String,
    },
    Message(Message),
}

/// A frame between two machines, which the first machine may forward.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub to: MachineId,
    pub from: MachineId,
    /// The caller's number of the call.
    pub call: u64,
    pub body: Body,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Call { ebb: EbbId, request: Chain },
    Answer(Chain),
    Refusal(Refusal),
}

/// The reason why a machine did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// That machine does not serve the Ebb.
    NoSuchEbb,
    /// The first machine has no connection to that machine.
    NoSuchMachine,
    /// The Ebb's handler cannot parse the request.
    Malformed,
    /// The operation failed.
    Failed,
    /// The answer was longer than [`MAX_PAYLOAD`].
    TooLong,
    /// The caller has [`MAX_CALLS`](crate::MAX_CALLS) calls there already.
    TooMany,
    /// The machine left before it answered.
    Disconnected,
    /// The value belongs to another machine, which is still connected.
    NotYours,
}

impl Refusal {
    const ALL: [Self; 8] = [
        Self::NoSuchEbb,
        Self::NoSuchMachine,
        Self::Malformed,
        Self::Failed,
        Self::TooLong,
        Self::TooMany,
        Self::Disconnected,
        Self::NotYours,
    ];

    fn code(self) -> u64 {
        self as u64 + 1
    }

    fn from_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| refusal.code() == code)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchEbb => "that machine does not serve the Ebb",
            Self::NoSuchMachine => "the application has no such machine",
            Self::Malformed => "that machine cannot parse the request",
            Self::Failed => "the operation failed on that machine",
            Self::TooLong => "the answer is too long for one message",
            Self::TooMany => "this machine already has the maximum number of calls to that machine",
            Self::Disconnected => "the machine left before it answered",
            Self::NotYours => "the value belongs to another machine: it has to remove the value, or leave",
        })
    }
}

/// The error of a stream that violates this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtocolViolation;

impl Frame {
    /// Returns the frame's bytes, without a copy of the payload. The caller ensures that the payload is at most
    /// [`MAX_PAYLOAD`].
    pub fn encode(self) -> Chain {
        let number = |machine: Option<MachineId>| machine.map_or(0, MachineId::number);
        let (kind, to, from, call, word, payload) = match self {
            Self::Hello { before, first } => {
                (1, 0, number(before), first.map_or(0, NonZeroU64::get), MAGIC, Chain::new())
            }
            Self::Welcome { you } => (2, you.number(), MachineId::FIRST.number(), 0, MAGIC, Chain::new()),
            Self::Locate => (6, 0, 0, 0, MAGIC, Chain::new()),
            Self::Location { incarnation, cell } => {
                let name = Chain::from(IoBuf::from(cell.into_bytes()));
                (7, 0, MachineId::FIRST.number(), incarnation.get(), MAGIC, name)
            }
            Self::Message(Message { to, from, call, body }) => {
                let (kind, word, payload) = match body {
                    Body::Call { ebb, request } => (3, ebb.as_u64(), request),
                    Body::Answer(answer) => (4, 0, answer),
                    Body::Refusal(refusal) => (5, refusal.code(), Chain::new()),
                };
                (kind, to.number(), from.number(), call, word, payload)
            }
        };
        debug_assert!(payload.len() <= MAX_PAYLOAD);
        let mut head = IoBufMut::with_room(0, LENGTH + HEADER);
        if let Some(room) = head.append(LENGTH + HEADER) {
            let mut emit = Emitter::new(room);
            let words = [(HEADER + payload.len()) as u32, kind, to, from];
            let all = words.iter().try_for_each(|word| emit.put_u32_be(*word));
            let all = all.and_then(|()| emit.put_u64_be(call)).and_then(|()| emit.put_u64_be(word));
            debug_assert!(all.is_some() && emit.remaining() == 0);
        }
        let mut frame = Chain::from(head.freeze());
        frame.append(payload);
        frame
    }

    /// Removes the next whole frame from received bytes; `None` if there is none yet.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn take(stream: &mut Chain) -> Result<Option<Self>, ProtocolViolation> {
        let Some(length) = stream.cursor().read_u32_be() else { return Ok(None) };
        let length = length as usize;
        if !(HEADER..=HEADER + MAX_PAYLOAD).contains(&length) {
            return Err(ProtocolViolation);
        }
        match stream.split_to(LENGTH + length) {
            Some(frame) => Self::decode(frame).map(Some),
            None => Ok(None),
        }
    }

    fn decode(mut frame: Chain) -> Result<Self, ProtocolViolation> {
        let mut words = frame.cursor();
        let mut word32 = || words.read_u32_be().ok_or(ProtocolViolation);
        let (_length, kind, to, from) = (word32()?, word32()?, word32()?, word32()?);
        let mut word64 = || words.read_u64_be().ok_or(ProtocolViolation);
        let (call, word) = (word64()?, word64()?);
        frame.advance(LENGTH + HEADER);
        let bare = if frame.is_empty() { Ok(()) } else { Err(ProtocolViolation) };
        let greeting = if word == MAGIC { bare } else { Err(ProtocolViolation) };
        let body = match kind {
            1 => {
                greeting?;
                let before =
                    if from == 0 { None } else { Some(MachineId::new(from).ok_or(ProtocolViolation)?) };
                let first = NonZeroU64::new(call);
                return if to == 0 { Ok(Self::Hello { before, first }) } else { Err(ProtocolViolation) };
            }
            2 => {
                greeting?;
                let first = from == MachineId::FIRST.number();
                return match MachineId::new(to) {
                    Some(you) if first && call == 0 && you != MachineId::FIRST => Ok(Self::Welcome { you }),
                    _ => Err(ProtocolViolation),
                };
            }
            3 => Body::Call { ebb: EbbId::from_u64(word).ok_or(ProtocolViolation)?, request: frame },
            4 if word == 0 => Body::Answer(frame),
            5 => {
                bare?;
                Body::Refusal(Refusal::from_code(word).ok_or(ProtocolViolation)?)
            }
            6 => {
                greeting?;
                return if (to, from, call) == (0, 0, 0) { Ok(Self::Locate) } else { Err(ProtocolViolation) };
            }
            7 => {
                let is_right = word == MAGIC && (to, from) == (0, MachineId::FIRST.number());
                let incarnation = NonZeroU64::new(call).filter(|_| is_right && frame.len() <= MAX_NAME_LEN);
                let incarnation = incarnation.ok_or(ProtocolViolation)?;
                let cell = String::from_utf8(frame.to_vec()).map_err(|_| ProtocolViolation)?;
                return Ok(Self::Location { incarnation, cell });
            }
            _ => return Err(ProtocolViolation),
        };
        let machine = |number| MachineId::new(number).ok_or(ProtocolViolation);
        Ok(Self::Message(Message { to: machine(to)?, from: machine(from)?, call, body }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn machine() -> impl Strategy<Value = MachineId> {
        (1_u32..1 << 31).prop_map(|number| MachineId::new(number).unwrap())
    }

    fn ebb() -> impl Strategy<Value = EbbId> {
        any::<u64>().prop_filter_map("an id", EbbId::from_u64)
    }

    fn payload() -> impl Strategy<Value = Chain> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 0..4)
            .prop_map(|parts| parts.iter().map(|disconnect| IoBuf::copy_from_slice(disconnect)).collect())
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let body = prop_oneof![
            (ebb(), payload()).prop_map(|(ebb, request)| Body::Call { ebb, request }),
            payload().prop_map(Body::Answer),
            prop::sample::select(&Refusal::ALL[..]).prop_map(Body::Refusal),
        ];
        prop_oneof![
            (prop::option::of(machine()), any::<u64>())
                .prop_map(|(before, first)| Frame::Hello { before, first: NonZeroU64::new(first) }),
            (0..1).prop_map(|_| Frame::Locate),
            (1..u64::MAX, "[a-z]{0,24}").prop_map(|(incarnation, cell)| Frame::Location {
                incarnation: NonZeroU64::new(incarnation).unwrap(),
                cell
            }),
            machine()
                .prop_filter("not the first", |you| *you != MachineId::FIRST)
                .prop_map(|you| Frame::Welcome { you }),
            (machine(), machine(), any::<u64>(), body)
                .prop_map(|(to, from, call, body)| Frame::Message(Message { to, from, call, body })),
        ]
    }

    proptest! {
        #[test]
        fn frames_survive_any_segmentation_of_the_stream(
            frames in prop::collection::vec(frame(), 1..6),
            cuts in prop::collection::vec(1_usize..60, 1..200),
        ) {
            let copies: Vec<Frame> = frames.iter().map(copy).collect();
            let mut stream = Chain::new();
            frames.into_iter().for_each(|frame| stream.append(frame.encode()));
            let (mut partial, mut taken) = (Chain::new(), Vec::new());
            let mut cuts = cuts.into_iter().cycle();
            while !stream.is_empty() {
                let next = cuts.next().unwrap().min(stream.len());
                partial.append(stream.split_to(next).unwrap());
                while let Some(frame) = Frame::take(&mut partial).unwrap() {
                    taken.push(frame);
                }
            }
            prop_assert!(partial.is_empty());
            prop_assert_eq!(taken, copies);
        }

        #[test]
        fn any_bytes_yield_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u8..9) {
            let mut all = (HEADER as u32 + bytes.len() as u32).to_be_bytes().to_vec();
            all.extend([0, 0, 0, kind]);
            all.extend(bytes);
            all.extend([0; HEADER]);
            let mut stream = Chain::from(IoBuf::from(all));
            while let Ok(Some(_)) = Frame::take(&mut stream) {}
        }
    }

    fn copy(frame: &Frame) -> Frame {
        match frame {
            Frame::Hello { before, first } => Frame::Hello { before: *before, first: *first },
            Frame::Locate => Frame::Locate,
            Frame::Location { incarnation, cell } => {
                Frame::Location { incarnation: *incarnation, cell: cell.clone() }
            }
            Frame::Welcome { you } => Frame::Welcome { you: *you },
            Frame::Message(Message { to, from, call, body }) => {
                let body = match body {
                    Body::Call { ebb, request } => Body::Call { ebb: *ebb, request: request.clone() },
                    Body::Answer(answer) => Body::Answer(answer.clone()),
                    Body::Refusal(refusal) => Body::Refusal(*refusal),
                };
                Frame::Message(Message { to: *to, from: *from, call: *call, body })
            }
        }
    }

    #[test]
    fn an_invalid_length_ends_the_stream_before_any_buffering() {
        for length in [0, HEADER as u32 - 1, (HEADER + MAX_PAYLOAD) as u32 + 1, u32::MAX] {
            let mut stream = Chain::from(IoBuf::copy_from_slice(&length.to_be_bytes()));
            assert_eq!(Frame::take(&mut stream), Err(ProtocolViolation), "{length}");
        }
    }
}
