//! Whether the program uses TCP: an image whose application does not contains no code of TCP but the answer to
//! unexpected segments ([`refusal`](super::refusal)).
//!
//! The functions of this room that a stack calls by itself (for a frame, a timer, an event) return at once while TCP is
//! not in use. The flag is set by calls of the application only: [`Stack::listen`](crate::Stack::listen),
//! [`Stack::connect`](crate::Stack::connect) and [`use_tcp`]. If a program contains none of these calls, nothing in it
//! sets the flag; the compiler then replaces each check by its outcome, and drops the code behind it at link time.
//! `cargo xtask check udp-only` verifies this for an image.
//!
//! A check costs a load and a branch. Hot paths have one per received frame, sent segment and event. The search for the
//! next deadline and reading data have theirs behind the branches that find that there is no work.

use core::sync::atomic::{AtomicBool, Ordering};

/// Whether any stack of the program has used TCP. The flag is never cleared.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Enables TCP for all stacks of the program. [`Stack::listen`](crate::Stack::listen) and
/// [`Stack::connect`](crate::Stack::connect) do so by themselves. Call this before
/// [`Stack::listen_again`](crate::Stack::listen_again) only.
pub fn use_tcp() {
    // Another core learns of a listener by a message or under a lock, both of which order this store before.
    IN_USE.store(true, Ordering::Relaxed);
}

/// Returns whether TCP is in use.
#[inline(always)]
pub(crate) fn is_in_use() -> bool {
    IN_USE.load(Ordering::Relaxed)
}
