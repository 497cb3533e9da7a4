//! Reads of open files past the volume's fiber: from the block cache and the device, with a map of the file's extents.
//!
//! ```text
//!   File::read_chain --> OpenFileState: length, extents --> BlockCache::views --> a chain of cached blocks
//!          |                     ^ filled by                      any number at the same time
//!          +-- unknown, unsynced, or changed meanwhile --> jobs --> fiber
//! ```
//!
//! **Consistency.** Before the fiber changes a file, and after it has, it increments the file's version and forgets the
//! map. A direct read returns only if the version at its end is that of its beginning: the map was valid all the time,
//! and none of its bytes were changed. Otherwise it begins again, and after [`TRIES`] the fiber executes it. So each
//! read returns the contents of one moment, and never those of blocks that the file has lost meanwhile. Cached blocks
//! are replaced rather than changed while a read has views of them.

use crate::extents::{ExtentMap, Piece};
use crate::file_system::{FileError, Metadata};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use isola_block_cache::BlockCache;
use isola_events::future::try_join_all;
use isola_iobuf::{Chain, IoBuf};

/// The direct reads that a change of the file may interrupt before the fiber executes the read.
pub(crate) const TRIES: usize = 2;

/// The maps that a direct read may need: a read of a file in very many pieces crosses maps, and readers at different
/// positions replace each other's.
pub(crate) const MOST_MAPS: usize = 4;

/// The longest part of a direct read that is one request: further parts are requested at the same time.
const REQUEST_LEN: usize = 512 << 10;

/// The zeros of holes.
static ZEROS: [u8; 4096] = [0; 4096];

/// The state of an open file that its readers and the fiber share.
#[derive(Default)]
pub(crate) struct OpenFileState {
    /// The number of begun and ended changes: odd during a change.
    version: Cell<u64>,
    known: RefCell<Option<KnownFile>>,
}

/// The length and the map of a file.
pub(crate) struct KnownFile {
    pub len: u64,
    pub map: ExtentMap,
}

/// The treatment of cached blocks after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retention {
    /// They stay in the cache for later reads.
    Keep,
    /// They leave it.
    Forget,
}

/// The outcome of a direct read.
pub(crate) enum DirectRead {
    Done(Chain),
    /// The file was changed meanwhile.
    Changed,
    /// Only the file system can read this part.
    Impossible,
}

/// The way in which a part of a file can be read.
pub(crate) enum Plan {
    /// Directly, these pieces: none at the end of the file.
    Direct(Vec<Piece>),
    /// The map has to be read first.
    Unknown,
    /// By the file system.
    ByFileSystem,
}

impl OpenFileState {
    pub fn version(&self) -> u64 {
        self.version.get()
    }

    /// Returns whether the fiber changes the file at present.
    pub fn is_changing(&self) -> bool {
        self.version.get() % 2 == 1
    }

    pub fn begin_change(&self) {
        self.version.set(self.version.get() + 1);
        self.known.take();
    }

    pub fn end_change(&self) {
        self.version.set(self.version.get() + 1);
    }

    pub fn know(&self, known: KnownFile) {
        self.known.replace(Some(known));
    }

    /// Records that the disk has all contents of the file.
    pub fn synced(&self) {
        self.known.borrow_mut().iter_mut().for_each(|known| known.map.synced());
    }

    /// Calls `read` with the map and the number of bytes that the file has of `len`.
    ///
    /// # Errors
    /// The other way to read them.
    fn with_map<T>(
        &self,
        offset: u64,
        len: usize,
        read: impl FnOnce(&ExtentMap, usize) -> T,
    ) -> Result<T, Plan> {
        let known = self.known.borrow();
        let Some(KnownFile { len: file_len, map }) = known.as_ref().filter(|_| !self.is_changing()) else {
            return Err(Plan::Unknown);
        };
        let len = len.min(usize::try_from(file_len.saturating_sub(offset)).unwrap_or(usize::MAX));
        if len > 0 && !map.covers(offset) {
            return Err(Plan::Unknown);
        }
        if map.is_unsynced(&(offset..offset.saturating_add(len as u64))) {
            return Err(Plan::ByFileSystem);
        }
        Ok(read(map, len))
    }

    /// Returns the way to read a part of the file.
    pub fn plan(&self, offset: u64, len: usize) -> Plan {
        let pieces =
            |map: &ExtentMap, len: usize| map.pieces(offset..offset.saturating_add(len as u64)).collect();
        self.with_map(offset, len, pieces).map_or_else(|plan| plan, Plan::Direct)
    }

    /// Appends up to `len` bytes from a position, as far as they are in the cache. Returns their number, and whether the
    /// file ends before `len` bytes; `None` if it cannot be read directly.
    pub fn append_cached(
        &self,
        cache: &BlockCache,
        offset: u64,
        len: usize,
        into: &mut Chain,
    ) -> Option<(usize, bool)> {
        let append = |map: &ExtentMap, within: usize| {
            let mut appended = 0;
            for piece in map.pieces(offset..offset.saturating_add(within as u64)) {
                let found = match piece.at {
                    Some(at) => cache.append_cached(at, piece.len, into),
                    None => append_zeros(piece.len, into),
                };
                appended += found;
                if found < piece.len {
                    break;
                }
            }
            (appended, appended == within && within < len)
        };
        self.with_map(offset, len, append).ok()
    }
}

fn append_zeros(len: usize, into: &mut Chain) -> usize {
    let mut left = len;
    while left > 0 {
        let part = left.min(ZEROS.len());
        into.push_back(IoBuf::from_static(&ZEROS[..part]));
        left -= part;
    }
    len
}

/// Reads pieces; their requests are in the device at the same time.
pub(crate) async fn read_pieces(
    cache: &BlockCache,
    pieces: Vec<Piece>,
    retention: Retention,
) -> Result<Chain, FileError> {
    let requests = pieces.into_iter().flat_map(|piece| {
        (0..piece.len).step_by(REQUEST_LEN).map(move |skipped| Piece {
            len: REQUEST_LEN.min(piece.len - skipped),
            at: piece.at.map(|at| at + skipped as u64),
        })
    });
    let read = |Piece { len, at }: Piece| async move {
        match at {
            Some(at) => {
                let views = cache.views(at, len).await?;
                if retention == Retention::Forget {
                    cache.forget(at, len);
                }
                Ok(views)
            }
            None => {
                let mut zeros = Chain::new();
                append_zeros(len, &mut zeros);
                Ok::<_, FileError>(zeros)
            }
        }
    };
    let mut all = Chain::new();
    for views in try_join_all(requests.map(read)).await? {
        all.append(views);
    }
    Ok(all)
}

impl KnownFile {
    /// Returns the facts about a file that direct reads need.
    pub fn new(metadata: &Metadata, map: ExtentMap) -> Self {
        Self { len: metadata.len, map }
    }
}
