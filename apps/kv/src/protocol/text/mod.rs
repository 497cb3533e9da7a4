//! The text protocol: lines of words, values behind some of them (memcached's `protocol.txt`).
//!
//! [`command`] reads a line, [`parse`] is the state between lines, [`reply`] writes.

mod command;
mod parse;
mod reply;

pub(crate) use parse::TextParser;
pub(crate) use reply::{TextReply, single_get};
