//! A volume's handle for the cell's other cores.

use crate::file_system::FileError;
use crate::volume::Volume;
use alloc::collections::BTreeMap;
use core::cell::{Cell, RefCell};
use core::future::Future;
use isola_ebbs::{Ebb, Representative, current_core};
use isola_events::elsewhere;
use isola_iobuf::IoBuf;
use isola_platform::CoreIndex;

static SHARED: Ebb<SharedVolumes> = Ebb::new();

/// The volumes of a core that other cores use.
#[derive(Default)]
struct SharedVolumes {
    volumes: RefCell<BTreeMap<u64, Volume>>,
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

impl SharedVolume {
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
