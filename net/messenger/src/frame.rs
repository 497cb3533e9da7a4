//! What machines say to each other: frames in a TCP stream, numbers in network byte order.
//!
//! ```text
//!  0  length of what follows, in bytes
//!  4  kind                                8  machine that it is for         12  machine that it is from
//! 16  number of the call, the caller's   24  id of the Ebb, or a code       32  payload
//! ```
//!
//! | kind | for | from | call | 24 | payload |
//! |---|---|---|---|---|---|
//! | 1 hello | 0 | the number that it had before, or 0 | 0 | [`MAGIC`] | none |
//! | 2 welcome | its number from now on | the first machine | 0 | [`MAGIC`] | none |
//! | 3 call | the machine that is called | the caller | its number | the Ebb | the request |
//! | 4 answer | the caller | the machine that was called | as in the call | 0 | the answer |
//! | 5 refusal | the caller | the machine that was called | as in the call | a [`Refusal`] | none |
//!
//! Whatever comes is checked before it is used; a stream that breaks a rule is ended.

use core::fmt;
use isola_ebbs::{EbbId, MachineId};
use isola_iobuf::{Chain, Emitter, IoBufMut};

/// What stands in a hello and a welcome: that both mean this protocol, in this version.
pub const MAGIC: u64 = u64::from_be_bytes(*b"isola\0\0\x01");

/// Longest payload, in bytes.
pub const MAX_PAYLOAD: usize = 1 << 20;

const LENGTH: usize = 4;
const HEADER: usize = 28;

/// Length of a hello or a welcome, in bytes.
pub(crate) const GREETING_LEN: usize = LENGTH + HEADER;

/// A frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Hello { before: Option<MachineId> },
    Welcome { you: MachineId },
    Message(Message),
}

/// A frame between two machines, which a third may pass on.
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

/// Why a machine did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody there serves that Ebb.
    NoSuchEbb,
    /// The first machine knows no such machine.
    NoSuchMachine,
    /// The request made no sense to who serves the Ebb.
    Malformed,
    /// It could not be done.
    Failed,
    /// The answer was longer than [`MAX_PAYLOAD`].
    TooLong,
    /// The caller has [`MAX_CALLS`](crate::MAX_CALLS) there already.
    TooMany,
    /// The machine left before it answered.
    Gone,
    /// It is another machine's, which is still there.
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
        Self::Gone,
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
            Self::NoSuchEbb => "nobody there serves that Ebb",
            Self::NoSuchMachine => "the application has no such machine",
            Self::Malformed => "the request made no sense there",
            Self::Failed => "it could not be done there",
            Self::TooLong => "the answer is too long for one message",
            Self::TooMany => "this machine has too many calls there already",
            Self::Gone => "the machine left before it answered",
            Self::NotYours => "it is another machine's: that has to give it up, or leave",
        })
    }
}

/// A stream does not speak this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

impl Frame {
    /// The frame's bytes. A payload is not copied. It is at most [`MAX_PAYLOAD`], as who calls has seen to.
    pub fn encode(self) -> Chain {
        let number = |machine: Option<MachineId>| machine.map_or(0, MachineId::number);
        let (kind, to, from, call, word, payload) = match self {
            Self::Hello { before } => (1, 0, number(before), 0, MAGIC, Chain::new()),
            Self::Welcome { you } => (2, you.number(), MachineId::FIRST.number(), 0, MAGIC, Chain::new()),
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
        if let Some(place) = head.append(LENGTH + HEADER) {
            let mut emit = Emitter::new(place);
            let words = [(HEADER + payload.len()) as u32, kind, to, from];
            let all = words.iter().try_for_each(|word| emit.put_u32_be(*word));
            let all = all.and_then(|()| emit.put_u64_be(call)).and_then(|()| emit.put_u64_be(word));
            debug_assert!(all.is_some() && emit.remaining() == 0);
        }
        let mut frame = Chain::from(head.freeze());
        frame.append(payload);
        frame
    }

    /// Takes the next whole frame off what has come of a stream; `None` where there is none yet.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn take(stream: &mut Chain) -> Result<Option<Self>, Broken> {
        let Some(length) = stream.cursor().read_u32_be() else { return Ok(None) };
        let length = length as usize;
        if !(HEADER..=HEADER + MAX_PAYLOAD).contains(&length) {
            return Err(Broken);
        }
        match stream.split_to(LENGTH + length) {
            Some(frame) => Self::decode(frame).map(Some),
            None => Ok(None),
        }
    }

    fn decode(mut frame: Chain) -> Result<Self, Broken> {
        let mut words = frame.cursor();
        let mut word32 = || words.read_u32_be().ok_or(Broken);
        let (_length, kind, to, from) = (word32()?, word32()?, word32()?, word32()?);
        let mut word64 = || words.read_u64_be().ok_or(Broken);
        let (call, word) = (word64()?, word64()?);
        frame.advance(LENGTH + HEADER);
        let bare = if frame.is_empty() { Ok(()) } else { Err(Broken) };
        let greeting = if word == MAGIC && call == 0 { bare } else { Err(Broken) };
        let body = match kind {
            1 => {
                greeting?;
                let before = if from == 0 { None } else { Some(MachineId::new(from).ok_or(Broken)?) };
                return if to == 0 { Ok(Self::Hello { before }) } else { Err(Broken) };
            }
            2 => {
                greeting?;
                let first = from == MachineId::FIRST.number();
                return match MachineId::new(to) {
                    Some(you) if first && you != MachineId::FIRST => Ok(Self::Welcome { you }),
                    _ => Err(Broken),
                };
            }
            3 => Body::Call { ebb: EbbId::from_u64(word).ok_or(Broken)?, request: frame },
            4 if word == 0 => Body::Answer(frame),
            5 => {
                bare?;
                Body::Refusal(Refusal::from_code(word).ok_or(Broken)?)
            }
            _ => return Err(Broken),
        };
        let machine = |number| MachineId::new(number).ok_or(Broken);
        Ok(Self::Message(Message { to: machine(to)?, from: machine(from)?, call, body }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use isola_iobuf::IoBuf;
    use proptest::prelude::*;

    fn machine() -> impl Strategy<Value = MachineId> {
        (1_u32..1 << 31).prop_map(|number| MachineId::new(number).unwrap())
    }

    fn ebb() -> impl Strategy<Value = EbbId> {
        any::<u64>().prop_filter_map("an id", EbbId::from_u64)
    }

    fn payload() -> impl Strategy<Value = Chain> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 0..4)
            .prop_map(|parts| parts.iter().map(|part| IoBuf::copy_from_slice(part)).collect())
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let body = prop_oneof![
            (ebb(), payload()).prop_map(|(ebb, request)| Body::Call { ebb, request }),
            payload().prop_map(Body::Answer),
            prop::sample::select(&Refusal::ALL[..]).prop_map(Body::Refusal),
        ];
        prop_oneof![
            prop::option::of(machine()).prop_map(|before| Frame::Hello { before }),
            machine()
                .prop_filter("not the first", |you| *you != MachineId::FIRST)
                .prop_map(|you| Frame::Welcome { you }),
            (machine(), machine(), any::<u64>(), body)
                .prop_map(|(to, from, call, body)| Frame::Message(Message { to, from, call, body })),
        ]
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_however_the_stream_is_cut(
            frames in prop::collection::vec(frame(), 1..6),
            cuts in prop::collection::vec(1_usize..60, 1..200),
        ) {
            let copies: Vec<Frame> = frames.iter().map(copy).collect();
            let mut stream = Chain::new();
            frames.into_iter().for_each(|frame| stream.append(frame.encode()));
            let (mut come, mut taken) = (Chain::new(), Vec::new());
            let mut cuts = cuts.into_iter().cycle();
            while !stream.is_empty() {
                let next = cuts.next().unwrap().min(stream.len());
                come.append(stream.split_to(next).unwrap());
                while let Some(frame) = Frame::take(&mut come).unwrap() {
                    taken.push(frame);
                }
            }
            prop_assert!(come.is_empty());
            prop_assert_eq!(taken, copies);
        }

        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u8..7) {
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
            Frame::Hello { before } => Frame::Hello { before: *before },
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
    fn a_length_that_no_frame_has_ends_the_stream_before_anything_is_kept() {
        for length in [0, HEADER as u32 - 1, (HEADER + MAX_PAYLOAD) as u32 + 1, u32::MAX] {
            let mut stream = Chain::from(IoBuf::copy_from_slice(&length.to_be_bytes()));
            assert_eq!(Frame::take(&mut stream), Err(Broken), "{length}");
        }
    }
}
