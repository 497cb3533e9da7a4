//! Interrupts as events: a handler runs in the loop, between events, with interrupts off, to completion. (A long event
//! can take interrupts: [`must_yield`](crate::must_yield). Their handlers run after it.)
//!
//! A driver allocates any free vector ([`allocate_interrupt`], EbbRT 3.3.1), or binds the one to which the hardware is
//! wired ([`on_interrupt`]). A vector has one handler per core, until the [`Interrupt`] is dropped.
//!
//! ```text
//! 0x20-0x3f   bound: as the supervisor or the firmware specifies
//! 0x40-0xbf   bound: queues of network and block devices
//! 0xc0-0xdf   allocated, separately on each core
//! 0xe0-0xff   bound: interrupt lines, requests of the supervisor; timer and wake-ups, which need no handler
//! ```

use crate::accounting::{Accounting, add};
use crate::event_loop::EVENTS;
use crate::mailbox;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::RangeInclusive;
use isola_abi::descriptor::REQUEST_VECTOR;
use isola_ebbs::platform;
use isola_platform::{OtherVectors, PendingVectors};

/// The vectors that are allocated.
pub const ALLOCATED_VECTORS: RangeInclusive<u8> = 0xc0..=0xdf;

/// The vectors that platforms assign to the queues of network and block devices.
pub const QUEUE_VECTORS: RangeInclusive<u8> = 0x40..=0xbf;

/// The function called at an interrupt.
type Handler = Rc<dyn Fn()>;

/// The handlers of a core and their vectors. There are few, so a linear search finds them.
#[derive(Default)]
pub(crate) struct Handlers {
    bound: RefCell<Vec<(u8, Handler)>>,
}

/// The error of installing a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptError {
    /// The vector already has a handler on this core.
    Taken {
        /// The vector.
        vector: u8,
    },
    /// All allocatable vectors have handlers on this core.
    NoneFree,
}

impl fmt::Display for InterruptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { vector } => {
                write!(
                    f,
                    "interrupt {vector:#x} has a handler on this core: drop that first, or allocate a vector"
                )
            }
            Self::NoneFree => {
                f.write_str("this core has no interrupt vector left: drop one, or take one on another core")
            }
        }
    }
}

impl core::error::Error for InterruptError {}

/// A vector with a handler, on the core that installed it. Dropping it removes the handler and frees the vector.
#[derive(Debug)]
#[must_use = "the handler is removed when this is dropped"]
pub struct Interrupt {
    vector: u8,
    /// Makes the type neither `Send` nor `Sync`: it stays on its core.
    here: PhantomData<Rc<()>>,
}

impl Interrupt {
    /// Returns the vector.
    pub fn vector(&self) -> u8 {
        self.vector
    }

    /// Keeps the handler until the cell ends.
    pub fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        let mut bound = EVENTS.handlers.bound.borrow_mut();
        let index = bound.iter().position(|(vector, _)| *vector == self.vector);
        let handler = index.map(|index| bound.swap_remove(index));
        drop(bound);
        // No borrow is held here, as the handler may own interrupts as well.
        drop(handler);
    }
}

/// Installs a handler that runs on this core after each arrival of the interrupt `vector`. Several arrivals in close
/// succession may cause one call.
///
/// # Errors
/// [`InterruptError::Taken`] if the vector has a handler on this core.
pub fn on_interrupt(vector: u8, handler: impl Fn() + 'static) -> Result<Interrupt, InterruptError> {
    EVENTS.handlers.bind(vector, Rc::new(handler))
}

/// Installs a handler that runs on this core after each arrival of an interrupt at a newly allocated vector.
///
/// # Errors
/// [`InterruptError::NoneFree`] if all of [`ALLOCATED_VECTORS`] are in use on this core.
pub fn allocate_interrupt(handler: impl Fn() + 'static) -> Result<Interrupt, InterruptError> {
    let free = { ALLOCATED_VECTORS.into_iter().find(|vector| !EVENTS.handlers.has(*vector)) };
    EVENTS.handlers.bind(free.ok_or(InterruptError::NoneFree)?, Rc::new(handler))
}

impl Handlers {
    fn has(&self, vector: u8) -> bool {
        self.bound.borrow().iter().any(|(bound, _)| *bound == vector)
    }

    fn bind(&self, vector: u8, handler: Handler) -> Result<Interrupt, InterruptError> {
        if self.has(vector) {
            return Err(InterruptError::Taken { vector });
        }
        self.bound.borrow_mut().push((vector, handler));
        Ok(Interrupt { vector, here: PhantomData })
    }

    /// Runs the handlers of the interrupts that arrived. A vector without a handler is only counted: it has served its
    /// purpose if it woke the core.
    #[inline(never)]
    pub fn run(&self, mut pending: PendingVectors, accounting: &Accounting) {
        loop {
            let others = pending.others();
            for vector in pending {
                add(&accounting.report().interrupts, 1);
                self.call(vector);
            }
            if others == OtherVectors::None {
                break;
            }
            pending = platform().take_interrupts();
        }
    }

    #[inline]
    fn call(&self, vector: u8) {
        if vector == REQUEST_VECTOR {
            mailbox::all().give_notice();
        }
        let bound = self.bound.borrow();
        // Drivers install theirs last, and have the most interrupts.
        let mut last_first = bound.iter().rev();
        let handler = last_first.find(|(bound, _)| *bound == vector).map(|(_, handler)| handler.clone());
        // No borrow is held during the call, as handlers may install or remove handlers.
        drop(bound);
        if let Some(handler) = handler {
            handler();
        }
    }
}
