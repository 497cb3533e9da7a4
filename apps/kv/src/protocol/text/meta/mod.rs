//! The meta commands: `mg`, `ms`, `md`, `ma`, `me` and `mn`, whose flags select effects and fields of the answer
//! (memcached's `protocol.txt`, "Meta Commands").
//!
//! [`flags`] parses the flags, [`command`] parses a line, and [`reply`] writes answers. As in memcached, a command
//! accepts and ignores a flag that it does not use. Three rules are stricter than those of memcached 1.6.18, and a
//! fourth follows its documentation instead of its code:
//!
//! - A key with the flag `b` is padded base64 (RFC 4648, section 4) without other bytes; memcached skips bytes outside
//!   the alphabet.
//! - An opaque token is checked before the command has any effect, and has up to 32 bytes.
//! - The parser skips the value of a rejected `ms` if it can parse the value's length, so that the value is never
//!   parsed as commands.
//! - An item that `N` creates has the time to live of `N`, not that of `T`, and `q` then also hides the `HD` of `ma`.

mod command;
mod flags;
mod reply;

pub(super) use command::read_line;
pub(crate) use reply::MetaReply;
