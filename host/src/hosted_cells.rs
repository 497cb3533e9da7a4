//! Hosted cells: processes that listen for inquiries at a socket in the user's own folder, `hosted-NAME.sock`.

use crate::client::{Client, ClientError};
use crate::machine::state::StateRoot;
use std::io::ErrorKind;
use std::path::PathBuf;

/// Where the hosted cell of that name listens; none where the name cannot be part of a path.
pub fn socket(root: &StateRoot, name: &str) -> Option<PathBuf> {
    Some(root.path().join(file_name(name)?))
}

/// The hosted cell of that name, where one runs.
///
/// # Errors
/// [`ClientError`], where there is one that does not answer.
pub fn find(root: &StateRoot, name: &str) -> Result<Option<Client>, ClientError> {
    let Some(file) = file_name(name) else { return Ok(None) };
    match Client::connect_hosted(root.path(), &file) {
        Ok(client) => Ok(Some(client)),
        // One that was killed has left its socket behind.
        Err(ClientError::Unreachable(error))
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn file_name(name: &str) -> Option<String> {
    // The longest file name that Linux has is of 255 bytes.
    let fits = !name.is_empty() && name.len() <= 200 && !name.contains(['/', '\0']);
    fits.then(|| format!("hosted-{name}.sock"))
}
