//! What can go wrong between machines.

use crate::frame::{MAX_PAYLOAD, Refusal};
use core::fmt;
use isola_ebbs::NoId;
use isola_net::StreamError;

/// Why an application cannot be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// There is no connection to its first machine.
    Connect(StreamError),
    /// Its first machine said nothing for ten seconds.
    NotAnswered,
    /// What listens there is not the first machine of an application of this version, or has no room.
    NotTheProtocol,
    /// This machine is another already.
    Numbered(NoId),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "the application's first machine cannot be reached: {error}"),
            Self::NotAnswered => {
                f.write_str("the application's first machine does not answer: is it the right port?")
            }
            Self::NotTheProtocol => f.write_str(
                "what listens there is no first machine of an application, or has no room for another",
            ),
            Self::Numbered(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for JoinError {}

/// Why an Ebb is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeError {
    /// It is served already.
    Taken,
    /// The calling core is not the cell's first.
    NotFirstCore,
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Taken => "the Ebb is served on this machine already",
            Self::NotFirstCore => "calls are answered on the cell's first core: serve there",
        })
    }
}

impl core::error::Error for ServeError {}

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// This machine has not joined the application that the other belongs to.
    NoSuchMachine,
    /// The request is longer than a message can be.
    TooLong,
    /// The other machine, or one on the way to it, says why.
    Refused(Refusal),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchMachine => f.write_str("there is no way to that machine: join its application first"),
            Self::TooLong => write!(f, "a request has at most {MAX_PAYLOAD} bytes"),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl core::error::Error for CallError {}
