//! Signals: numbers, pending signals, actions, and the frame of a handler.

mod action;
mod frame;
mod queue;
mod set;

pub use action::{ACTION_LEN, Handler, SignalAction, SignalActions};
pub use frame::{AlternateStack, FaultFacts, FrameInput, SavedContext, SignalFrame, enter_handler};
pub use queue::{
    INFO_LEN, MOST_QUEUED, PendingSignals, SI_KERNEL, SI_QUEUE, SI_TIMER, SI_TKILL, SI_USER, SignalFacts,
    SignalInfo,
};
pub use set::{DefaultAction, Signal, SignalSet};
