//! Hosted cells: processes that listen for queries at the socket `hosted-NAME.sock` in the user's own folder.

use crate::client::{Client, ClientError};
use crate::machine::state::StateRoot;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The maximum name length of a hosted cell that can be inspected, in bytes. The address of its socket is
/// `/proc/self/fd/FOLDER/hosted-NAME.sock`, and a socket address has at most 107 bytes.
pub const MAX_NAME_BYTES: usize = 75;

/// Returns the socket path of the hosted cell of that name; `None` if the name cannot be part of a path.
pub fn socket(root: &StateRoot, name: &str) -> Option<PathBuf> {
    Some(root.path().join(file_name(name)?))
}

/// Connects to the hosted cell of that name, if one runs.
///
/// # Errors
/// [`ClientError`] if the cell runs and does not answer.
pub fn find(root: &StateRoot, name: &str) -> Result<Option<Client>, ClientError> {
    let Some(file) = file_name(name) else { return Ok(None) };
    match Client::connect_hosted(root.path(), &file) {
        Ok(client) => Ok(Some(client)),
        // A hosted cell that was killed has left its socket.
        Err(ClientError::Unreachable(error))
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn file_name(name: &str) -> Option<String> {
    let fits = !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.contains(['/', '\0']);
    fits.then(|| format!("hosted-{name}.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_exceeds_the_socket_address_is_rejected() {
        let longest = file_name(&"n".repeat(MAX_NAME_BYTES)).unwrap();
        assert!(format!("/proc/self/fd/99999/{longest}").len() <= 107);
        assert_eq!(file_name(&"n".repeat(MAX_NAME_BYTES + 1)), None);
        assert_eq!((file_name(""), file_name("a/b")), (None, None));
    }
}
