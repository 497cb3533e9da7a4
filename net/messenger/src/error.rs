//! Errors of joining, serving and calling.

use crate::frame::{MAX_PAYLOAD, Refusal};
use core::fmt;
use isola_channels::ChannelError;
use isola_ebbs::IdError;
use isola_net::StreamError;

/// The reason why an application cannot be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// The connection to its first machine failed.
    Connect(StreamError),
    /// No channel to its first machine could be opened.
    Channel(ChannelError),
    /// Its first machine did not answer within ten seconds.
    NotAnswered,
    /// The peer is not the first machine of an application of this version, or has no room.
    NotTheProtocol,
    /// This machine already has another number.
    Numbered(IdError),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "the application's first machine cannot be reached: {error}"),
            Self::Channel(error) => {
                write!(f, "the application's first machine cannot be reached by a channel: {error}")
            }
            Self::NotAnswered => {
                f.write_str("the application's first machine does not answer: check its port or name")
            }
            Self::NotTheProtocol => {
                f.write_str("the peer is not the first machine of an application, or has no room for another")
            }
            Self::Numbered(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for JoinError {}

/// The reason why an Ebb cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeError {
    /// It is served on this machine already.
    Taken,
    /// The calling core is not the cell's first core.
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

/// The reason why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// This machine is not connected to the other machine, nor to a first machine.
    NoSuchMachine,
    /// The request is longer than [`MAX_PAYLOAD`].
    TooLong,
    /// The called machine, or the first machine in between, refused the call.
    Refused(Refusal),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchMachine => {
                f.write_str("there is no connection to that machine: join its application first")
            }
            Self::TooLong => write!(f, "a request has at most {MAX_PAYLOAD} bytes"),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl core::error::Error for CallError {}

/// An activity that was not registered, or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchActivity;

impl fmt::Display for NoSuchActivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such activity: register it first")
    }
}

impl core::error::Error for NoSuchActivity {}
