//! The owner of work: a number that the user of a stack assigns to connections, listeners and sockets.
//!
//! The stack only reports the owner of each piece of work ([`Stack::owner`](crate::Stack::owner)), so that the user can
//! charge a frame's cycles to the activity that the frame belongs to.

/// An owner, numbered by the stack's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(pub u32);

impl Owner {
    /// The owner of work without a connection, listener or socket, or of one without an assigned owner.
    pub const UNKNOWN: Self = Self(u32::MAX);
}
