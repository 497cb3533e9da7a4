//! The management protocol: what the host tool asks of the supervisor, and what it is answered.
//!
//! One request, one response of the same `sequence`, in the order in which they complete: a `Stop` that waits
//! for its cell does not hold up a `List`. The first request of a connection is a [`RequestBody::Hello`].
//! All types also serialise to JSON, which is what `isola -o json` prints.

use crate::descriptor::NetworkAddress;
use crate::frame::MAX_CHUNK;
use crate::id::{CellId, CoreId, NodeId};
use crate::report::{CellPhase, CorePhase, CrashKind};
use crate::size::ByteSize;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Longest name of a cell, in bytes.
pub const MAX_NAME_LEN: usize = 63;

/// Most arguments of a cell, and the most bytes of all of them together.
pub const MAX_ARGUMENTS: usize = 64;

/// See [`MAX_ARGUMENTS`].
pub const MAX_ARGUMENT_BYTES: usize = 4096;

/// Largest image that the supervisor takes, in bytes.
pub const MAX_IMAGE: u64 = 64 << 20;

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the asker; the response carries it.
    pub sequence: u32,
    /// What is asked.
    pub body: RequestBody,
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RequestBody {
    /// Says which version the asker speaks; drops a half-sent image of an earlier connection.
    Hello {
        /// [`crate::VERSION`] of the asker.
        version: u32,
    },
    /// What the machine has, and how much of it is free.
    Machine,
    /// Begins to send an image.
    ImageBegin {
        /// Its length, in bytes; at most [`MAX_IMAGE`].
        len_bytes: u64,
    },
    /// The next bytes of the image.
    ImageChunk {
        /// Where in the image they belong: the number of bytes sent before.
        offset: u64,
        /// At most [`MAX_CHUNK`] of them.
        bytes: Vec<u8>,
    },
    /// Creates a cell from the image that was sent.
    Create(CellSpec),
    /// Starts a cell that was created, or that has ended and still holds what it was given.
    Start {
        /// The cell's name.
        name: String,
    },
    /// Asks a cell to stop, and takes its cores back by force where it does not within the time.
    Stop {
        /// The cell's name.
        name: String,
        /// How long it may take, in ms; 0 is by force at once.
        timeout_ms: u32,
    },
    /// Gives back everything that a cell that is not running holds, and forgets it.
    Destroy {
        /// The cell's name.
        name: String,
    },
    /// All cells.
    List,
    /// One cell, with all that is known of it.
    Inspect {
        /// The cell's name.
        name: String,
    },
    /// What a cell printed.
    Logs {
        /// The cell's name.
        name: String,
        /// From which byte on, counted from the cell's first.
        from: u64,
        /// At most so many bytes; at most [`MAX_CHUNK`].
        max_bytes: u32,
    },
    /// The journal.
    Events {
        /// From which entry on.
        from: u64,
        /// At most so many entries.
        max_entries: u32,
    },
    /// Ends the machine.
    PowerOff,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The request's.
    pub sequence: u32,
    /// The answer.
    pub body: Result<ResponseBody, ManagementError>,
}

/// What can be answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ResponseBody {
    /// It is done.
    Done,
    /// Answers [`RequestBody::Hello`].
    Hello {
        /// [`crate::VERSION`] of the supervisor.
        version: u32,
    },
    /// Answers [`RequestBody::Machine`].
    Machine(MachineInfo),
    /// Answers [`RequestBody::Create`], [`RequestBody::Start`], [`RequestBody::Stop`] and
    /// [`RequestBody::Inspect`]: the cell as it is now.
    Cell(alloc::boxed::Box<CellInfo>),
    /// Answers [`RequestBody::List`].
    Cells(Vec<CellInfo>),
    /// Answers [`RequestBody::Logs`].
    Logs(LogPiece),
    /// Answers [`RequestBody::Events`].
    Events(Vec<JournalEntry>),
}

/// What a cell shall be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellSpec {
    /// Its name: letters, digits, `-`, `_` and `.`, a letter or digit first, at most [`MAX_NAME_LEN`] bytes.
    pub name: String,
    /// Name of the image, for people.
    pub image_name: String,
    /// How many cores.
    pub cores: u32,
    /// How much memory, image and stacks included; rounded up to whole chunks of 2 MiB.
    pub memory: ByteSize,
    /// Arguments for the application.
    pub arguments: Vec<String>,
    /// Its place in the network.
    pub network: NetworkSpec,
    /// A cell whose event loop stands still for so long, in ms, without being halted, has crashed; 0: never.
    pub watchdog_ms: u32,
}

/// A cell's place in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkSpec {
    /// No network device.
    None,
    /// A device, and an address from the network's DHCP server.
    Dhcp,
    /// A device, and this address.
    Static(NetworkAddress),
}

/// What the machine has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineInfo {
    /// The cores.
    pub cores: Vec<CoreInfo>,
    /// All memory that can be given to cells.
    pub memory_total: ByteSize,
    /// Of it, what no cell has.
    pub memory_free: ByteSize,
    /// What the supervisor keeps for itself.
    pub memory_supervisor: ByteSize,
    /// Network devices that can be given to cells.
    pub devices_total: u32,
    /// Of them, what no cell has.
    pub devices_free: u32,
    /// Rate of the time-stamp counter.
    pub tsc_hz: u64,
    /// From the supervisor's first instruction to the first request that it could answer, in ns.
    pub boot_ns: u64,
    /// Since then, in ns.
    pub uptime_ns: u64,
}

/// A core of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreInfo {
    /// Its number.
    pub id: CoreId,
    /// The NUMA node it belongs to.
    pub node: NodeId,
    /// Who has it.
    pub owner: CoreOwner,
}

/// Who has a core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CoreOwner {
    /// The supervisor runs on it.
    Supervisor,
    /// Nobody.
    Free,
    /// That cell.
    Cell(CellId),
    /// It did not come up, or did not come back: it is not used again.
    Failed,
}

/// What the supervisor holds a cell for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CellState {
    /// It has what it was given and was never started.
    Created,
    /// Its cores run it.
    Running,
    /// It was asked to stop.
    Stopping,
    /// The application returned.
    Exited,
    /// It went wrong.
    Crashed,
    /// It was stopped by force, as asked.
    Killed,
}

impl fmt::Display for CellState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Exited => "exited",
            Self::Crashed => "crashed",
            Self::Killed => "killed",
        })
    }
}

/// A cell as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellInfo {
    /// Its id.
    pub id: CellId,
    /// What it was asked to be.
    pub spec: CellSpec,
    /// What the supervisor holds it for.
    pub state: CellState,
    /// What it says of itself.
    pub phase: CellPhase,
    /// The application's exit code, once there is one.
    pub exit_code: Option<i32>,
    /// Its cores.
    pub cores: Vec<CoreUsage>,
    /// Memory that it holds.
    pub memory: ByteSize,
    /// Length of its image in memory.
    pub image: ByteSize,
    /// What it uses of its memory.
    pub memory_usage: MemoryUsage,
    /// Its address in the network, once it has one.
    pub address: Option<core::net::Ipv4Addr>,
    /// Traffic.
    pub network: NetworkUsage,
    /// Cycles and events by activity, over all cores.
    pub activities: Vec<ActivityUsage>,
    /// What went wrong, where something did.
    pub crash: Option<Crash>,
    /// Time of day of its creation, in ns since 1970-01-01 UTC.
    pub created_unix_ns: u64,
    /// Time of day of its last start.
    pub started_unix_ns: Option<u64>,
    /// How long creation, start and reclaim took.
    pub durations: Durations,
}

/// How long the supervisor took, in ns; `None` for what has not been done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durations {
    /// From the request to the cell being ready to start.
    pub create_ns: Option<u64>,
    /// From the request to its cores being on their way.
    pub start_ns: Option<u64>,
    /// From there to the cell saying that it runs.
    pub first_sign_ns: Option<u64>,
    /// From the request, or the crash, to its cores being back.
    pub reclaim_ns: Option<u64>,
}

/// What a core of a cell did since the cell started. Cycles are of the time-stamp counter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreUsage {
    /// The core.
    pub id: CoreId,
    /// What it does.
    pub phase: CorePhase,
    /// Interrupts taken.
    pub interrupts: u64,
    /// Cycles halted.
    pub idle_cycles: u64,
    /// Cycles of the event loop itself.
    pub loop_cycles: u64,
    /// Cycles of interrupt handlers.
    pub interrupt_cycles: u64,
    /// Cycles of events.
    pub event_cycles: u64,
}

/// What a cell uses of its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUsage {
    /// What it can use.
    pub total: ByteSize,
    /// What it uses.
    pub used: ByteSize,
    /// The most it ever used.
    pub peak: ByteSize,
}

/// Traffic of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkUsage {
    /// Frames received.
    pub received_frames: u64,
    /// Bytes of those.
    pub received_bytes: u64,
    /// Frames sent.
    pub sent_frames: u64,
    /// Bytes of those.
    pub sent_bytes: u64,
    /// Frames dropped.
    pub dropped_frames: u64,
}

/// What an activity used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityUsage {
    /// Its name.
    pub name: String,
    /// Cycles of its events.
    pub cycles: u64,
    /// Events run.
    pub events: u64,
}

/// What went wrong in a cell. Addresses are the image's: whoever has the image can name them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// What kind of thing.
    pub kind: CrashKind,
    /// On which core.
    pub core: Option<CoreId>,
    /// The exception's vector, where it was one.
    pub vector: u32,
    /// Its error code.
    pub error_code: u64,
    /// The address that was accessed, of a page fault.
    pub fault_address: u64,
    /// Where execution stood.
    pub instruction: u64,
    /// The stack pointer there.
    pub stack_pointer: u64,
    /// Return addresses, innermost first.
    pub backtrace: Vec<u64>,
    /// What the program said.
    pub message: String,
}

/// A piece of what a cell printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPiece {
    /// Number of the first byte: larger than what was asked for, where older ones are gone.
    pub from: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Bytes that were printed so far.
    pub end: u64,
}

/// Something that the supervisor did or saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// Number of the entry, from 0.
    pub number: u64,
    /// Time of day, in ns since 1970-01-01 UTC.
    pub unix_ns: u64,
    /// How long it took, in ns.
    pub duration_ns: u64,
    /// The cell's name, where it was about one.
    pub cell: Option<String>,
    /// What it was.
    pub event: JournalEvent,
}

/// What the journal records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JournalEvent {
    /// The machine came up.
    Boot,
    /// A cell was created.
    Create,
    /// A cell was started.
    Start,
    /// A cell's application returned with this code, and its cores are back.
    Exit(i32),
    /// A cell went wrong, and its cores are back.
    Crash(CrashKind),
    /// A cell was stopped by force, and its cores are back.
    Kill,
    /// A cell was destroyed.
    Destroy,
    /// A core did not come back.
    CoreLost(CoreId),
    /// A request was refused.
    Refused(ManagementError),
}

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
                write!(f, "not enough cores: {wanted} wanted, {free} free: ask for fewer, or remove a cell")
            }
            Self::MemoryExhausted { wanted, free } => {
                write!(f, "not enough memory: {wanted} wanted, {free} free: ask for less, or remove a cell")
            }
            Self::MemoryTooSmall { wanted, least } => {
                write!(f, "{wanted} of memory is too little for this image: give it at least {least}")
            }
            Self::DevicesExhausted => {
                f.write_str("no network device is free: remove a cell, run it without network, or start the machine with more")
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

impl CellSpec {
    /// Checks what can be checked without the machine.
    ///
    /// # Errors
    /// [`ManagementError::BadName`] or [`ManagementError::OutOfLimits`].
    pub fn validate(&self) -> Result<(), ManagementError> {
        let mut bytes = self.name.bytes();
        let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let rest = bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        if !first || !rest || self.name.len() > MAX_NAME_LEN {
            let mut name = self.name.clone();
            let end = name.floor_char_boundary(MAX_NAME_LEN);
            name.truncate(end);
            return Err(ManagementError::BadName(name));
        }
        let argument_bytes: usize = self.arguments.iter().map(|argument| argument.len() + 1).sum();
        let limit = |what: &str| Err(ManagementError::OutOfLimits(what.into()));
        if self.cores == 0 {
            return limit("a cell needs at least one core");
        }
        if self.memory.0 == 0 {
            return limit("a cell needs memory");
        }
        if self.image_name.len() > 4 * MAX_NAME_LEN {
            return limit("the image's name is longer than 252 bytes");
        }
        if self.arguments.len() > MAX_ARGUMENTS || argument_bytes > MAX_ARGUMENT_BYTES {
            return limit("a cell takes at most 64 arguments of 4096 bytes together");
        }
        if let NetworkSpec::Static(address) = self.network
            && !(1..=31).contains(&address.prefix_len)
        {
            return limit("the prefix of a network is 1 to 31 bits long");
        }
        Ok(())
    }
}

const _: () = assert!(MAX_CHUNK + 1024 < crate::frame::MAX_FRAME);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Decoder, encode};
    use alloc::vec;

    fn spec(name: &str) -> CellSpec {
        CellSpec {
            name: name.into(),
            image_name: "kv".into(),
            cores: 1,
            memory: ByteSize(16 << 20),
            arguments: vec![],
            network: NetworkSpec::Dhcp,
            watchdog_ms: 0,
        }
    }

    #[test]
    fn names_are_checked() {
        for good in ["kv", "a", "kv-1.test_2", "0"] {
            assert_eq!(spec(good).validate(), Ok(()), "{good}");
        }
        let long = "x".repeat(MAX_NAME_LEN + 1);
        for bad in ["", "-kv", ".", "k v", "k/v", "kä", &long] {
            assert!(matches!(spec(bad).validate(), Err(ManagementError::BadName(_))), "{bad}");
        }
    }

    #[test]
    fn limits_are_checked() {
        let none = CellSpec { cores: 0, ..spec("kv") };
        let small = CellSpec { memory: ByteSize(0), ..spec("kv") };
        let wordy = CellSpec { arguments: vec!["x".repeat(MAX_ARGUMENT_BYTES)], ..spec("kv") };
        for bad in [none, small, wordy] {
            assert!(matches!(bad.validate(), Err(ManagementError::OutOfLimits(_))));
        }
    }

    #[test]
    fn a_largest_chunk_fits_in_a_frame() {
        let body = RequestBody::ImageChunk { offset: u64::MAX, bytes: vec![0xff; MAX_CHUNK] };
        let request = Request { sequence: u32::MAX, body };
        let bytes = encode(&request).unwrap();
        assert_eq!(Decoder::new().next::<Request>(&mut &bytes[..]), Some(Ok(request)));
    }
}
