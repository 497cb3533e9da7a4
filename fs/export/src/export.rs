//! Exports a directory: makes this process the home of the files.

use crate::directory::Directory;
use crate::off_core::{WorkPanicked, off_core};
use isola_fs::{Access, FILES};
use isola_messenger::{CallError, HandlerRegistration, Refusal, ServeError};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The reason why a directory is not exported.
#[derive(Debug)]
pub enum ExportError {
    /// The directory cannot be opened.
    Open(io::Error),
    /// This machine cannot serve the directory.
    Serve(ServeError),
    /// The id map on the first machine cannot be called.
    Call(CallError),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => write!(f, "the directory cannot be opened: {error}"),
            Self::Serve(error) => error.fmt(f),
            Self::Call(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ExportError {}

/// Exports the directory at `path` to all machines of the application, until the returned value is dropped.
///
/// # Errors
/// Returns an [`ExportError`].
pub async fn export(path: &Path, access: Access) -> Result<HandlerRegistration, ExportError> {
    let directory = Arc::new(Directory::open(path, access).map_err(ExportError::Open)?);
    let serving =
        FILES.serve(move |_, request| {
            let directory = directory.clone();
            async move {
                off_core(move || directory.answer(request)).await.map_err(|WorkPanicked| Refusal::Failed)
            }
        });
    serving.await.map_err(ExportError::Call)?.map_err(ExportError::Serve)
}
