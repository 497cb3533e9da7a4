//! The shared libraries that programs need, direct and indirect.

use crate::error::BenchError;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// A shared library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Its name in programs (DT_NEEDED).
    pub name: String,
    /// The file.
    pub bytes: Vec<u8>,
}

/// Returns all libraries that `programs` need, sorted by name; `find` returns the path of one.
///
/// # Errors
/// As `find`; [`BenchError::File`].
pub fn closure(
    programs: &[&[u8]],
    find: impl Fn(&str) -> Result<PathBuf, BenchError>,
) -> Result<Vec<Library>, BenchError> {
    let mut found: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut open: Vec<String> = programs.iter().flat_map(|program| needed(program)).collect();
    while let Some(name) = open.pop() {
        if found.contains_key(&name) {
            continue;
        }
        let path = find(&name)?;
        let bytes = fs::read(&path).map_err(BenchError::file(&path))?;
        open.extend(needed(&bytes));
        found.insert(name, bytes);
    }
    Ok(found.into_iter().map(|(name, bytes)| Library { name, bytes }).collect())
}

/// Returns the libraries that an ELF file names itself; none for other files.
fn needed(file: &[u8]) -> Vec<String> {
    read_needed(file).unwrap_or_default()
}

fn read_needed(file: &[u8]) -> Option<Vec<String>> {
    let header = elf::FileHeader64::<object::Endianness>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, file).ok()?;
    let entries = segments.iter().find_map(|segment| segment.dynamic(endian, file).ok()?)?;
    let value = |tag: elf::DynamicTag| {
        let entry = entries.iter().find(|entry| entry.d_tag(endian) == tag)?;
        Some(entry.d_val(endian))
    };
    let (strings, size) = (value(elf::DT_STRTAB)?, value(elf::DT_STRSZ)?);
    let strings =
        segments.iter().find_map(|segment| segment.data_range(endian, file, strings, size).ok()?)?;
    let names = entries.iter().filter(|entry| entry.d_tag(endian) == elf::DT_NEEDED);
    let names = names.filter_map(|entry| {
        let rest = strings.get(usize::try_from(entry.d_val(endian)).ok()?..)?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    });
    Some(names.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_needs_the_c_library_and_that_needs_the_loader() {
        let this = fs::read("/proc/self/exe").unwrap();
        assert!(needed(&this).contains(&"libc.so.6".to_owned()), "{:?}", needed(&this));
        // The host's dynamic loader searches these folders, if they exist.
        let folders =
            ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"];
        let find = |name: &str| {
            let paths = folders.map(|folder| PathBuf::from(folder).join(name));
            let missing = || BenchError::PackageContents { path: "/lib".into(), item: name.to_owned() };
            paths.into_iter().find(|path| path.is_file()).ok_or_else(missing)
        };
        let names: Vec<_> =
            closure(&[&this], find).unwrap().into_iter().map(|library| library.name).collect();
        assert!(names.contains(&"ld-linux-x86-64.so.2".to_owned()), "{names:?}");
        assert!(names.is_sorted());
    }

    #[test]
    fn a_file_that_is_not_elf_needs_no_library() {
        assert_eq!(needed(b"#!/bin/sh\n"), [""; 0]);
        assert_eq!(needed(b""), [""; 0]);
        let mut this = fs::read("/proc/self/exe").unwrap();
        this.truncate(200);
        assert_eq!(needed(&this), [""; 0]);
    }
}
