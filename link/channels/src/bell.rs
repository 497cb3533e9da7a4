//! Doorbells without a message, for protocols in shared memory that have rings of their own, as virtio.

use crate::Channel;
use crate::runtime::OpenLink;
use alloc::rc::Rc;
use core::fmt;
use isola_platform::LinkPort;

/// A function that looks for work after a doorbell, and returns whether there was some.
pub(crate) type BellHandler = Rc<dyn Fn() -> bool>;

/// The doorbell of a channel's peer. It does not keep the channel open.
#[derive(Clone)]
pub struct Bell {
    port: &'static dyn LinkPort,
    slot: usize,
}

impl Bell {
    /// Interrupts the peer's first core. Does nothing after the end of the channel.
    #[inline]
    pub fn ring(&self) {
        self.port.ring_doorbell(self.slot);
    }

    /// Returns the number of the link in this cell.
    pub fn slot(&self) -> usize {
        self.slot
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bell({})", self.slot)
    }
}

impl Channel {
    /// Returns the peer's doorbell.
    pub fn bell(&self) -> Bell {
        let link: &OpenLink = &self.link;
        Bell { port: link.port(), slot: link.slot.slot }
    }

    /// Calls `handler` after each doorbell of any peer, until the channel is dropped. It returns whether this channel had
    /// work, which keeps the core polling at high rates. It must not wait, and runs for the infrastructure: it wakes a
    /// task for the rest.
    pub fn on_doorbell(&self, handler: impl Fn() -> bool + 'static) {
        self.link.set_bell(Rc::new(handler));
    }
}
