//! Extended attributes: a block for each set of them, which inodes with the same ones share.

use super::BLOCK_LEN;
use crate::tree::ExtendedAttributes;
use crate::{BuildError, MOST_ATTRIBUTE_BYTES};

const MAGIC: u32 = 0xea02_0000;
/// The bytes of the header and of an entry without its name.
const HEADER_LEN: usize = 32;
const ENTRY_LEN: usize = 16;

/// Returns the number for the first part of a name, and the rest; `None` for a name that the format has not.
fn index_of(name: &[u8]) -> Option<(u8, &[u8])> {
    [(b"user.".as_slice(), 1), (b"trusted.", 4), (b"security.", 6)]
        .into_iter()
        .find_map(|(prefix, index)| Some((index, name.strip_prefix(prefix).filter(|rest| !rest.is_empty())?)))
}

/// Returns whether an image can have an attribute of that name.
pub fn is_storable(name: &[u8]) -> bool {
    name.len() <= 255 && index_of(name).is_some()
}

/// Returns the block of a set of attributes that `references` inodes have.
pub fn block_of(attributes: &ExtendedAttributes, references: u32) -> Result<Vec<u8>, BuildError> {
    let mut sorted: Vec<_> = attributes
        .iter()
        .filter_map(|(name, value)| index_of(name).map(|(index, rest)| (index, rest, value)))
        .collect();
    sorted.sort_by_key(|(index, rest, _)| (*index, rest.len(), *rest));
    let mut block = vec![0; BLOCK_LEN];
    let (mut at, mut value_at, mut block_hash) = (HEADER_LEN, BLOCK_LEN, 0_u32);
    for (index, name, value) in sorted {
        let entry_len = (ENTRY_LEN + name.len()).next_multiple_of(4);
        let value_len = value.len().next_multiple_of(4);
        // Four zeros end the entries.
        if at + entry_len + 4 + value_len > value_at {
            return Err(BuildError::Attributes { most: MOST_ATTRIBUTE_BYTES });
        }
        value_at -= value_len;
        block[value_at..value_at + value.len()].copy_from_slice(value);
        let hash = hash_of(name, &block[value_at..value_at + value_len]);
        block_hash = block_hash.rotate_left(16) ^ hash;
        let offset = if value.is_empty() { 0 } else { value_at as u16 };
        block[at] = name.len() as u8;
        block[at + 1] = index;
        block[at + 2..at + 4].copy_from_slice(&offset.to_le_bytes());
        block[at + 8..at + 12].copy_from_slice(&(value.len() as u32).to_le_bytes());
        block[at + 12..at + 16].copy_from_slice(&hash.to_le_bytes());
        block[at + ENTRY_LEN..at + ENTRY_LEN + name.len()].copy_from_slice(name);
        at += entry_len;
    }
    for (at, word) in [(0, MAGIC), (4, references), (8, 1), (12, block_hash)] {
        block[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    Ok(block)
}

/// Returns the hash of an attribute, whose value is padded to words.
fn hash_of(name: &[u8], value: &[u8]) -> u32 {
    let of_name = name.iter().fold(0_u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
    let words = value.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    words.fold(of_name, |hash, word| hash.rotate_left(16) ^ word)
}
