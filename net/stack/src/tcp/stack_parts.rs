//! The parts of a stack that TCP uses in all its work.

use crate::base::{Counters, EventQueue, Instant};
use crate::ip::Interface;

/// The parts of the stack that TCP uses.
pub(crate) struct StackParts<'a> {
    pub now: Instant,
    pub interface: &'a mut Interface,
    pub counters: &'a mut Counters,
    pub events: &'a mut EventQueue,
}
