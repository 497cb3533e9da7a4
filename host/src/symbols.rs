//! Symbols for addresses: translates the addresses of a crash with an image's debug information.

use addr2line::{Loader, demangle_auto};
use isola_abi::layout::{PAGE_SIZE, SHARED};
use isola_abi::management::Crash;
use serde::Serialize;
use std::borrow::Cow;
use std::path::Path;
use thiserror::Error;

/// An image's symbols and line tables.
pub struct Symbols {
    loader: Loader,
}

/// The reason why an image's symbols cannot be read.
#[derive(Debug, Error)]
#[error("no names for addresses, as {path} cannot be read: {reason}")]
pub struct SymbolsError {
    path: String,
    reason: String,
}

/// The kind of a code address in a backtrace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressKind {
    /// The address of the interrupted instruction.
    Instruction,
    /// A return address: the call instruction precedes it.
    Return,
}

/// A line of a backtrace. An address has several if calls were inlined, innermost first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Frame {
    /// The address.
    pub address: u64,
    /// The function, if the image names it.
    pub function: Option<String>,
    /// The source file, if the image names it.
    pub file: Option<String>,
    /// The line in the file.
    pub line: Option<u32>,
}

impl Symbols {
    /// Reads the symbols of the image at `path`.
    ///
    /// # Errors
    /// [`SymbolsError`].
    pub fn open(path: &Path) -> Result<Self, SymbolsError> {
        let failed = |reason: String| SymbolsError { path: path.display().to_string(), reason };
        Loader::new(path).map(|loader| Self { loader }).map_err(|error| failed(error.to_string()))
    }

    /// Returns the functions at an address, innermost first. Returns at least one frame, if necessary with the address
    /// only.
    pub fn frames(&self, address: u64, kind: AddressKind) -> Vec<Frame> {
        let probe = match kind {
            AddressKind::Instruction => address,
            AddressKind::Return => address.saturating_sub(1),
        };
        let mut frames = Vec::new();
        if let Ok(mut found) = self.loader.find_frames(probe) {
            while let Ok(Some(frame)) = found.next() {
                let function = frame.function.and_then(|name| Some(name.demangle().ok()?.into_owned()));
                let location = frame.location;
                frames.push(Frame {
                    address,
                    function,
                    file: location.as_ref().and_then(|location| location.file).map(str::to_owned),
                    line: location.and_then(|location| location.line),
                });
            }
        }
        // The inner frames are inlined calls; the outermost frame is the function of the symbol, whose name is
        // complete.
        if let Some(last) = frames.last_mut()
            && let Some(name) = self.symbol(probe)
        {
            last.function = Some(name);
        }
        if frames.is_empty() {
            frames.push(Frame { function: self.symbol(probe), ..Frame::unnamed(address) });
        }
        frames
    }

    fn symbol(&self, probe: u64) -> Option<String> {
        let name = self.loader.find_symbol(probe)?;
        let name = demangle_auto(Cow::Borrowed(name), None).into_owned();
        // The hash that the compiler appends is of no use to a reader.
        let hash = |tail: &str| tail.len() == 16 && tail.bytes().all(|byte| byte.is_ascii_hexdigit());
        Some(match name.rsplit_once("::h") {
            Some((path, tail)) if hash(tail) => path.to_owned(),
            _ => name,
        })
    }
}

impl Frame {
    fn unnamed(address: u64) -> Self {
        Self { address, function: None, file: None, line: None }
    }
}

/// Returns the backtrace of a crash, innermost frame first; without names if `symbols` is `None`.
pub fn backtrace(crash: &Crash, symbols: Option<&Symbols>) -> Vec<Frame> {
    let first = (crash.instruction != 0).then_some((crash.instruction, AddressKind::Instruction));
    // If the walk begins with the instruction itself, list that only once.
    let returns = crash.backtrace.strip_prefix(&[crash.instruction]).unwrap_or(&crash.backtrace);
    let addresses = first.into_iter().chain(returns.iter().map(|&address| (address, AddressKind::Return)));
    addresses
        .flat_map(|(address, kind)| match symbols {
            _ if (SHARED..SHARED + PAGE_SIZE).contains(&address) => {
                vec![Frame { function: Some("(the switch page)".into()), ..Frame::unnamed(address) }]
            }
            Some(symbols) => symbols.frames(address, kind),
            None => vec![Frame::unnamed(address)],
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use isola_abi::report::CrashKind;

    #[inline(never)]
    fn a_function_with_a_name(seed: u64) -> u64 {
        std::hint::black_box(seed).wrapping_mul(3)
    }

    /// Returns the address of [`a_function_with_a_name`] in the file of this process.
    pub fn address_in_file() -> u64 {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let exe = std::env::current_exe().unwrap();
        let first = maps.lines().find(|line| line.ends_with(exe.to_str().unwrap())).unwrap();
        let base = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
        a_function_with_a_name as fn(u64) -> u64 as usize as u64 - base
    }

    /// Programs of the tests have no line tables (`Cargo.toml`), so the C compiler makes one with them, of one function.
    #[test]
    fn an_address_resolves_to_function_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("twice.c"), folder.path().join("twice"));
        std::fs::write(&source, "\n\nlong twice(long number) {\n    return 2 * number;\n}\n").unwrap();
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-g", "-static", "-nostdlib", "-Wl,--entry=twice", "-o"]).arg(&program).arg(&source);
        assert!(compiler.status().unwrap().success());
        let header = std::fs::read(&program).unwrap();
        // `e_entry` of the ELF header.
        let entry = u64::from_le_bytes(header[24..32].try_into().unwrap());
        let frames = Symbols::open(&program).unwrap().frames(entry, AddressKind::Instruction);
        let [frame] = &frames[..] else { panic!("{frames:?}") };
        assert_eq!(frame.function.as_deref(), Some("twice"));
        assert!(frame.file.as_ref().unwrap().ends_with("twice.c"), "{frames:?}");
        assert_eq!(frame.line, Some(3));
    }

    #[test]
    fn an_address_of_a_program_without_line_tables_resolves_to_its_function() {
        assert_eq!(a_function_with_a_name(2), 6);
        let symbols = Symbols::open(&std::env::current_exe().unwrap()).unwrap();
        let frames = symbols.frames(address_in_file() + 1, AddressKind::Instruction);
        let function = frames.last().unwrap().function.as_ref().unwrap();
        assert!(function.ends_with("symbols::tests::a_function_with_a_name"), "{frames:?}");
    }

    #[test]
    fn a_return_address_belongs_to_the_call_before_it() {
        let symbols = Symbols::open(&std::env::current_exe().unwrap()).unwrap();
        let start = address_in_file();
        let named = |kind| {
            symbols.frames(start, kind).iter().any(|frame| {
                frame.function.as_ref().is_some_and(|name| name.contains("a_function_with_a_name"))
            })
        };
        assert!(named(AddressKind::Instruction));
        assert!(!named(AddressKind::Return));
    }

    #[test]
    fn a_crash_without_symbols_keeps_its_addresses() {
        let crash = Crash {
            kind: CrashKind::Panic,
            core: None,
            vector: 0,
            error_code: 0,
            fault_address: 0,
            instruction: 7,
            stack_pointer: 0,
            backtrace: vec![7, 8, 9],
            message: String::new(),
        };
        let addresses: Vec<u64> = backtrace(&crash, None).iter().map(|frame| frame.address).collect();
        assert_eq!(addresses, [7, 8, 9]);
        assert!(Symbols::open(Path::new("/nonexistent")).is_err());
    }
}
