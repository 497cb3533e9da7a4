//! The reasons for the refusal of a request or an image.

use super::{CellState, MAX_IMAGE, MAX_NAME_LEN};
use crate::id::{CoreId, DeviceLocation, NodeId};
use crate::integrity::UnmetRequirement;
use crate::size::ByteSize;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// The maximum number of unavailable cores that an error text lists.
const MAX_TAKEN_SHOWN: usize = 8;

/// The reason for a refused request. A refused request changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagementError {
    /// The client has another version.
    Version {
        /// The supervisor's version.
        supervisor: u32,
    },
    /// The bytes are not a request.
    Malformed,
    /// No cell has this name.
    NoSuchCell(String),
    /// Another cell has this name.
    NameTaken(String),
    /// The name is invalid.
    BadName(String),
    /// A number or a length is out of its limits; the text describes both.
    OutOfLimits(String),
    /// The request is impossible in the cell's state.
    WrongState {
        /// The cell's name.
        name: String,
        /// The cell's state.
        state: CellState,
    },
    /// A core did not leave within the limit, nor by force; the cell keeps it.
    CoreBusy {
        /// The cell's name.
        name: String,
        /// The core.
        core: CoreId,
        /// The limit in ms.
        limit_ms: u32,
        /// The cell's present number of cores.
        cores: u32,
    },
    /// Too few cores are free.
    CoresExhausted {
        /// The number requested.
        wanted: u32,
        /// The number of free cores.
        free: u32,
    },
    /// Too few cores of a node are free.
    NodeCoresExhausted {
        /// The node.
        node: NodeId,
        /// The number requested.
        wanted: u32,
        /// The number of free cores of the node.
        free: u32,
    },
    /// Some of the named cores are unavailable.
    CoresTaken {
        /// The number of cores requested among those named.
        wanted: u32,
        /// The unavailable cores. If there are none, the cell already has all the cores that its placement names.
        taken: Vec<TakenCore>,
    },
    /// The machine has no such core.
    NoSuchCore {
        /// The core.
        id: CoreId,
        /// The machine's number of cores; they are numbered from 0.
        cores: u32,
    },
    /// The machine has no such NUMA node.
    NoSuchNode {
        /// The node.
        node: NodeId,
        /// The machine's number of nodes; they are numbered from 0.
        nodes: u32,
    },
    /// A named core is not on the named node.
    NotOnNode {
        /// The core.
        id: CoreId,
        /// The core's node.
        node: NodeId,
    },
    /// No set of free, whole physical cores has exactly the requested number of cores.
    NotWholeCores {
        /// The number requested.
        wanted: u32,
        /// The highest possible number below; 0 if there is none.
        below: u32,
        /// The lowest possible number above, if there is one.
        above: Option<u32>,
    },
    /// Too little memory is free.
    MemoryExhausted {
        /// The amount requested.
        wanted: ByteSize,
        /// The amount of free memory.
        free: ByteSize,
    },
    /// The requested memory is too small for the image.
    MemoryTooSmall {
        /// The amount requested.
        wanted: ByteSize,
        /// The minimum for this image.
        least: ByteSize,
    },
    /// The cell uses more memory than the requested amount.
    MemoryInUse {
        /// The amount requested.
        wanted: ByteSize,
        /// The least amount at which the cell would not be short of memory now.
        least: ByteSize,
    },
    /// The free memory is in more blocks than the cell has vacant entries for.
    MemoryScattered {
        /// The number of blocks needed.
        pieces: u32,
        /// The number of vacant entries.
        places: u32,
    },
    /// Another resize of the cell is in progress.
    BeingResized(String),
    /// A core of the cell was lost, and may still use the cell's memory.
    CoreAtLarge(String),
    /// No network device is free.
    DevicesExhausted,
    /// The machine has no block device at that location, or a cell has it.
    DiskNotFree(DeviceLocation),
    /// The machine was not booted for tests.
    NotForTests,
    /// The supervisor has restarted. The new incarnation sends this once, unsolicited, with sequence 0; it knows no
    /// earlier request.
    Restarted,
    /// The image store does not have the image: it was not uploaded completely, or was evicted.
    NoImage,
    /// The image is not a valid cell image.
    ImageRejected(ImageFault),
    /// The image does not meet its requirements.
    ImageNotTrusted(UnmetRequirement),
}

/// An unavailable core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenCore {
    /// The core.
    pub id: CoreId,
    /// The core's owner.
    pub by: TakenCoreOwner,
}

/// The owner of an unavailable core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TakenCoreOwner {
    /// The supervisor runs on the core.
    Supervisor,
    /// The cell of this name.
    Cell(String),
    /// The core has failed, and has no owner.
    Failed,
}

impl fmt::Display for TakenCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.by {
            TakenCoreOwner::Supervisor => write!(f, "core {} is the supervisor's", self.id),
            TakenCoreOwner::Cell(name) => write!(f, "core {} is cell {name:?}'s", self.id),
            TakenCoreOwner::Failed => write!(f, "core {} has failed", self.id),
        }
    }
}

impl fmt::Display for ManagementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { supervisor } => {
                write!(f, "the supervisor speaks version {supervisor}: restart the machine with this build")
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
            Self::CoreBusy { name, core, limit_ms, cores } => write!(
                f,
                "core {core} of {name:?} did not come free within {limit_ms} ms, nor by force, and stays (the cell has \
                 {cores} cores): ask again, or stop the cell"
            ),
            Self::CoresExhausted { wanted, free } => {
                write!(f, "not enough cores: {wanted} wanted, {free} free: ask for fewer, or stop a cell")
            }
            Self::NodeCoresExhausted { node, wanted, free } => {
                write!(f, "not enough cores on node {}: {wanted} wanted, {free} free there: ask for fewer, or name no node", node.0)
            }
            Self::CoresTaken { wanted, taken } => match taken.as_slice() {
                [] => write!(f, "{wanted} more cores are wanted, and the cell has all that its placement names: name more"),
                [first, rest @ ..] => {
                    write!(f, "{wanted} of the named cores are wanted, and {first}")?;
                    rest.iter().take(MAX_TAKEN_SHOWN - 1).try_for_each(|core| write!(f, ", {core}"))?;
                    if taken.len() > MAX_TAKEN_SHOWN {
                        write!(f, " and {} more are taken", taken.len() - MAX_TAKEN_SHOWN)?;
                    }
                    f.write_str(": name others, see `isola inspect`")
                }
            },
            Self::NoSuchCore { id, cores } => {
                write!(f, "there is no core {id}: the machine's are 0 to {}", cores.saturating_sub(1))
            }
            Self::NoSuchNode { node, nodes } => {
                write!(f, "there is no node {}: the machine's are 0 to {}", node.0, nodes.saturating_sub(1))
            }
            Self::NotOnNode { id, node } => {
                write!(f, "core {id} is of node {}: name cores of one node, or no node", node.0)
            }
            Self::NotWholeCores { wanted, below, above } => {
                write!(f, "no {wanted} cores make up whole physical cores that are free: ask for ")?;
                match (below, above) {
                    (0, None) => f.write_str("another placement than `siblings`, or stop a cell"),
                    (0, Some(above)) => write!(f, "{above}"),
                    (below, None) => write!(f, "{below}"),
                    (below, Some(above)) => write!(f, "{below} or {above}"),
                }
            }
            Self::MemoryExhausted { wanted, free } => {
                write!(f, "not enough memory: {wanted} wanted, {free} free: ask for less, or stop a cell")
            }
            Self::MemoryTooSmall { wanted, least } => {
                write!(f, "{wanted} of memory is too little for this image: give it at least {least}")
            }
            Self::MemoryInUse { wanted, least } => write!(
                f,
                "the cell uses more than {wanted}: leave it at least {least}, or have its application do with less"
            ),
            Self::MemoryScattered { pieces, places } => write!(
                f,
                "the free memory consists of {pieces} ranges, and the cell's table has room for {places}: request less, or restart the cell with more"
            ),
            Self::BeingResized(name) => write!(f, "{name:?} is being resized: wait until that is done"),
            Self::CoreAtLarge(name) => write!(
                f,
                "a core of {name:?} did not come back and may still use the cell's memory, which stays unavailable until the machine restarts"
            ),
            Self::DiskNotFree(location) => write!(
                f,
                "the block device at {location} is in use by another cell, or does not exist: see `isola ps --all`"
            ),
            Self::DevicesExhausted => {
                f.write_str("no network device is free: stop a cell that has one, run this one without network, or start the machine with more")
            }
            Self::Restarted => f.write_str(
                "the supervisor failed and restarted; the outcome of the request is unknown: see `isola ps`, and repeat the request",
            ),
            Self::NotForTests => {
                f.write_str("only a machine that was booted with isola.test-faults=1 accepts injected faults")
            }
            Self::NoImage => f.write_str("the machine does not have the image: send it first"),
            Self::ImageNotTrusted(distrust) => write!(f, "the image is not the expected one: {distrust}"),
            Self::ImageRejected(fault) => write!(f, "the image cannot be a cell: {fault}"),
        }
    }
}

impl core::error::Error for ManagementError {}

/// The reason why an image is not a valid cell image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageFault {
    /// The image is not a 64-bit ELF file for this processor.
    NotElf,
    /// The image is an ELF file, but not a static executable.
    NotStatic,
    /// The headers point outside of the file, or contradict each other.
    Malformed,
    /// The image has no Isola note: it was not linked as a cell image.
    NoNote,
    /// The image was built for this other version.
    Version(u32),
    /// A segment is outside of the image's address range, or shares pages with another segment.
    SegmentPlacement,
    /// A segment is both writable and executable.
    WritableCode,
    /// The entry point or the interrupt vectors are not in an executable segment.
    EntryPlacement,
    /// The image's memory would exceed [`MAX_IMAGE`].
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
