//! An application in a Linux process.

use alloc::format;
use alloc::string::String;
use isola_fs::Access;
use isola_messenger::HandlerRegistration;
use isola_platform::network::NetworkPort;

pub use isola_gateway::linux;
pub use isola_gateway::process::run;
pub use isola_hosted::heap::CellHeap;
pub use isola_hosted::process;

/// Returns an error: a process has no links to cells of a machine.
pub(crate) async fn connect_network(_: &str) -> Result<NetworkPort, String> {
    Err("a process has no links to service cells".into())
}

/// Returns the function that adds links of neighbours to the network device.
pub(crate) fn start_links() -> fn(NetworkPort) -> NetworkPort {
    isola_neighbours::over_links
}

/// Returns `None`: a process runs no programs.
pub(crate) fn user_mode() -> Option<&'static dyn isola_user_mode::UserMode> {
    None
}

/// Exports a directory of this process's host.
pub(crate) async fn export(directory: &str, access: Access) -> Result<HandlerRegistration, String> {
    let serving = isola_fs_export::export(directory.as_ref(), access).await;
    serving.map_err(|error| format!("{directory}: {error}"))
}

#[doc(hidden)]
#[macro_export]
macro_rules! isola_binary {
    ($main:path, $components:path, $allocator:ty = $new:expr) => {
        $crate::__private::process!(isola_app_run, $allocator = $new);

        fn isola_app_run() -> i32 {
            $crate::__private::run(isola_app_begin)
        }

        fn isola_app_begin() {
            $crate::__private::begin($components, $main);
        }
    };
}
