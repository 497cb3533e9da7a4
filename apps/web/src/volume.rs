//! The site of a directory on one of the cell's volumes.

use crate::BACKLOG;
use core::fmt;
use core::time::Duration;
use isola::events::sleep;
use isola::net;
use isola::prelude::*;
use isola::storage::{self, FileError, MountError, MountFailure, Volumes};
use isola_web::volume_server::{self, Directory};

/// The divisor of the cell's memory that gives the bytes that clients hold by slow reading, on all cores together.
const HELD_PART: usize = 8;

/// The time for which the end of the cell waits for responses under way.
const END_WAITS: usize = 20;
const END_WAIT: Duration = Duration::from_millis(50);

/// The reasons why a directory cannot be served.
#[derive(Debug)]
pub enum VolumeError {
    /// The cell's volumes cannot be mounted, or unmounted.
    Mount(MountError),
    /// The directory is on no volume.
    NoVolume(String),
    /// The directory cannot be read.
    Directory(String, FileError),
    /// Another listener has the port.
    Port(net::PortInUse),
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(error) => error.fmt(f),
            Self::NoVolume(path) => {
                write!(
                    f,
                    "{path} is on no volume: mount one, as in `isola run -v site:{path}:ro web -d {path}`"
                )
            }
            Self::Directory(path, error) => write!(f, "{path} on its volume: {error}"),
            Self::Port(error) => error.fmt(f),
        }
    }
}

/// Serves a directory until the cell is stopped.
pub async fn serve(port: u16, path: &str) -> Result<(), VolumeError> {
    let volumes = storage::mount().await.map_err(VolumeError::Mount)?;
    let served = serve_from(&volumes, port, path).await;
    // Also after an error, so that the next mount has nothing to recover.
    let mut unmounted = volumes.unmount().await;
    for _ in 0..END_WAITS {
        if !matches!(&unmounted, Err(error) if error.reason == MountFailure::File(FileError::InUse)) {
            break;
        }
        // Responses are under way.
        sleep(END_WAIT).await;
        unmounted = volumes.unmount().await;
    }
    served.and(unmounted.map_err(VolumeError::Mount))
}

async fn serve_from(volumes: &Volumes, port: u16, path: &str) -> Result<(), VolumeError> {
    let Some((volume, root)) = volumes.find(path) else {
        return Err(VolumeError::NoVolume(path.to_string()));
    };
    let cores = isola::core_count();
    let budget = isola::memory_total() / HELD_PART / cores;
    let directory = Directory::new(volume, root, budget, isola::entropy()).await;
    let directory = directory.map_err(|error| VolumeError::Directory(path.to_string(), error))?;
    let listening = net::listen(port, BACKLOG, move |stream| volume_server::serve(stream, directory));
    let _listening = listening.map_err(VolumeError::Port)?;
    println!("web: TCP port {port}, {cores} cores, files of {path} on demand");
    isola::stop_requested().await;
    directory.close();
    Ok(())
}
