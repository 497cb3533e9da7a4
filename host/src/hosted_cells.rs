//! Hosted cells: processes that listen for queries at a socket in the user's own folder, `hosted-NAME.sock`.

use crate::client::{Client, ClientError};
use crate::machine::state::StateRoot;
use std::io::ErrorKind;
use std::path::PathBuf;

/// Longest name of a hosted cell that can be inspected, in bytes: `/proc/self/fd/FOLDER/hosted-NAME.sock` is the address of a
/// socket, which has at most 107.
pub const MAX_NAME_BYTES: usize = 75;

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
    let fits = !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.contains(['/', '\0']);
    fits.then(|| format!("hosted-{name}.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_into_a_socket_s_address_or_is_none() {
        let longest = file_name(&"n".repeat(MAX_NAME_BYTES)).unwrap();
        assert!(format!("/proc/self/fd/99999/{longest}").len() <= 107);
        assert_eq!(file_name(&"n".repeat(MAX_NAME_BYTES + 1)), None);
        assert_eq!((file_name(""), file_name("a/b")), (None, None));
    }
}
