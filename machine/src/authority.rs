//! The right to program hardware that others depend on.
//!
//! The crate has one rule for its public functions:
//!
//! - A safe function without an [`Authority`] is safe to call by any code, at any time: it affects the caller's own
//!   core and values only, or acts through a value that owns its object ([`Region`](crate::memory::Region),
//!   [`ParkedCore`](crate::smp::ParkedCore), [`Device`](crate::device::Device)).
//! - A function that controls the machine's power, an interrupt controller, an interrupt handler, the context of a
//!   core, or the device addresses of regions takes an [`Authority`].
//! - A function with a precondition on which memory safety rests is `unsafe`.
//!
//! [`Machine`](crate::boot::Machine) and [`Cell`](crate::cell::Cell) contain the value, and each exists once in a run.
//! The platform of a cell keeps it: no public item of `isola`, the crate that applications depend on, returns it.

/// Proof that the caller belongs to the code that owns the machine, or to the platform of a cell. Zero-sized.
#[derive(Clone, Copy, Debug)]
pub struct Authority(());

impl Authority {
    /// The authority of this crate's own calls.
    pub(crate) const OWN: Self = Self(());

    /// Creates an authority without a [`Machine`](crate::boot::Machine) or a [`Cell`](crate::cell::Cell).
    ///
    /// # Safety
    /// The caller must be the platform of the running image: the code that sets its interrupt handlers, and decides
    /// which interrupts its cores send. It must not pass the value on to the application.
    pub const unsafe fn assume() -> Self {
        Self::OWN
    }
}
