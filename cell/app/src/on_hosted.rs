//! An application in a Linux process.

use alloc::format;
use alloc::string::String;
use isola_fs::Access;
use isola_messenger::Serving;

pub use isola_gateway::linux;
#[doc(hidden)]
pub use isola_gateway::process::run;
#[doc(hidden)]
pub use isola_hosted as hosted;
pub use isola_hosted::heap::CellHeap;

/// Exports a directory of this process's host.
pub(crate) async fn export(directory: &str, access: Access) -> Result<Serving, String> {
    let serving = isola_fs_export::export(directory.as_ref(), access).await;
    serving.map_err(|error| format!("{directory}: {error}"))
}

#[doc(hidden)]
#[macro_export]
macro_rules! isola_binary {
    ($main:path, $components:path, $allocator:ty = $new:expr) => {
        $crate::on::hosted::process!(isola_app_run, $allocator = $new);

        fn isola_app_run() -> i32 {
            $crate::on::run(isola_app_begin)
        }

        fn isola_app_begin() {
            $crate::begin($components, $main);
        }
    };
}
