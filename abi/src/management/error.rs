//! Why a request, or an image, was refused.

use super::{CellState, MAX_IMAGE, MAX_NAME_LEN};
use crate::size::ByteSize;
use alloc::string::String;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Why a request was refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagementError {
    /// The asker speaks another version.
    Version {
        /// The supervisor's.
        supervisor: u32,
    },
    /// The bytes were no request.
    Malformed,
    /// No cell has that name.
    NoSuchCell(String),
    /// Another cell has that name.
    NameTaken(String),
    /// The name cannot be one.
    BadName(String),
    /// A number or a length is out of its limits; which, and what they are.
    OutOfLimits(String),
    /// The cell is in a state in which that cannot be done.
    WrongState {
        /// The cell.
        name: String,
        /// Its state.
        state: CellState,
    },
    /// Too few cores are free.
    CoresExhausted {
        /// Wanted.
        wanted: u32,
        /// Free.
        free: u32,
    },
    /// Too little memory is free.
    MemoryExhausted {
        /// Wanted.
        wanted: ByteSize,
        /// Free.
        free: ByteSize,
    },
    /// The image does not leave the cell any memory to run in.
    MemoryTooSmall {
        /// Wanted.
        wanted: ByteSize,
        /// The least that would do.
        least: ByteSize,
    },
    /// No network device is free.
    DevicesExhausted,
    /// No image was sent, or not all of it.
    NoImage,
    /// The image cannot be a cell.
    ImageRejected(ImageFault),
}

impl fmt::Display for ManagementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { supervisor } => {
                write!(f, "the supervisor speaks version {supervisor}: start the machine anew with this build")
            }
            Self::Malformed => f.write_str("the supervisor could not read the request"),
            Self::NoSuchCell(name) => write!(f, "no cell is called {name:?}"),
            Self::NameTaken(name) => write!(f, "a cell called {name:?} exists already: choose another name, or remove it first"),
            Self::BadName(name) => write!(
                f,
                "{name:?} cannot be a cell's name: use up to {MAX_NAME_LEN} letters, digits, '-', '_' and '.', a letter or digit first"
            ),
            Self::OutOfLimits(what) => f.write_str(what),
            Self::WrongState { name, state } => match state {
                CellState::Running | CellState::Stopping => write!(f, "{name:?} is {state}: stop it first"),
                _ => write!(f, "{name:?} is {state}, not running"),
            },
            Self::CoresExhausted { wanted, free } => {
                write!(f, "not enough cores: {wanted} wanted, {free} free: ask for fewer, or stop a cell")
            }
            Self::MemoryExhausted { wanted, free } => {
                write!(f, "not enough memory: {wanted} wanted, {free} free: ask for less, or stop a cell")
            }
            Self::MemoryTooSmall { wanted, least } => {
                write!(f, "{wanted} of memory is too little for this image: give it at least {least}")
            }
            Self::DevicesExhausted => {
                f.write_str("no network device is free: stop a cell that has one, run this one without network, or start the machine with more")
            }
            Self::NoImage => f.write_str("no complete image was sent"),
            Self::ImageRejected(fault) => write!(f, "the image cannot be a cell: {fault}"),
        }
    }
}

impl core::error::Error for ManagementError {}

/// What is wrong with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageFault {
    /// It is no ELF of 64 bits for this processor.
    NotElf,
    /// It is an ELF, but not a static executable.
    NotStatic,
    /// Its headers point outside of it, or contradict each other.
    Malformed,
    /// It has no Isola note: it was not linked as a cell image.
    NoNote,
    /// It was built for that version.
    Version(u32),
    /// A segment stands outside of the image's part of the address space, or on another segment's pages.
    SegmentPlacement,
    /// A segment is both writable and executable.
    WritableCode,
    /// The entry point or the interrupt vectors are not in an executable segment.
    EntryPlacement,
    /// Its memory would be larger than [`MAX_IMAGE`].
    TooLarge,
}

impl fmt::Display for ImageFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotElf => f.write_str("it is no 64-bit x86 ELF file"),
            Self::NotStatic => f.write_str("it is not a static executable"),
            Self::Malformed => f.write_str("its headers are damaged"),
            Self::NoNote => f.write_str("it was not linked as a cell image (no Isola note)"),
            Self::Version(version) => {
                write!(f, "it was built for version {version}, the supervisor is version {}", crate::VERSION)
            }
            Self::SegmentPlacement => f.write_str("a segment stands where an image must not be"),
            Self::WritableCode => f.write_str("a segment is both writable and executable"),
            Self::EntryPlacement => f.write_str("its entry point is not in its code"),
            Self::TooLarge => write!(f, "it takes more than {}", ByteSize(MAX_IMAGE)),
        }
    }
}
