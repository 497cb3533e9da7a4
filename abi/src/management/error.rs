//! Why a request, or an image, was refused.

use super::{CellState, MAX_IMAGE, MAX_NAME_LEN};
use crate::id::{CoreId, NodeId};
use crate::integrity::Distrust;
use crate::size::ByteSize;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// How many taken cores are told in words.
const MAX_TAKEN_TOLD: usize = 8;

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
    /// A core did not come free in time, and the cell has kept it.
    CoreBusy {
        /// The cell.
        name: String,
        /// Which.
        core: CoreId,
        /// How long it had, in ms.
        limit_ms: u32,
        /// How many the cell has now.
        cores: u32,
    },
    /// Too few cores are free.
    CoresExhausted {
        /// Wanted.
        wanted: u32,
        /// Free.
        free: u32,
    },
    /// Too few cores of a node are free.
    NodeCoresExhausted {
        /// The node.
        node: NodeId,
        /// Wanted.
        wanted: u32,
        /// Free there.
        free: u32,
    },
    /// Cores that were named are somebody's.
    CoresTaken {
        /// How many are wanted of those that were named.
        wanted: u32,
        /// Those that cannot be had: where there are none, the cell has all that were named.
        taken: Vec<TakenCore>,
    },
    /// The machine has no such core.
    NoSuchCore {
        /// The core.
        id: CoreId,
        /// How many it has, numbered from 0.
        cores: u32,
    },
    /// The machine has no such NUMA node.
    NoSuchNode {
        /// The node.
        node: NodeId,
        /// How many it has, numbered from 0.
        nodes: u32,
    },
    /// A core that was named is not of the node that was named.
    NotOnNode {
        /// The core.
        id: CoreId,
        /// Its node.
        node: NodeId,
    },
    /// Free physical cores, whole ones, do not have so many cores together.
    NotWholeCores {
        /// Wanted.
        wanted: u32,
        /// The most below that can be had.
        below: u32,
        /// The least above.
        above: Option<u32>,
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
    /// The cell uses more memory than it was to have.
    MemoryInUse {
        /// Wanted.
        wanted: ByteSize,
        /// The least that it could have now without being short.
        least: ByteSize,
    },
    /// The memory that is free is in more pieces than the cell has places for.
    MemoryScattered {
        /// How many it would be.
        pieces: u32,
        /// How many places are left.
        places: u32,
    },
    /// The cell is being resized.
    BeingResized(String),
    /// A core of the cell has not come back, and may still use its memory.
    CoreAtLarge(String),
    /// No network device is free.
    DevicesExhausted,
    /// The machine was not booted for tests.
    NotForTests,
    /// The supervisor that was asked has gone wrong. The one that came after it says so once, unasked, with sequence 0: it
    /// knows no request that was sent before.
    Restarted,
    /// The image is not there: it was not sent, or not all of it, or it has given way.
    NoImage,
    /// The image cannot be a cell.
    ImageRejected(ImageFault),
    /// The image is not what it must be.
    ImageNotTrusted(Distrust),
}

/// A core that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenCore {
    /// The core.
    pub id: CoreId,
    /// Who has it.
    pub by: TakenBy,
}

/// Who has a core that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TakenBy {
    /// The supervisor runs on it.
    Supervisor,
    /// The cell of that name.
    Cell(String),
    /// Nobody: it has failed.
    Failed,
}

impl fmt::Display for TakenCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.by {
            TakenBy::Supervisor => write!(f, "core {} is the supervisor's", self.id),
            TakenBy::Cell(name) => write!(f, "core {} is cell {name:?}'s", self.id),
            TakenBy::Failed => write!(f, "core {} has failed", self.id),
        }
    }
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
                    rest.iter().take(MAX_TAKEN_TOLD - 1).try_for_each(|core| write!(f, ", {core}"))?;
                    if taken.len() > MAX_TAKEN_TOLD {
                        write!(f, " and {} more are taken", taken.len() - MAX_TAKEN_TOLD)?;
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
                "the free memory would come in {pieces} pieces, and the cell has places for {places}: ask for less, or start it anew with more"
            ),
            Self::BeingResized(name) => write!(f, "{name:?} is being resized: wait until that is done"),
            Self::CoreAtLarge(name) => write!(
                f,
                "a core of {name:?} did not come back, and may still use its memory: none of that can be anybody's until the machine starts anew"
            ),
            Self::DevicesExhausted => {
                f.write_str("no network device is free: stop a cell that has one, run this one without network, or start the machine with more")
            }
            Self::Restarted => f.write_str(
                "the supervisor has gone wrong and begun anew, and it is not known what became of the request: look with `isola ps`, and repeat it",
            ),
            Self::NotForTests => {
                f.write_str("only a machine that was booted with isola.test-faults=1 goes wrong on purpose")
            }
            Self::NoImage => f.write_str("the machine does not have the image: send it first"),
            Self::ImageNotTrusted(distrust) => write!(f, "the image is not the one that is wanted: {distrust}"),
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
