//! Scripts: files that begin with `#!` and the path of their interpreter (Linux's `fs/binfmt_script.c`).

use crate::Errno;
use alloc::vec::Vec;

/// The number of bytes of a file that decide how it is executed, as in Linux.
pub const HEAD_LEN: usize = 256;

/// The interpreter of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// Its path.
    pub path: Vec<u8>,
    /// Its argument: the rest of the line, with blanks in it.
    pub argument: Option<Vec<u8>>,
}

/// Returns the interpreter that the first bytes of a file name; `None` if it is no script.
///
/// # Errors
/// [`Errno::ENOEXEC`] if the line names none, or its path is longer than [`HEAD_LEN`].
pub fn interpreter(head: &[u8]) -> Result<Option<Interpreter>, Errno> {
    let head = &head[..head.len().min(HEAD_LEN)];
    let Some(rest) = head.strip_prefix(b"#!") else { return Ok(None) };
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let end = rest.iter().position(|byte| *byte == b'\n');
    let line = &rest[..end.unwrap_or(rest.len())];
    let start = line.iter().position(|byte| !is_blank(byte)).ok_or(Errno::ENOEXEC)?;
    let line = &line[start..];
    let path_len = line.iter().position(|byte| is_blank(byte) || *byte == 0);
    if path_len.is_none() && end.is_none() && head.len() == HEAD_LEN {
        return Err(Errno::ENOEXEC);
    }
    let (path, rest) = line.split_at(path_len.unwrap_or(line.len()));
    if path.is_empty() {
        return Err(Errno::ENOEXEC);
    }
    let rest = &rest[..rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len())];
    let argument = rest.trim_ascii();
    Ok(Some(Interpreter { path: path.to_vec(), argument: (!argument.is_empty()).then(|| argument.to_vec()) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn found(head: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        interpreter(head).unwrap().map(|found| (found.path, found.argument))
    }

    #[test]
    fn the_line_has_a_path_and_one_argument() {
        let some = |path: &[u8], argument: Option<&[u8]>| Some((path.to_vec(), argument.map(<[u8]>::to_vec)));
        assert_eq!(found(b"#!/bin/sh\necho"), some(b"/bin/sh", None));
        assert_eq!(found(b"#! /usr/bin/env\tpython3 -u \n"), some(b"/usr/bin/env", Some(b"python3 -u")));
        assert_eq!(found(b"#!/bin/sh"), some(b"/bin/sh", None));
        assert_eq!(found(b"\x7fELF"), None);
        assert_eq!(found(b"#"), None);
    }

    #[test]
    fn lines_without_a_path_are_refused() {
        for head in [&b"#!"[..], b"#!\n/bin/sh", b"#!  \t\n", b"#!\0/bin/sh\n"] {
            assert_eq!(interpreter(head), Err(Errno::ENOEXEC), "{head:?}");
        }
        let mut long = vec![b'x'; HEAD_LEN];
        long[..3].copy_from_slice(b"#!/");
        assert_eq!(interpreter(&long), Err(Errno::ENOEXEC), "a path that is cut off");
        long[200] = b' ';
        assert_eq!(found(&long).map(|(path, _)| path.len()), Some(198));
    }
}
