//! Event counters (`eventfd2`).

use crate::Errno;
use crate::events::{Events, Pollee};
use crate::metadata::{InodeKind, Metadata};
use crate::object::FileObject;
use crate::open_file::OpenFile;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;
use isola_linux_memory::UserBuffer;
use spin::Mutex;

/// The largest count.
const MOST: u64 = u64::MAX - 1;

/// An event counter.
pub struct EventCounter {
    count: Mutex<u64>,
    /// A read takes 1 instead of all.
    is_semaphore: bool,
    pollee: Pollee,
}

impl EventCounter {
    /// Creates a counter, with the flags of `eventfd2`.
    ///
    /// # Errors
    /// [`Errno::EINVAL`].
    pub fn open(count: u32, flags: u32) -> Result<Arc<OpenFile>, Errno> {
        if flags & !(linux::EFD_SEMAPHORE | linux::EFD_CLOEXEC | linux::EFD_NONBLOCK) != 0 {
            return Err(Errno::EINVAL);
        }
        let counter = Arc::new(Self {
            count: Mutex::new(u64::from(count)),
            is_semaphore: flags & linux::EFD_SEMAPHORE != 0,
            pollee: Pollee::new(),
        });
        Ok(OpenFile::of_object(counter, linux::O_RDWR | flags & linux::EFD_NONBLOCK))
    }

    /// Adds to the count, without waiting: for events of the kernel itself.
    pub fn signal(&self, number: u64) {
        let mut count = self.count.lock();
        *count = count.saturating_add(number).min(MOST);
        drop(count);
        self.pollee.notify(Events::IN);
    }
}

impl FileObject for EventCounter {
    fn read(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        if buffer.len() < 8 {
            return Err(Errno::EINVAL);
        }
        let mut count = self.count.lock();
        if *count == 0 {
            return Err(Errno::EAGAIN);
        }
        let taken = if self.is_semaphore { 1 } else { *count };
        *count -= taken;
        drop(count);
        self.pollee.notify(Events::OUT);
        Ok(buffer.write(&taken.to_ne_bytes()))
    }

    fn write(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        if buffer.len() < 8 {
            return Err(Errno::EINVAL);
        }
        // The buffer's position stays if the call has to wait.
        let mut bytes = [0; 8];
        buffer.clone().read(&mut bytes);
        let number = u64::from_ne_bytes(bytes);
        if number == u64::MAX {
            return Err(Errno::EINVAL);
        }
        let mut count = self.count.lock();
        if number > MOST - *count {
            return Err(Errno::EAGAIN);
        }
        *count += number;
        drop(count);
        buffer.read(&mut bytes);
        self.pollee.notify(Events::IN);
        Ok(8)
    }

    fn writes_all(&self) -> bool {
        false
    }

    fn ready(&self) -> Events {
        let count = *self.count.lock();
        let read = if count > 0 { Events::IN } else { Events::NONE };
        let write = if count < MOST { Events::OUT } else { Events::NONE };
        read | write
    }

    fn pollee(&self) -> Option<&Pollee> {
        Some(&self.pollee)
    }

    fn metadata(&self) -> Metadata {
        Metadata::anonymous(InodeKind::File, 0, 0o600)
    }

    fn description(&self) -> Vec<u8> {
        b"anon_inode:[eventfd]".to_vec()
    }
}
