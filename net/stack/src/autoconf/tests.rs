//! The set-up by itself.
