//! The memory of a ring that a program maps.
//!
//! ```text
//!   0    words, each in its line of 64 bytes     sq head, sq tail, cq head, cq tail, masks, counts, flags
//!   512  completions, 16 bytes each              }  IORING_OFF_SQ_RING and IORING_OFF_CQ_RING: the same pages
//!   ...  indices of submissions, 4 bytes each    }
//!   0    submissions, 64 bytes each                 IORING_OFF_SQES
//! ```

use crate::Errno;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::io_uring as abi;
use isola_linux_files::new_anonymous_inode;
use isola_linux_memory::{BoxFuture, MemoryCharge, PageSource};
use isola_memory::frame::{FRAME_SIZE, Frame};

/// The offset of a word at the beginning of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingWord {
    /// The next submission that the kernel takes.
    SubmissionHead = 0,
    /// Behind the last submission of the program.
    SubmissionTail = 64,
    /// The next completion that the program takes.
    CompletionHead = 128,
    /// Behind the last completion of the kernel.
    CompletionTail = 192,
    /// The number of submissions, less one.
    SubmissionMask = 256,
    /// The number of submissions.
    SubmissionEntries = 260,
    /// The number of submissions with an invalid index.
    Dropped = 264,
    /// `IORING_SQ_` flags.
    SubmissionFlags = 268,
    /// The number of completions, less one.
    CompletionMask = 320,
    /// The number of completions.
    CompletionEntries = 324,
    /// The number of lost completions: none is.
    Overflow = 328,
    /// `IORING_CQ_` flags, of the program.
    CompletionFlags = 332,
}

/// The offset of the completions.
const COMPLETIONS: usize = 512;
/// The length of a completion.
pub const COMPLETION_LEN: usize = size_of::<abi::io_uring_cqe>();
/// The length of a submission.
pub const ENTRY_LEN: usize = size_of::<abi::io_uring_sqe>();
/// The length of the parameters of `io_uring_setup`.
pub const PARAMETERS_LEN: usize = size_of::<abi::io_uring_params>();

const _: () = assert!(COMPLETION_LEN == 16 && ENTRY_LEN == 64 && PARAMETERS_LEN == 120);

/// The pages of a ring.
pub struct RingPages {
    /// The number of submissions and of completions, powers of two.
    pub entries: (u32, u32),
    rings: Vec<Frame>,
    submissions: Vec<Frame>,
    inode: u64,
    charge: Arc<dyn MemoryCharge>,
}

impl RingPages {
    /// Creates the pages of a ring.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn new(entries: (u32, u32), charge: &Arc<dyn MemoryCharge>) -> Result<Arc<Self>, Errno> {
        let array = array_offset(entries.1);
        let ring_pages = (array + entries.0 as usize * 4).div_ceil(FRAME_SIZE);
        let submission_pages = (entries.0 as usize * ENTRY_LEN).div_ceil(FRAME_SIZE);
        if !charge.take((ring_pages + submission_pages) as u64) {
            return Err(Errno::ENOMEM);
        }
        let frames = |count| (0..count).map(|_| Frame::zeroed()).collect();
        let pages = Self {
            entries,
            rings: frames(ring_pages),
            submissions: frames(submission_pages),
            inode: new_anonymous_inode(),
            charge: charge.clone(),
        };
        pages.store(RingWord::SubmissionMask, entries.0 - 1);
        pages.store(RingWord::SubmissionEntries, entries.0);
        pages.store(RingWord::CompletionMask, entries.1 - 1);
        pages.store(RingWord::CompletionEntries, entries.1);
        Ok(Arc::new(pages))
    }

    /// Loads a word.
    pub fn load(&self, word: RingWord) -> u32 {
        self.rings[0].load(word as usize)
    }

    /// Stores a word, after all that was stored before.
    pub fn store(&self, word: RingWord, value: u32) {
        self.rings[0].store(word as usize, value);
    }

    /// Loads the index of the submission at a position.
    pub fn index(&self, position: u32) -> u32 {
        let at = array_offset(self.entries.1) + (position & (self.entries.0 - 1)) as usize * 4;
        self.rings[at / FRAME_SIZE].load(at % FRAME_SIZE)
    }

    /// Copies the submission with an index, which must exist.
    pub fn submission(&self, index: u32) -> [u8; ENTRY_LEN] {
        let at = index as usize * ENTRY_LEN;
        let mut bytes = [0; ENTRY_LEN];
        self.submissions[at / FRAME_SIZE].read(at % FRAME_SIZE, &mut bytes);
        bytes
    }

    /// Copies a completion to a position.
    pub fn put_completion(&self, position: u32, bytes: &[u8; COMPLETION_LEN]) {
        let at = COMPLETIONS + (position & (self.entries.1 - 1)) as usize * COMPLETION_LEN;
        self.rings[at / FRAME_SIZE].write(at % FRAME_SIZE, bytes);
    }

    /// Returns the offsets that `io_uring_setup` tells the program, of the submissions and of the completions.
    pub fn offsets(&self) -> ([u32; 7], [u32; 7]) {
        let word = |word: RingWord| word as u32;
        let submissions = [
            word(RingWord::SubmissionHead),
            word(RingWord::SubmissionTail),
            word(RingWord::SubmissionMask),
            word(RingWord::SubmissionEntries),
            word(RingWord::SubmissionFlags),
            word(RingWord::Dropped),
            array_offset(self.entries.1) as u32,
        ];
        let completions = [
            word(RingWord::CompletionHead),
            word(RingWord::CompletionTail),
            word(RingWord::CompletionMask),
            word(RingWord::CompletionEntries),
            word(RingWord::Overflow),
            COMPLETIONS as u32,
            word(RingWord::CompletionFlags),
        ];
        (submissions, completions)
    }

    fn page(&self, index: u64) -> Option<Frame> {
        const PAGE: u64 = FRAME_SIZE as u64;
        const COMPLETION_PAGE: u64 = abi::IORING_OFF_CQ_RING as u64 / PAGE;
        const SUBMISSION_PAGE: u64 = abi::IORING_OFF_SQES as u64 / PAGE;
        let (frames, index) = match index {
            SUBMISSION_PAGE.. => (&self.submissions, index - SUBMISSION_PAGE),
            COMPLETION_PAGE.. => (&self.rings, index - COMPLETION_PAGE),
            _ => (&self.rings, index),
        };
        frames.get(usize::try_from(index).ok()?).cloned()
    }
}

fn array_offset(completions: u32) -> usize {
    COMPLETIONS + completions as usize * COMPLETION_LEN
}

impl Drop for RingPages {
    fn drop(&mut self) {
        self.charge.give_back((self.rings.len() + self.submissions.len()) as u64);
    }
}

impl PageSource for RingPages {
    fn frame(&self, index: u64) -> Option<Frame> {
        self.page(index)
    }

    fn fetch(&self, index: u64) -> BoxFuture<'_, Result<Frame, Errno>> {
        Box::pin(core::future::ready(self.page(index).ok_or(Errno::EFAULT)))
    }

    fn mark_dirty(&self, _index: u64) {}

    fn sync(&self, _first: u64, _count: u64) -> BoxFuture<'_, Result<(), Errno>> {
        Box::pin(core::future::ready(Ok(())))
    }

    fn path(&self) -> Vec<u8> {
        b"anon_inode:[io_uring]".to_vec()
    }

    fn identity(&self) -> (u64, u64) {
        /// The device number of rings, which no file system has.
        const DEVICE: u64 = u64::MAX;
        (DEVICE, self.inode)
    }

    fn is_memory(&self) -> bool {
        true
    }
}
