//! Words of programs on which threads wait.

use crate::{Errno, ProcessMemory};
use isola_memory::frame::Frame;
use isola_user_mode::{Access, PAGE_SIZE, USER_END};

/// The identity of a futex: all addresses of the same word have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FutexKey {
    /// A word that only one process uses.
    Private {
        /// The identity of the process's memory ([`ProcessMemory::identity`]).
        memory: u64,
        /// The address of the word.
        address: u64,
    },
    /// A word in an object that several processes map.
    Shared {
        /// The device and inode number of the object.
        object: (u64, u64),
        /// The index of its page.
        index: u64,
        /// The offset of the word in the page.
        offset: u64,
    },
}

/// A word of a program, in memory.
#[derive(Clone, Debug)]
pub struct FutexWord {
    frame: Frame,
    offset: usize,
}

impl FutexWord {
    /// Loads the word.
    pub fn load(&self) -> u32 {
        self.frame.load(self.offset)
    }

    /// Replaces the word by `new` if it is `current`. Returns the word before.
    ///
    /// # Errors
    /// The word, if it is not `current`.
    pub fn compare_exchange(&self, current: u32, new: u32) -> Result<u32, u32> {
        self.frame.compare_exchange(self.offset, current, new)
    }
}

impl ProcessMemory {
    /// Returns the identity of this memory, different from that of any other process that ever ran in the cell.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Returns the identity of the futex at `address`. `is_private` is `FUTEX_PRIVATE_FLAG`: the page then need not be
    /// mapped. A shared futex in private memory is private, too.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if the address is not that of a word; [`Errno::EFAULT`] if it is not a program's, or for a shared
    /// futex not mapped.
    pub fn futex_key(&self, address: u64, is_private: bool) -> Result<FutexKey, Errno> {
        check_word(address)?;
        let private = FutexKey::Private { memory: self.identity, address };
        if is_private {
            return Ok(private);
        }
        let state = self.state.lock();
        let mapping = state.mappings.find(address).ok_or(Errno::EFAULT)?;
        match (&mapping.object, mapping.index_of(address)) {
            (Some(object), Some(index)) if mapping.is_shared => {
                Ok(FutexKey::Shared { object: object.source.identity(), index, offset: address % PAGE_SIZE })
            }
            _ => Ok(private),
        }
    }

    /// Returns the word at `address`, without a wait: `None` if [`Self::futex_word`] is needed.
    pub fn try_futex_word(&self, address: u64, access: Access) -> Option<FutexWord> {
        check_word(address).ok()?;
        let part = self.try_part(address, size_of::<u32>(), access)?;
        Some(FutexWord { frame: part.frame, offset: part.offset })
    }

    /// Returns the word at `address`. It remains the one of the address until the program remaps it, forks or, if the access
    /// is not [`Access::Write`], writes to the page for the first time: a waiter loads it under the lock of its futex, from
    /// [`Self::try_futex_word`].
    ///
    /// # Errors
    /// As [`Self::futex_key`], and [`Errno::EFAULT`] if the word cannot be accessed.
    pub async fn futex_word(&self, address: u64, access: Access) -> Result<FutexWord, Errno> {
        check_word(address)?;
        loop {
            if let Some(word) = self.try_futex_word(address, access) {
                return Ok(word);
            }
            self.fault(address, access).await.map_err(crate::FaultError::errno)?;
        }
    }
}

fn check_word(address: u64) -> Result<(), Errno> {
    if !address.is_multiple_of(size_of::<u32>() as u64) {
        Err(Errno::EINVAL)
    } else if address >= USER_END {
        Err(Errno::EFAULT)
    } else {
        Ok(())
    }
}
