//! The text protocol: lines of words, values behind some of them (memcached's `protocol.txt`).
//!
//! [`command`] reads a line, [`parse`] is the state between lines, [`reply`] writes. [`meta`] has the meta commands,
//! [`stats`] the command of that name.

mod command;
mod meta;
mod parse;
mod reply;
mod stats;

pub(crate) use parse::TextParser;
pub(crate) use reply::{TextReply, single_get};
