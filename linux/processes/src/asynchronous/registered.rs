//! Files and buffers that a program registers with a ring, so that operations find them without a look-up.

use crate::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_files::OpenFile;
use isola_linux_memory::UserBuffer;
use spin::Mutex;

/// The most registered files.
pub const MOST_FILES: u32 = 32_768;
/// The most registered buffers.
pub const MOST_BUFFERS: u32 = 16_384;

/// A registered buffer, whose frames are pinned.
pub struct RegisteredBuffer {
    /// The address of the first byte.
    pub address: u64,
    /// The bytes.
    pub buffer: UserBuffer,
}

/// The registered files and buffers of a ring, and the event counter for its completions.
#[derive(Default)]
pub struct Registered {
    files: Mutex<Option<Vec<Option<Arc<OpenFile>>>>>,
    buffers: Mutex<Option<Vec<Option<RegisteredBuffer>>>>,
    counter: Mutex<Option<Arc<OpenFile>>>,
}

impl Registered {
    /// Returns a registered file.
    ///
    /// # Errors
    /// [`Errno::EBADF`].
    pub fn file(&self, index: u32) -> Result<Arc<OpenFile>, Errno> {
        let files = self.files.lock();
        files.as_ref().and_then(|files| files.get(index as usize)?.clone()).ok_or(Errno::EBADF)
    }

    /// Registers files; `None` leaves a place free.
    ///
    /// # Errors
    /// [`Errno::EBUSY`] if there are some already.
    pub fn set_files(&self, new: Vec<Option<Arc<OpenFile>>>) -> Result<(), Errno> {
        let mut files = self.files.lock();
        if files.is_some() {
            return Err(Errno::EBUSY);
        }
        *files = Some(new);
        Ok(())
    }

    /// Replaces a registered file.
    ///
    /// # Errors
    /// [`Errno::ENXIO`] if none are registered, [`Errno::EINVAL`] if there is no such place.
    pub fn replace_file(&self, index: u32, file: Option<Arc<OpenFile>>) -> Result<(), Errno> {
        let mut files = self.files.lock();
        let place = files.as_mut().ok_or(Errno::ENXIO)?.get_mut(index as usize).ok_or(Errno::EINVAL)?;
        let former = core::mem::replace(place, file);
        drop(files);
        drop(former);
        Ok(())
    }

    /// Ends the registration of files.
    ///
    /// # Errors
    /// [`Errno::ENXIO`] if none are registered.
    pub fn clear_files(&self) -> Result<(), Errno> {
        let files = self.files.lock().take();
        files.map(drop).ok_or(Errno::ENXIO)
    }

    /// Returns the bytes of a registered buffer at an address.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] if they are not within the buffer, or there is none.
    pub fn buffer(&self, index: u16, address: u64, len: u64) -> Result<UserBuffer, Errno> {
        let buffers = self.buffers.lock();
        let buffer = buffers.as_ref().and_then(|buffers| buffers.get(usize::from(index))?.as_ref());
        let buffer = buffer.ok_or(Errno::EFAULT)?;
        let skipped = address.checked_sub(buffer.address).ok_or(Errno::EFAULT)?;
        let end = skipped.checked_add(len).ok_or(Errno::EFAULT)?;
        if end > buffer.buffer.len() as u64 {
            return Err(Errno::EFAULT);
        }
        let mut bytes = buffer.buffer.clone();
        drop(buffers);
        bytes.advance(skipped as usize, |_| ());
        bytes.limit(len as usize);
        Ok(bytes)
    }

    /// Registers buffers; `None` leaves a place free.
    ///
    /// # Errors
    /// [`Errno::EBUSY`] if there are some already.
    pub fn set_buffers(&self, new: Vec<Option<RegisteredBuffer>>) -> Result<(), Errno> {
        let mut buffers = self.buffers.lock();
        if buffers.is_some() {
            return Err(Errno::EBUSY);
        }
        *buffers = Some(new);
        Ok(())
    }

    /// Ends the registration of buffers.
    ///
    /// # Errors
    /// [`Errno::ENXIO`] if none are registered.
    pub fn clear_buffers(&self) -> Result<(), Errno> {
        let buffers = self.buffers.lock().take();
        buffers.map(drop).ok_or(Errno::ENXIO)
    }

    /// Registers the event counter that is signalled at each completion.
    ///
    /// # Errors
    /// [`Errno::EBUSY`] if there is one already.
    pub fn set_counter(&self, file: Arc<OpenFile>) -> Result<(), Errno> {
        let mut counter = self.counter.lock();
        if counter.is_some() {
            return Err(Errno::EBUSY);
        }
        *counter = Some(file);
        Ok(())
    }

    /// Ends the registration of the event counter.
    ///
    /// # Errors
    /// [`Errno::ENXIO`] if there is none.
    pub fn clear_counter(&self) -> Result<(), Errno> {
        let counter = self.counter.lock().take();
        counter.map(drop).ok_or(Errno::ENXIO)
    }

    /// Returns the event counter.
    pub fn counter(&self) -> Option<Arc<OpenFile>> {
        self.counter.lock().clone()
    }

    /// Ends all registrations.
    pub fn clear(&self) {
        // None may be registered.
        let _ = (self.clear_files(), self.clear_buffers(), self.clear_counter());
    }
}
