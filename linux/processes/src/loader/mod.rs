//! The loader: programs in ELF files, scripts, and the stack of a new program.

mod elf;
mod load;
mod script;
mod stack;

pub use elf::{FILE_HEADER_LEN, HeaderTable, InterpreterPath, Program, ProgramKind, Segment};
pub use load::{Loaded, Placement, load};
pub use script::{HEAD_LEN, Interpreter, interpreter};
pub use stack::{InitialStack, MOST_ARGUMENT_BYTES, ProgramInput};
