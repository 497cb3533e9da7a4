//! The text protocol: lines of words, some of them followed by values (memcached's `protocol.txt`).
//!
//! [`command`] parses a line, [`parse`] holds the state between lines, [`reply`] writes answers. [`meta`] implements
//! the meta commands, [`stats`] the command of that name.

mod command;
mod meta;
mod parse;
mod reply;
mod stats;

pub(crate) use parse::TextParser;
pub(crate) use reply::{TextReply, single_get};
