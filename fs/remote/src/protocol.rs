//! Requests to the home of the files, and its answers: a head in postcard's format, followed by the raw bytes of a
//! file.

use crate::error::FileRefusal;
use alloc::string::String;
use alloc::vec::Vec;
use isola_iobuf::{Chain, IoBuf};
use isola_messenger::Message;
use serde::{Deserialize, Serialize};

/// The most bytes of one read or write.
pub const MAX_READ: usize = 256 << 10;

/// The longest path, in bytes.
pub const MAX_PATH: usize = 4096;

/// The most entries of one answer to a listing.
pub const MAX_ENTRIES: usize = 256;

/// The longest head of a message, in bytes: a full answer to a listing, with the longest names that Linux allows.
const MAX_HEAD: usize = MAX_ENTRIES * 320 + MAX_PATH;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileRequest {
    /// Requests the status of a path.
    Status {
        /// The path.
        path: String,
    },
    /// Requests bytes of a file.
    Read {
        /// The file's path.
        path: String,
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes, at most [`MAX_READ`].
        len: u32,
    },
    /// Requests the entries of a directory, by name.
    List {
        /// The directory's path.
        path: String,
        /// Only names after this one are returned; empty: from the first.
        after: String,
    },
    /// Writes bytes to a file, and creates it if there is none.
    Write {
        /// The file's path.
        path: String,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes.
        data: Chain,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer to a [`FileRequest::Status`].
    Status(Status),
    /// The answer to a [`FileRequest::Read`]: fewer bytes than requested only at the end of the file.
    Data(Chain),
    /// The answer to a [`FileRequest::List`]: fewer than [`MAX_ENTRIES`] only at the end.
    Entries(Vec<Entry>),
    /// The answer to a [`FileRequest::Write`]: all bytes are written.
    Written,
    /// The request is refused.
    Refused(FileRefusal),
}

/// The status of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The kind.
    pub kind: FileKind,
    /// The length of a file, in bytes.
    pub len_bytes: u64,
    /// The time of the last modification, in s since 1970-01-01 UTC; 0 if the host does not know it.
    pub modified_s: u64,
}

/// The kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// Another kind: a socket, a device, a dangling symbolic link.
    Other,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// The kind; a symbolic link counts as [`FileKind::Other`].
    pub kind: FileKind,
}

#[derive(Serialize, Deserialize)]
enum RequestHead {
    Status { path: String },
    Read { path: String, offset: u64, len: u32 },
    List { path: String, after: String },
    Write { path: String, offset: u64 },
}

#[derive(Serialize, Deserialize)]
enum AnswerHead {
    Status(Status),
    Data,
    Entries(Vec<Entry>),
    Written,
    Refused(FileRefusal),
}

/// Returns a message of a head and data.
fn join<H: Serialize>(head: &H, data: Chain) -> Chain {
    // Serialisation fails only if the writer is full, which a vector never is.
    let head = postcard::to_allocvec(head).unwrap_or_default();
    let mut all = Chain::from(IoBuf::from(head));
    all.append(data);
    all
}

/// Returns the head at the beginning of the bytes, and the bytes after it.
fn split<H: for<'a> Deserialize<'a>>(mut bytes: Chain) -> Option<(H, Chain)> {
    let mut front = alloc::vec![0; bytes.len().min(MAX_HEAD)];
    bytes.cursor().read_slice(&mut front)?;
    let (head, behind) = postcard::take_from_bytes(&front).ok()?;
    bytes.advance(front.len() - behind.len());
    Some((head, bytes))
}

fn is_path(path: &str) -> bool {
    path.len() <= MAX_PATH && !path.contains('\0')
}

impl Message for FileRequest {
    fn into_chain(self) -> Chain {
        match self {
            Self::Status { path } => join(&RequestHead::Status { path }, Chain::new()),
            Self::Read { path, offset, len } => join(&RequestHead::Read { path, offset, len }, Chain::new()),
            Self::List { path, after } => join(&RequestHead::List { path, after }, Chain::new()),
            Self::Write { path, offset, data } => join(&RequestHead::Write { path, offset }, data),
        }
    }

    fn from_chain(bytes: Chain) -> Option<Self> {
        let (head, data) = split(bytes)?;
        let request = match head {
            RequestHead::Status { path } if is_path(&path) => Self::Status { path },
            RequestHead::Read { path, offset, len } if is_path(&path) && len as usize <= MAX_READ => {
                Self::Read { path, offset, len }
            }
            RequestHead::List { path, after } if is_path(&path) && is_path(&after) => {
                Self::List { path, after }
            }
            RequestHead::Write { path, offset } if is_path(&path) && data.len() <= MAX_READ => {
                return Some(Self::Write { path, offset, data });
            }
            _ => return None,
        };
        data.is_empty().then_some(request)
    }
}

impl Message for Answer {
    fn into_chain(self) -> Chain {
        match self {
            Self::Status(status) => join(&AnswerHead::Status(status), Chain::new()),
            Self::Data(data) => join(&AnswerHead::Data, data),
            Self::Entries(entries) => join(&AnswerHead::Entries(entries), Chain::new()),
            Self::Written => join(&AnswerHead::Written, Chain::new()),
            Self::Refused(refused) => join(&AnswerHead::Refused(refused), Chain::new()),
        }
    }

    fn from_chain(bytes: Chain) -> Option<Self> {
        let (head, data) = split(bytes)?;
        let answer = match head {
            AnswerHead::Data if data.len() <= MAX_READ => return Some(Self::Data(data)),
            AnswerHead::Data => return None,
            AnswerHead::Status(status) => Self::Status(status),
            AnswerHead::Entries(entries) if entries.len() <= MAX_ENTRIES => Self::Entries(entries),
            AnswerHead::Entries(_) => return None,
            AnswerHead::Written => Self::Written,
            AnswerHead::Refused(refused) => Self::Refused(refused),
        };
        data.is_empty().then_some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data() -> impl Strategy<Value = Chain> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 0..4)
            .prop_map(|parts| parts.iter().map(|part| IoBuf::copy_from_slice(part)).collect())
    }

    fn request() -> impl Strategy<Value = FileRequest> {
        let path = "[a-z/. ]{0,40}";
        prop_oneof![
            path.prop_map(|path| FileRequest::Status { path }),
            (path, any::<u64>(), 0..=MAX_READ as u32).prop_map(|(path, offset, len)| FileRequest::Read {
                path,
                offset,
                len
            }),
            (path, path).prop_map(|(path, after)| FileRequest::List { path, after }),
            (path, any::<u64>(), data()).prop_map(|(path, offset, data)| FileRequest::Write {
                path,
                offset,
                data
            }),
        ]
    }

    fn answer() -> impl Strategy<Value = Answer> {
        let kind = prop::sample::select(&[FileKind::File, FileKind::Directory, FileKind::Other][..]);
        let entry = ("[a-z]{1,255}", kind.clone()).prop_map(|(name, kind)| Entry { name, kind });
        prop_oneof![
            (kind, any::<u64>(), any::<u64>()).prop_map(|(kind, len_bytes, modified_s)| Answer::Status(
                Status { kind, len_bytes, modified_s }
            )),
            data().prop_map(Answer::Data),
            prop::collection::vec(entry, 0..=MAX_ENTRIES).prop_map(Answer::Entries),
            Just(Answer::Written),
            Just(Answer::Refused(FileRefusal::NotFound)),
        ]
    }

    proptest! {
        #[test]
        fn requests_and_answers_survive_a_round_trip(request in request(), answer in answer()) {
            prop_assert_eq!(FileRequest::from_chain(request.clone().into_chain()), Some(request));
            prop_assert_eq!(Answer::from_chain(answer.clone().into_chain()), Some(answer));
        }

        /// A message with changed bytes, cut at the end, is rejected, or decodes to a message within the limits that
        /// encodes and decodes unchanged.
        #[test]
        fn a_changed_message_is_within_the_limits_or_rejected(
            request in request(),
            answer in answer(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in 0..4_usize,
        ) {
            let changed = |chain: Chain| {
                let mut bytes: alloc::vec::Vec<u8> = chain.parts().flat_map(|part| part.to_vec()).collect();
                for (index, byte) in &changes {
                    if !bytes.is_empty() {
                        let index = index.index(bytes.len());
                        bytes[index] = *byte;
                    }
                }
                bytes.truncate(bytes.len().saturating_sub(cut));
                Chain::from(IoBuf::copy_from_slice(&bytes))
            };
            if let Some(read) = FileRequest::from_chain(changed(request.into_chain())) {
                let is_within = match &read {
                    FileRequest::Status { path } | FileRequest::Write { path, .. } => path.len() <= MAX_PATH,
                    FileRequest::Read { path, len, .. } => path.len() <= MAX_PATH && *len as usize <= MAX_READ,
                    FileRequest::List { path, after } => path.len() <= MAX_PATH && after.len() <= MAX_PATH,
                };
                prop_assert!(is_within, "{:?}", read);
                prop_assert_eq!(FileRequest::from_chain(read.clone().into_chain()), Some(read));
            }
            if let Some(read) = Answer::from_chain(changed(answer.into_chain())) {
                prop_assert_eq!(Answer::from_chain(read.clone().into_chain()), Some(read));
            }
        }
    }

    #[test]
    fn requests_beyond_the_limits_are_rejected() {
        let path = "x".repeat(MAX_PATH + 1);
        assert_eq!(FileRequest::from_chain(FileRequest::Status { path }.into_chain()), None);
        let read = FileRequest::Read { path: "x".into(), offset: 0, len: MAX_READ as u32 + 1 };
        assert_eq!(FileRequest::from_chain(read.into_chain()), None);
        assert_eq!(FileRequest::from_chain(FileRequest::Status { path: "a\0b".into() }.into_chain()), None);
    }
}
