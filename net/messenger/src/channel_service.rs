//! The service `messenger` of a cell: machines of the application that are cells of the same machine connect to it by
//! channels.

use crate::connection::Connection;
use crate::messenger::{MESSENGER_CORE, welcome};
use crate::transport::RINGS;
use crate::write_deadline::MACHINE_WRITE_LIMIT;
use alloc::format;
use alloc::string::String;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use isola_abi::id::ActivityId;
use isola_channels::{Listener, listen_with};
use isola_ebbs::{CellEbb, Representative, platform};
use isola_events::{current_activity, spawn_task_for, spawn_task_on};

/// The name of the service, which manifests can accept alone: `CELL/messenger`.
const SERVICE: &str = "messenger";

/// Returns the name of the channel to a first machine.
pub(crate) fn channel_to(cell: &str) -> String {
    format!("{cell}/{SERVICE}")
}

/// The first machines of this cell.
pub(crate) static HOSTING: CellEbb<Hosting> = CellEbb::new();

pub(crate) struct Hosting {
    /// Identifies this incarnation of the first machine: a joining machine compares the one that it reached by TCP with the
    /// one that it reaches by a channel.
    pub incarnation: NonZeroU64,
    /// The number of [`HostingUse`]s.
    uses: AtomicUsize,
    is_listening: AtomicBool,
}

impl Representative for Hosting {
    fn create() -> Self {
        let incarnation = NonZeroU64::new(platform().entropy()).unwrap_or(NonZeroU64::MIN);
        Self { incarnation, uses: AtomicUsize::new(0), is_listening: AtomicBool::new(false) }
    }
}

impl Hosting {
    /// Returns the name of this cell if machines can connect to it by channels; otherwise an empty one.
    pub fn cell_name(&self) -> &'static str {
        if self.is_listening.load(Ordering::Acquire) { &platform().descriptor().name } else { "" }
    }
}

/// Keeps the service in use.
#[derive(Debug)]
pub(crate) struct HostingUse(());

impl HostingUse {
    /// Begins to serve. Machines that connect are charged to the current activity.
    pub fn begin() -> Self {
        HOSTING.uses.fetch_add(1, Ordering::AcqRel);
        let activity = current_activity();
        spawn_task_on(MESSENGER_CORE, move || async move {
            if HOSTING.is_listening.load(Ordering::Acquire) {
                return;
            }
            // Without links there is TCP alone.
            if let Ok(listener) = listen_with(SERVICE, RINGS) {
                HOSTING.is_listening.store(true, Ordering::Release);
                spawn_task_for(activity, accept_all(listener, activity)).detach();
            }
        });
        Self(())
    }
}

impl Drop for HostingUse {
    fn drop(&mut self) {
        HOSTING.uses.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn accept_all(listener: Listener, activity: ActivityId) {
    loop {
        // An opener that has changed its mind is no reason to end.
        let Ok(channel) = listener.accept().await else { continue };
        if HOSTING.uses.load(Ordering::Acquire) > 0 {
            spawn_task_for(activity, welcome(Connection::channel(channel, MACHINE_WRITE_LIMIT))).detach();
        }
    }
}
