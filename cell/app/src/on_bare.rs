//! An application on bare hardware: a cell image.

use alloc::string::String;
use isola_fs::Access;
use isola_messenger::HandlerRegistration;
use isola_platform::network::NetworkPort;

#[cfg(not(feature = "cells-only"))]
pub use isola_bare::cell_image;
#[cfg(feature = "cells-only")]
pub use isola_bare::cells_only_image as cell_image;
pub use isola_bare::heap::CellHeap;
pub(crate) use isola_bare::programs::user_mode;

/// Enables links to other cells, and returns the function that adds those of neighbours to the network device.
#[cfg(not(feature = "cells-only"))]
pub(crate) fn start_links() -> fn(NetworkPort) -> NetworkPort {
    isola_bare::links::enable();
    isola_neighbours::over_links
}

/// Returns the function that leaves the network device as it is: small images have no links.
#[cfg(feature = "cells-only")]
pub(crate) fn start_links() -> fn(NetworkPort) -> NetworkPort {
    |port| port
}

/// Connects to the network of a service cell.
#[cfg(not(feature = "cells-only"))]
pub(crate) async fn connect_network(cell: &str) -> Result<NetworkPort, String> {
    isola_volume_service::network::client::connect(cell).await.map_err(|error| alloc::format!("{error}"))
}

/// Returns an error: small images have no links.
#[cfg(feature = "cells-only")]
pub(crate) async fn connect_network(_: &str) -> Result<NetworkPort, String> {
    Err("this small image has no links to service cells: run it with a network device of its own".into())
}

/// Returns an error: a cell has no directory to export.
pub(crate) async fn export(_: &str, _: Access) -> Result<HandlerRegistration, String> {
    Err("a cell has no directories of its own: export them from the application run with --hosted".into())
}

#[doc(hidden)]
#[macro_export]
macro_rules! isola_binary {
    ($main:path, $components:path, $allocator:ty = $new:expr) => {
        $crate::__private::cell_image!(isola_app_begin, $allocator = $new);

        fn isola_app_begin() {
            $crate::__private::begin($components, $main);
        }
    };
}
