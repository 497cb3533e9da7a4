//! The binary protocol: a header of 24 bytes, then extras, key and value (memcached's
//! "BinaryProtocolRevamped").
//!
//! ```text
//!  0 magic 1 opcode 2..4 key length 4 extras length 5 data type 6..8 vbucket or status
//!  8..12 body length 12..16 opaque 16..24 cas          (all big-endian)
//! ```

mod command;
mod parse;
mod reply;

pub(crate) use parse::BinaryParser;
pub(crate) use reply::BinaryReply;

/// The first byte of a request.
pub(crate) const REQUEST_MAGIC: u8 = 0x80;
/// The first byte of a response.
const RESPONSE_MAGIC: u8 = 0x81;
/// The length of a header, in bytes.
const HEADER_LEN: usize = 24;
