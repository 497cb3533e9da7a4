//! Futures together (EbbRT 3.4): what waits for several things, or handles what became of one.
//!
//! | wanted | is |
//! |---|---|
//! | all of them | [`join`], [`join3`], [`join_all`]; with the first error ending it: [`try_join`], [`try_join_all`] |
//! | the first of them | [`select`] of two, [`select_all`] of many, [`select_ok`]: the first that succeeds |
//! | one, but not for ever | [`timeout`](crate::timeout) |
//! | to give up | dropping a future ends it; [`abortable`] for who does not own it, and for tasks [`Task::cancel`] and [`Task::cancel_on_drop`] |
//! | then something else | `await` it; [`FutureExt::then`], [`FutureExt::map`] without an `async` block |
//! | errors to the first handler | `?` in an `async fn`; [`TryFutureExt::and_then`] runs on success, [`TryFutureExt::or_else`] handles whatever came before it |
//!
//! A future that is ready runs on at once, in the event that awaits it: there is no trip through the queue between it
//! and what follows. The same for one that gets its own task: [`start_task`](crate::start_task).
//!
//! The combinators are those of `futures-util`, whose documentation says more of each.
//!
//! [`Task::cancel`]: crate::Task::cancel
//! [`Task::cancel_on_drop`]: crate::Task::cancel_on_drop

pub use futures_util::future::{
    AbortHandle, Abortable, Aborted, Either, FutureExt, Ready, TryFutureExt, abortable, join, join_all,
    join3, ready, select, select_all, select_ok, try_join, try_join_all, try_join3,
};
