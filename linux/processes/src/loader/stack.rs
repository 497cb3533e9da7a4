//! The contents of a program's stack at its start: arguments, environment, auxiliary vector (System V ABI for x86-64,
//! 3.4.1).
//!
//! ```text
//!   stack pointer -> number of arguments | addresses of arguments, 0 | addresses of environment, 0
//!                    | auxiliary vector, AT_NULL | padding | strings and random bytes | 8 bytes of 0 <- top
//! ```

use crate::Errno;
use alloc::vec::Vec;
use isola_linux_abi::numbers::{AT_EXECFN, AT_NULL, AT_PLATFORM, AT_RANDOM};

/// The most bytes of arguments and environment with their addresses: a quarter of the usual stack, as in Linux.
pub const MOST_ARGUMENT_BYTES: usize = 2 << 20;
/// The most bytes of one argument with its NUL, as in Linux.
const MOST_STRING_BYTES: usize = 32 * 4096;

/// The input of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramInput {
    /// Arguments, the program's name first, without NULs.
    pub arguments: Vec<Vec<u8>>,
    /// Environment: `NAME=value`.
    pub environment: Vec<Vec<u8>>,
    /// The path that was executed (`AT_EXECFN`).
    pub path: Vec<u8>,
}

/// The contents of the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialStack {
    /// The address of the first byte: the initial stack pointer, a multiple of 16.
    pub pointer: u64,
    /// The bytes from there to the top.
    pub bytes: Vec<u8>,
    /// The addresses of the arguments' first byte and behind their last (for `/proc/PID/cmdline`).
    pub arguments: (u64, u64),
    /// The same of the environment.
    pub environment: (u64, u64),
    /// The same of the auxiliary vector (for `/proc/PID/auxv`).
    pub auxiliary: (u64, u64),
}

impl ProgramInput {
    /// Checks the lengths.
    ///
    /// # Errors
    /// [`Errno::E2BIG`] if a string or their sum is too long.
    pub fn check(&self) -> Result<(), Errno> {
        let strings = || self.arguments.iter().chain(&self.environment);
        let is_long = strings().any(|string| string.len() >= MOST_STRING_BYTES);
        let bytes: usize = strings().map(|string| string.len() + 1 + 8).sum();
        if is_long || bytes + self.path.len() > MOST_ARGUMENT_BYTES { Err(Errno::E2BIG) } else { Ok(()) }
    }

    /// Lays out the stack below `top`, a multiple of 16. `auxiliary` has the pairs of the auxiliary vector but those of
    /// addresses in the stack; `random` are the bytes of `AT_RANDOM`.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn lay_out(
        &self,
        top: u64,
        auxiliary: &[(u32, u64)],
        random: [u8; 16],
    ) -> Result<InitialStack, Errno> {
        self.check()?;
        // The strings, in ascending order, end below the eight zero bytes at the top.
        let mut strings: Vec<u8> = Vec::new();
        let mut add = |string: &[u8], end: &[u8]| {
            let offset = strings.len() as u64;
            strings.extend_from_slice(string);
            strings.extend_from_slice(end);
            offset
        };
        let platform = add(b"x86_64", b"\0");
        let random = add(&random, b"");
        let arguments: Vec<u64> = self.arguments.iter().map(|string| add(string, b"\0")).collect();
        let environment: Vec<u64> = self.environment.iter().map(|string| add(string, b"\0")).collect();
        let path = add(&self.path, b"\0");
        let end_of_environment = path;
        let end_of_arguments = environment.first().copied().unwrap_or(path);
        let strings_start = (top - 8 - strings.len() as u64) & !15;
        let mut vector: Vec<(u32, u64)> = auxiliary.to_vec();
        vector.push((AT_PLATFORM, strings_start + platform));
        vector.push((AT_RANDOM, strings_start + random));
        vector.push((AT_EXECFN, strings_start + path));
        vector.push((AT_NULL, 0));
        let mut words: Vec<u64> = alloc::vec![arguments.len() as u64];
        words.extend(arguments.iter().map(|offset| strings_start + offset));
        words.push(0);
        words.extend(environment.iter().map(|offset| strings_start + offset));
        words.push(0);
        let before_vector = 8 * words.len() as u64;
        words.extend(vector.iter().flat_map(|(kind, value)| [u64::from(*kind), *value]));
        let pointer = (strings_start - 8 * words.len() as u64) & !15;
        let auxiliary = (pointer + before_vector, pointer + 8 * words.len() as u64);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize((strings_start - pointer) as usize, 0);
        bytes.extend_from_slice(&strings);
        bytes.resize((top - pointer) as usize, 0);
        let first = |list: &[u64], end: u64| strings_start + list.first().copied().unwrap_or(end);
        Ok(InitialStack {
            pointer,
            bytes,
            auxiliary,
            arguments: (first(&arguments, end_of_arguments), strings_start + end_of_arguments),
            environment: (first(&environment, end_of_environment), strings_start + end_of_environment),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use isola_linux_abi::numbers::AT_PAGESZ;

    const TOP: u64 = 0x7fff_ffff_e000;

    fn word(stack: &InitialStack, address: u64) -> u64 {
        let at = (address - stack.pointer) as usize;
        u64::from_le_bytes(stack.bytes[at..at + 8].try_into().unwrap())
    }

    fn string(stack: &InitialStack, address: u64) -> &[u8] {
        let bytes = &stack.bytes[(address - stack.pointer) as usize..];
        &bytes[..bytes.iter().position(|byte| *byte == 0).unwrap()]
    }

    #[test]
    fn a_program_finds_its_input_from_the_stack_pointer() {
        for extra in 0..20 {
            let input = ProgramInput {
                arguments: vec![b"sh".to_vec(), vec![b'x'; extra], b"".to_vec()],
                environment: vec![b"PATH=/bin".to_vec()],
                path: b"/bin/sh".to_vec(),
            };
            let stack = input.lay_out(TOP, &[(AT_PAGESZ, 4096)], [7; 16]).unwrap();
            assert!(stack.pointer.is_multiple_of(16));
            assert_eq!(stack.pointer + stack.bytes.len() as u64, TOP);
            let at = |index: u64| word(&stack, stack.pointer + 8 * index);
            assert_eq!(at(0), 3);
            assert_eq!(string(&stack, at(1)), b"sh");
            assert_eq!(string(&stack, at(2)), vec![b'x'; extra]);
            assert_eq!((string(&stack, at(3)), at(4)), (&b""[..], 0));
            assert_eq!((string(&stack, at(5)), at(6)), (&b"PATH=/bin"[..], 0));
            assert_eq!((at(7), at(8)), (u64::from(AT_PAGESZ), 4096));
            assert_eq!((at(9), string(&stack, at(10))), (u64::from(AT_PLATFORM), &b"x86_64"[..]));
            assert_eq!((at(11), &string(&stack, at(12))[..16]), (u64::from(AT_RANDOM), &[7; 16][..]));
            assert_eq!((at(13), string(&stack, at(14))), (u64::from(AT_EXECFN), &b"/bin/sh"[..]));
            assert_eq!((at(15), at(16)), (u64::from(AT_NULL), 0));
            assert_eq!(stack.arguments, (at(1), at(5)));
            assert_eq!(stack.environment, (at(5), at(14)));
            assert_eq!(stack.auxiliary, (stack.pointer + 8 * 7, stack.pointer + 8 * 17));
        }
    }

    #[test]
    fn input_that_is_too_long_is_refused() {
        let long = |len| ProgramInput { arguments: vec![vec![b'x'; len]], ..ProgramInput::default() };
        assert_eq!(long(MOST_STRING_BYTES - 1).check(), Ok(()));
        assert_eq!(long(MOST_STRING_BYTES).check(), Err(Errno::E2BIG));
        let many =
            |count| ProgramInput { environment: vec![vec![b'x'; 991]; count], ..ProgramInput::default() };
        assert_eq!(many(2097).check(), Ok(()));
        assert_eq!(many(2098).lay_out(TOP, &[], [0; 16]), Err(Errno::E2BIG));
    }
}
