//! The opcodes, and the form of each opcode's body.

use crate::request::{Direction, StoreMode};

/// The command of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Get,
    GetWithKey,
    GetAndTouch,
    GetAndTouchWithKey,
    Touch,
    Store(StoreMode),
    Count(Direction),
    Delete,
    Flush,
    Stat,
    Version,
    Verbosity,
    NoOp,
    Quit,
}

/// Whether answers are omitted. The client then sends a request that is always answered, and concludes from its answer
/// that the earlier requests were executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quiet {
    /// No answer is omitted.
    No,
    /// The usual answers are omitted: the miss of a read, the success of any other command.
    Yes,
}

/// Returns the command of an opcode, or `None` if the opcode is unknown.
pub(super) fn command(opcode: u8) -> Option<(Command, Quiet)> {
    use Command::*;
    use Direction::*;
    use StoreMode::*;
    Some(match opcode {
        0x00 => (Get, Quiet::No),
        0x01 => (Store(Set), Quiet::No),
        0x02 => (Store(Add), Quiet::No),
        0x03 => (Store(Replace), Quiet::No),
        0x04 => (Delete, Quiet::No),
        0x05 => (Count(Up), Quiet::No),
        0x06 => (Count(Down), Quiet::No),
        0x07 => (Quit, Quiet::No),
        0x08 => (Flush, Quiet::No),
        0x09 => (Get, Quiet::Yes),
        0x0a => (NoOp, Quiet::No),
        0x0b => (Version, Quiet::No),
        0x0c => (GetWithKey, Quiet::No),
        0x0d => (GetWithKey, Quiet::Yes),
        0x0e => (Store(Append), Quiet::No),
        0x0f => (Store(Prepend), Quiet::No),
        0x10 => (Stat, Quiet::No),
        0x11 => (Store(Set), Quiet::Yes),
        0x12 => (Store(Add), Quiet::Yes),
        0x13 => (Store(Replace), Quiet::Yes),
        0x14 => (Delete, Quiet::Yes),
        0x15 => (Count(Up), Quiet::Yes),
        0x16 => (Count(Down), Quiet::Yes),
        0x17 => (Quit, Quiet::Yes),
        0x18 => (Flush, Quiet::Yes),
        0x19 => (Store(Append), Quiet::Yes),
        0x1a => (Store(Prepend), Quiet::Yes),
        0x1b => (Verbosity, Quiet::No),
        0x1c => (Touch, Quiet::No),
        0x1d => (GetAndTouch, Quiet::No),
        0x1e => (GetAndTouch, Quiet::Yes),
        0x23 => (GetAndTouchWithKey, Quiet::No),
        0x24 => (GetAndTouchWithKey, Quiet::Yes),
        _ => return None,
    })
}

impl Command {
    /// Returns whether the command accepts a body with extras, key and value of these lengths.
    pub fn accepts(self, extras_len: usize, key_len: usize, value_len: usize) -> bool {
        let has_key = key_len > 0;
        let has_value = value_len > 0;
        match self {
            Self::Get | Self::GetWithKey | Self::Delete => extras_len == 0 && has_key && !has_value,
            Self::GetAndTouch | Self::GetAndTouchWithKey | Self::Touch => {
                extras_len == 4 && has_key && !has_value
            }
            Self::Store(StoreMode::Append | StoreMode::Prepend) => extras_len == 0 && has_key,
            Self::Store(StoreMode::Set | StoreMode::Add | StoreMode::Replace) => extras_len == 8 && has_key,
            Self::Count(_) => extras_len == 20 && has_key && !has_value,
            Self::Flush => matches!(extras_len, 0 | 4) && !has_key && !has_value,
            Self::Verbosity => extras_len == 4 && !has_key && !has_value,
            Self::Stat => extras_len == 0 && !has_value,
            Self::Version | Self::NoOp | Self::Quit => extras_len == 0 && !has_key && !has_value,
        }
    }

    /// Returns whether the answer repeats the key.
    pub fn echoes_key(self) -> bool {
        matches!(self, Self::GetWithKey | Self::GetAndTouchWithKey)
    }
}
