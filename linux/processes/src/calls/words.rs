//! The arguments of calls: registers of 64 bits, of which a call uses as many as its C prototype has.

/// A type of an argument.
pub trait Word {
    /// Returns the argument from its register. As in Linux, bits beyond the type's are ignored.
    fn from_word(word: u64) -> Self;
}

impl Word for u64 {
    fn from_word(word: u64) -> Self {
        word
    }
}

impl Word for i64 {
    fn from_word(word: u64) -> Self {
        word as i64
    }
}

impl Word for u32 {
    fn from_word(word: u64) -> Self {
        word as u32
    }
}

impl Word for i32 {
    fn from_word(word: u64) -> Self {
        word as i32
    }
}

/// Returns the number of 64 bits at an offset of a program's structure.
///
/// # Panics
/// If it is not within the bytes.
pub fn word_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]))
}

/// Returns the number of 32 bits at an offset of a program's structure.
///
/// # Panics
/// If it is not within the bytes.
pub fn half_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]))
}
