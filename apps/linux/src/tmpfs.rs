//! File systems in memory that the command line asks for.

use alloc::format;
use alloc::string::{String, ToString};

/// A file system in memory: `PATH[:size=BYTES,mode=OCTAL]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TmpfsMount {
    /// The path at which it is mounted.
    pub path: String,
    /// The most bytes of its files; `None` for a part of the cell's memory.
    pub len_bytes: Option<u64>,
    /// The permissions of its root.
    pub permissions: u32,
}

impl TmpfsMount {
    /// Parses the text after `--tmpfs`.
    ///
    /// # Errors
    /// A text about the mistake.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("--tmpfs {text} is not PATH[:size=BYTES,mode=OCTAL]");
        let (path, options) = text.split_once(':').unwrap_or((text, ""));
        if !path.starts_with('/') || path.len() < 2 {
            return Err(bad());
        }
        let mut mount = Self { path: path.to_string(), len_bytes: None, permissions: 0o1777 };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("size", size)) => mount.len_bytes = Some(size.parse().map_err(|_| bad())?),
                Some(("mode", mode)) => {
                    let mode = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777);
                    mount.permissions = mode.ok_or_else(bad)?;
                }
                _ => return Err(bad()),
            }
        }
        Ok(mount)
    }
}
