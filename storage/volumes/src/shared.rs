//! Handles of a volume and of its open files for the cell's other cores.

use crate::direct::Retention;
use crate::file_system::{Attributes, FileError, FileId, FileSystem};
use crate::volume::{File, Volume};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::sync::Arc;
use core::cell::{Cell, RefCell};
use core::future::Future;
use isola_ebbs::{Ebb, Representative, current_core};
use isola_events::{elsewhere, spawn_on};
use isola_iobuf::{Chain, IoBuf};
use isola_platform::CoreIndex;

static SHARED: Ebb<SharedVolumes> = Ebb::new();

/// The volumes of a core that other cores use.
#[derive(Default)]
struct SharedVolumes {
    volumes: RefCell<BTreeMap<u64, Volume>>,
    files: RefCell<BTreeMap<u64, Rc<File>>>,
    next: Cell<u64>,
}

impl Representative for SharedVolumes {
    fn create() -> Self {
        Self::default()
    }
}

/// A volume, for all cores of the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedVolume {
    core: CoreIndex,
    id: u64,
}

impl Volume {
    /// Returns a handle for all cores. The volume stays mounted until it is unmounted.
    pub fn share(&self) -> SharedVolume {
        let id = SHARED.next.get();
        SHARED.next.set(id + 1);
        SHARED.volumes.borrow_mut().insert(id, self.clone());
        SharedVolume { core: current_core(), id }
    }
}

/// An open file, for all cores of the cell. It is closed when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct SharedFile {
    handle: Arc<SharedFileHandle>,
}

#[derive(Debug)]
struct SharedFileHandle {
    core: CoreIndex,
    id: u64,
}

impl Drop for SharedFileHandle {
    fn drop(&mut self) {
        let id = self.id;
        let close = move || {
            let file = SHARED.files.borrow_mut().remove(&id);
            drop(file);
        };
        if self.core == current_core() { close() } else { spawn_on(self.core, close) }
    }
}

impl File {
    /// Returns a handle for all cores.
    pub fn share(self: &Rc<Self>) -> SharedFile {
        let id = SHARED.next.get();
        SHARED.next.set(id + 1);
        SHARED.files.borrow_mut().insert(id, self.clone());
        SharedFile { handle: Arc::new(SharedFileHandle { core: current_core(), id }) }
    }
}

impl SharedFile {
    /// Reads as [`File::read_chain`] does. Returns the file's [version](File::version) with the bytes.
    ///
    /// # Errors
    /// As [`File::read_chain`].
    pub async fn read_chain(&self, offset: u64, len: usize) -> Result<(Chain, u64), FileError> {
        self.read_retaining(offset, len, Retention::Keep).await
    }

    /// Reads as [`File::read_once`] does.
    ///
    /// # Errors
    /// As [`File::read_chain`].
    pub async fn read_once(&self, offset: u64, len: usize) -> Result<Chain, FileError> {
        self.read_retaining(offset, len, Retention::Forget).await.map(|(read, _)| read)
    }

    async fn read_retaining(
        &self,
        offset: u64,
        len: usize,
        retention: Retention,
    ) -> Result<(Chain, u64), FileError> {
        let id = self.handle.id;
        let read = move || async move {
            let file = SHARED.files.borrow().get(&id).cloned().ok_or(FileError::Unmounted)?;
            let read = file.read_retaining(offset, len, retention).await?;
            Ok((read, file.version()))
        };
        if self.handle.core == current_core() {
            read().await
        } else {
            elsewhere(self.handle.core, read).await
        }
    }
}

impl SharedFile {
    /// Changes the contents or the storage, as [`File::change`].
    ///
    /// # Errors
    /// As [`File::change`].
    pub async fn change(
        &self,
        change: impl FnOnce(&mut dyn FileSystem, FileId) -> Result<(), FileError> + Send + 'static,
    ) -> Result<(Attributes, Result<(), FileError>), FileError> {
        let id = self.handle.id;
        let work = move || async move {
            let file = SHARED.files.borrow().get(&id).cloned().ok_or(FileError::Unmounted)?;
            file.change(change).await
        };
        if self.handle.core == current_core() {
            work().await
        } else {
            elsewhere(self.handle.core, work).await
        }
    }
}

impl SharedVolume {
    /// Returns the core of the volume.
    pub fn core(self) -> CoreIndex {
        self.core
    }

    /// Runs the future that `operation` returns on the volume's core, for the current activity, and returns its output.
    /// It runs to its end even if this future is dropped.
    ///
    /// # Errors
    /// [`FileError::Unmounted`], and the error of the future.
    pub async fn with<T, F>(
        self,
        operation: impl FnOnce(Volume) -> F + Send + 'static,
    ) -> Result<T, FileError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, FileError>> + 'static,
    {
        let work = move || async move {
            let volume = SHARED.volumes.borrow().get(&self.id).cloned();
            match volume {
                Some(volume) => operation(volume).await,
                None => Err(FileError::Unmounted),
            }
        };
        if self.core == current_core() { work().await } else { elsewhere(self.core, work).await }
    }

    /// Returns up to `len` bytes of a file from a position, at most [`MOST_READ`](crate::MOST_READ).
    ///
    /// # Errors
    /// Those of [`Volume::open`], and of [`File::read`](crate::File::read).
    pub async fn read(self, path: impl AsRef<[u8]>, offset: u64, len: usize) -> Result<IoBuf, FileError> {
        let path = path.as_ref().to_vec();
        self.with(move |volume| async move { volume.open(path).await?.read(offset, len).await }).await
    }

    /// Makes all changes permanent and unmounts the file system, for all cores.
    ///
    /// # Errors
    /// As [`Volume::unmount`].
    pub async fn unmount(self) -> Result<(), FileError> {
        self.with(move |volume| async move {
            let outcome = volume.unmount().await;
            // After other errors the volume is not mounted any more.
            if outcome != Err(FileError::InUse) {
                SHARED.volumes.borrow_mut().remove(&self.id);
            }
            outcome
        })
        .await
    }
}
