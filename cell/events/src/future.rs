//! Combinators of futures (EbbRT 3.4): to wait for several, and to handle the outcome of one.
//!
//! | purpose | function |
//! |---|---|
//! | wait for all | [`join`], [`join3`], [`join_all`]; until the first error: [`try_join`], [`try_join_all`] |
//! | wait for the first | [`select`] of two, [`select_all`] of many, [`select_ok`]: the first success |
//! | wait for a limited time | [`timeout`](crate::timeout) |
//! | cancel | dropping a future ends it; [`abortable`] works without ownership; for tasks [`Task::cancel`] and [`Task::cancel_on_drop`] |
//! | continue | `await`; [`FutureExt::then`], [`FutureExt::map`] without an `async` block |
//! | pass errors to the first handler | `?` in an `async fn`; [`TryFutureExt::and_then`] runs on success, [`TryFutureExt::or_else`] handles an earlier error |
//!
//! A ready future continues at once, in the event that awaits it, without a trip through the queue. The same holds for
//! a task started by [`start_task`](crate::start_task).
//!
//! The combinators are those of `futures-util`; see its documentation.
//!
//! [`Task::cancel`]: crate::Task::cancel
//! [`Task::cancel_on_drop`]: crate::Task::cancel_on_drop

pub use futures_util::future::{
    AbortHandle, Abortable, Aborted, Either, FutureExt, Ready, TryFutureExt, abortable, join, join_all,
    join3, ready, select, select_all, select_ok, try_join, try_join_all, try_join3,
};
