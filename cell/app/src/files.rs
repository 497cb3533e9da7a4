//! Files of the hosted process's host, for all machines of the application.

use alloc::string::String;
pub use isola_fs::{
    Access, Entry, FileError, FileKind, FileRefusal, MAX_LISTED, MAX_READ, Status, list, list_after, read,
    status, write,
};
use isola_messenger::HandlerRegistration;

/// Exports a directory of this process's host to all machines of the application, until the returned value is dropped.
/// For the cell's first core; the application's first machine has to serve the id map
/// ([`serve`](isola_messenger::id_map::serve)).
///
/// # Errors
/// A message for the user, among others on bare hardware, which has no host.
pub async fn export(directory: &str, access: Access) -> Result<HandlerRegistration, String> {
    crate::on::export(directory, access).await
}
