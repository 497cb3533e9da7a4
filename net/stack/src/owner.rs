//! The owner of work: a number that the user of a stack keeps with its connections, listeners and sockets.
//!
//! The stack does nothing with it but say, after each piece of work, whose it was ([`Stack::owner`](crate::Stack::owner)).
//! So the user charges a frame's cycles to the activity that the frame belongs to.

/// An owner, as the stack's user numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(pub u16);

impl Owner {
    /// The owner of work that belongs to no connection, listener or socket, or to one that was given no owner.
    pub const UNKNOWN: Self = Self(u16::MAX);
}
