//! The set of a connection's events that the application has not taken.

/// An event of a connection, in the order of delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Signal {
    Accepted = 0,
    Connected,
    Readable,
    SendSpace,
    PeerClosed,
    Closed,
    Failed,
}

const ALL: [Signal; 7] = [
    Signal::Accepted,
    Signal::Connected,
    Signal::Readable,
    Signal::SendSpace,
    Signal::PeerClosed,
    Signal::Closed,
    Signal::Failed,
];

/// A set of signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signals(u8);

impl Signals {
    pub const NONE: Self = Self(0);

    pub fn raise(&mut self, signal: Signal) {
        self.0 |= 1 << signal as u8;
    }

    pub const fn has(self, signal: Signal) -> bool {
        self.0 & 1 << signal as u8 != 0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the set of a failed connection: the failure, and the acceptance if the application has not taken the
    /// connection yet.
    pub const fn failed(self) -> Self {
        Self(self.0 & 1 << Signal::Accepted as u8 | 1 << Signal::Failed as u8)
    }

    /// Removes and returns the first signal.
    #[inline]
    pub fn take(&mut self) -> Option<Signal> {
        let signal = *ALL.get(self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_taken_once_and_in_order() {
        let mut signals = Signals::NONE;
        for signal in [Signal::PeerClosed, Signal::Readable, Signal::Accepted, Signal::Readable] {
            signals.raise(signal);
        }
        let order: alloc::vec::Vec<_> = core::iter::from_fn(|| signals.take()).collect();
        assert_eq!(order, [Signal::Accepted, Signal::Readable, Signal::PeerClosed]);
        assert!(signals.is_empty());
    }
}
