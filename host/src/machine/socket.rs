//! Connections to sockets in a folder whose path may be longer than a socket address allows (107 bytes, unix(7)).
//!
//! QEMU runs in the folder and creates the sockets by relative names. A client cannot change its own folder; it opens
//! the folder and names the socket through `/proc/self/fd`.

use rustix::fs::{Mode, OFlags, open};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Connects to the socket `name` in the folder `dir`.
///
/// # Errors
/// The errors of opening the folder and of connecting.
pub fn connect(dir: &Path, name: &str) -> io::Result<UnixStream> {
    let folder = open(dir, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    UnixStream::connect(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_with_a_long_path_is_reachable() {
        let temporary = tempfile::tempdir().unwrap();
        let deep = temporary.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        assert!(UnixStream::connect(deep.join("s")).is_err_and(|e| e.kind() == io::ErrorKind::InvalidInput));
        let folder = open(&deep, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let _listener = UnixListener::bind(format!("/proc/self/fd/{}/s", folder.as_raw_fd())).unwrap();
        connect(&deep, "s").unwrap();
    }
}
