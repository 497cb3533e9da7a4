//! Sessions: standard input and output of programs, and copies of files, between the host tool and a running cell.
//!
//! ```text
//!   host tool                                         cell
//!   Query::OpenSession(key) -- by the supervisor ---> listens, remembers the key for a while
//!              <------------------------------------- AnswerRecord::SessionPort(port)
//!   connects to the port of the cell's address -----> GREETING
//!   HostMessage::Open(key, request) ----------------> checks the key, which is used once
//!   Input, InputEnd, Resize, ... <------------------> Output, ErrorOutput, ..., Ended or Failed
//! ```
//!
//! A connection is one session. A message is a word of 4 bytes (little endian) with the length of the rest, and the
//! message as postcard encodes it. TCP limits the speed of both directions to that of the reader. Both sides treat the
//! other's bytes as hostile: [`MessageReader`] bounds the length of a message.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The first bytes from the cell. An image that contains them serves sessions; the host tool looks for them before it
/// creates a cell with standard input.
pub const GREETING: &[u8; 24] = b"isola: a session, form 1";

/// The most bytes of a message, without its length: a command with its environment is the longest.
pub const MAX_MESSAGE: usize = 256 * 1024;

/// The most bytes of input, output or a file's contents in a message.
pub const MAX_PIECE: usize = 16 * 1024;

const LEN: usize = size_of::<u32>();

/// The secret that opens a session, known to the sender of the query only.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionKey(pub [u8; 16]);

impl SessionKey {
    /// Returns whether the keys are equal, in a time that does not depend on their bytes.
    pub fn matches(&self, other: &Self) -> bool {
        let differences = self.0.iter().zip(&other.0).map(|(own, other)| own ^ other);
        differences.fold(0, |all, difference| all | difference) == 0
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey")
    }
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// The number of rows.
    pub rows: u16,
    /// The number of columns.
    pub columns: u16,
}

/// The purpose of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionRequest {
    /// Standard input and output of the cell's first program, which waits for this.
    Attach {
        /// The size of the terminal, if the program has one.
        size: TerminalSize,
    },
    /// A command beside the first program.
    Execute(CommandSpec),
    /// The file or folder at this path of the cell, sent as [`CellMessage::Entry`] and [`CellMessage::Contents`].
    Fetch {
        /// The absolute path.
        path: String,
    },
    /// A file or folder for the cell, which the host tool sends as [`HostMessage::Entry`] and [`HostMessage::Contents`].
    Store {
        /// The absolute path of the copy, or of an existing folder for it.
        path: String,
        /// The name that the copy gets in such a folder.
        name: String,
    },
}

/// A command to execute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandSpec {
    /// The program and its arguments.
    pub arguments: Vec<String>,
    /// Variables that replace those of the first program, as `NAME=VALUE`.
    pub environment: Vec<String>,
    /// The working directory; that of the first program if it is none.
    pub directory: Option<String>,
    /// The user, and the group: names of the cell's `/etc/passwd` and `/etc/group`, or numbers, as `USER[:GROUP]`; those of
    /// the first program if it is none.
    pub user: Option<String>,
    /// Whether the host tool sends input; otherwise it is empty.
    pub has_input: bool,
    /// The size of a terminal for input and output; pipes if it is none.
    pub terminal: Option<TerminalSize>,
}

/// A file or folder of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedEntry {
    /// The path below the copied file or folder, with `/` between its names; empty for that one itself.
    pub path: String,
    /// The 12 bits of permissions.
    pub permissions: u32,
    /// The type.
    pub kind: CopiedKind,
}

/// The type of a file of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopiedKind {
    /// A file. So many bytes of contents follow.
    File {
        /// The length.
        len: u64,
    },
    /// A folder.
    Folder,
    /// A symbolic link to this path.
    Link(String),
}

impl CopiedEntry {
    /// Returns the names of the path; `None` if one of them could lead elsewhere than below the copied folder.
    pub fn names(&self) -> Option<Vec<&str>> {
        let is_safe = |name: &&str| !name.is_empty() && *name != "." && *name != ".." && !name.contains('\0');
        match self.path.as_str() {
            "" => Some(Vec::new()),
            path => path.split('/').map(|name| Some(name).filter(is_safe)).collect(),
        }
    }
}

/// A message of the host tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostMessage {
    /// The first message.
    Open(SessionKey, SessionRequest),
    /// Standard input, at most [`MAX_PIECE`] bytes.
    Input(Vec<u8>),
    /// The end of standard input.
    InputEnd,
    /// The terminal has another size.
    Resize(TerminalSize),
    /// The next file of a copy.
    Entry(CopiedEntry),
    /// Contents of that file, at most [`MAX_PIECE`] bytes.
    Contents(Vec<u8>),
    /// The end of a copy.
    CopyEnd,
}

/// A message of the cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CellMessage {
    /// Standard output, or the output of the terminal.
    Output(Vec<u8>),
    /// Standard error.
    ErrorOutput(Vec<u8>),
    /// The last message: the exit code of the command as a shell shows it, or 0 for a copy.
    Ended(u8),
    /// The last message: why the session failed, with an exit code for the host tool.
    Failed(String, u8),
    /// The next file of a copy.
    Entry(CopiedEntry),
    /// Contents of that file.
    Contents(Vec<u8>),
}

/// The reason why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// It is longer than [`MAX_MESSAGE`].
    TooLong,
    /// It is no message of this protocol.
    Malformed,
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "a message of more than {MAX_MESSAGE} bytes"),
            Self::Malformed => f.write_str("bytes that are no message of a session"),
        }
    }
}

impl core::error::Error for MessageError {}

/// Returns the bytes of a message.
///
/// # Errors
/// [`MessageError::TooLong`].
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, MessageError> {
    let body = postcard::to_allocvec(message).map_err(|_| MessageError::Malformed)?;
    if body.len() > MAX_MESSAGE {
        return Err(MessageError::TooLong);
    }
    let mut bytes = Vec::with_capacity(LEN + body.len());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// Assembles messages from received bytes.
#[derive(Debug, Default)]
pub struct MessageReader {
    bytes: Vec<u8>,
    /// The number of bytes that belong to messages that were taken.
    taken: usize,
}

impl MessageReader {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next message; `None` if it is not complete yet.
    ///
    /// # Errors
    /// [`MessageError`]: the connection is of no use then.
    pub fn take<M: DeserializeOwned>(&mut self) -> Result<Option<M>, MessageError> {
        let bytes = self.bytes.get(self.taken..).unwrap_or_default();
        let Some((len, rest)) = bytes.split_first_chunk::<LEN>() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        if len > MAX_MESSAGE {
            return Err(MessageError::TooLong);
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let (message, left) = postcard::take_from_bytes(body).map_err(|_| MessageError::Malformed)?;
        if !left.is_empty() {
            return Err(MessageError::Malformed);
        }
        self.taken += LEN + len;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn messages_arrive_in_any_pieces() {
        let messages = [
            HostMessage::Open(SessionKey([7; 16]), SessionRequest::Fetch { path: "/a".into() }),
            HostMessage::Input(vec![0; MAX_PIECE]),
            HostMessage::InputEnd,
        ];
        let bytes: Vec<u8> = messages.iter().flat_map(|message| encode(message).unwrap()).collect();
        for size in [1, 3, 1000, bytes.len()] {
            let mut reader = MessageReader::default();
            let mut taken = Vec::new();
            for piece in bytes.chunks(size) {
                reader.push(piece);
                while let Some(message) = reader.take::<HostMessage>().unwrap() {
                    taken.push(message);
                }
            }
            assert_eq!(taken, messages);
        }
    }

    #[test]
    fn hostile_bytes_are_errors() {
        let take = |bytes: &[u8]| {
            let mut reader = MessageReader::default();
            reader.push(bytes);
            reader.take::<HostMessage>()
        };
        assert_eq!(take(&[0xff; 4]), Err(MessageError::TooLong));
        assert_eq!(take(&[1, 0, 0, 0, 200]), Err(MessageError::Malformed));
        // A byte more than the message has.
        assert_eq!(take(&[2, 0, 0, 0, 2, 0]), Err(MessageError::Malformed));
        assert_eq!(take(&[9, 0, 0]), Ok(None));
    }

    #[test]
    fn a_copy_stays_below_its_folder() {
        let entry = |path: &str| CopiedEntry { path: path.into(), permissions: 0, kind: CopiedKind::Folder };
        assert_eq!(entry("").names(), Some(vec![]));
        assert_eq!(entry("a/..b").names(), Some(vec!["a", "..b"]));
        for path in ["..", "a/../b", "/a", "a//b", "a/", ".", "a\0b"] {
            assert_eq!(entry(path).names(), None, "{path}");
        }
    }

    #[test]
    fn keys_match_only_if_all_bytes_do() {
        let mut other = SessionKey([7; 16]);
        assert!(SessionKey([7; 16]).matches(&other));
        other.0[15] ^= 1;
        assert!(!SessionKey([7; 16]).matches(&other));
    }
}
