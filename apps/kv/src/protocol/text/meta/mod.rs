//! The meta commands: `mg`, `ms`, `md`, `ma`, `me` and `mn`, whose flags select effects and fields of the answer
//! (memcached's `protocol.txt`, "Meta Commands").
//!
//! [`flags`] reads the flags, [`command`] a line, [`reply`] writes. A flag that a command has no use for is accepted and
//! ignored, as memcached does. Three rules are stricter than memcached 1.6.18's, and a fourth is as its documentation has
//! it:
//!
//! - A key with the flag `b` is base64 with its padding (RFC 4648, section 4) and nothing else; memcached skips bytes that
//!   are not of its alphabet.
//! - An opaque token is checked before anything is done, and has up to 32 bytes.
//! - The value of an `ms` that is turned down is read off the connection wherever its length can be read, so that it is
//!   never taken for commands.
//! - An item that `N` creates has the time to live of `N`, not that of `T`, and `q` hides `HD` of `ma` then as well.

mod command;
mod flags;
mod reply;

pub(super) use command::read_line;
pub(crate) use reply::MetaReply;
