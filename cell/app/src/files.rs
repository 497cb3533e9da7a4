//! Files of the hosted process, on every machine of the application.

use alloc::string::String;
pub use isola_fs::{
    Access, Entry, FileError, FileKind, MAX_LISTED, MAX_READ, Refused, Status, list, list_after, read,
    status, write,
};
use isola_messenger::Serving;

/// Makes a directory of this process's host available to all machines of the application, for as long as what is returned
/// lives. For the cell's first core; the application's first machine has to keep the id map
/// ([`keep`](isola_messenger::id_map::keep)).
///
/// # Errors
/// What to tell the user: among others, that a cell on bare hardware has no host.
pub async fn export(directory: &str, access: Access) -> Result<Serving, String> {
    crate::on::export(directory, access).await
}
