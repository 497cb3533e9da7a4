//! The start of the application's `main` from the first core's event loop.

use crate::arguments::{Arguments, ExitCode};
use crate::ebbs::EbbInUse;
use crate::{println, stop};
use core::future::Future;
use isola_ebbs::platform;
use isola_events::{exit, spawn_task};
use isola_net::interface::NetworkError;

/// Queues the start of the application on the first core. Calls `components` first, which replaces components of Isola
/// by the application's own before their first use.
pub fn begin<F: Future<Output = ExitCode> + 'static>(
    components: fn() -> Result<(), EbbInUse>,
    main: fn(Arguments) -> F,
) {
    let named = components();
    spawn_task(async move {
        stop::listen();
        if let Err(error) = named {
            println!("components: {error}");
            return exit(ExitCode::FAILURE.0);
        }
        match isola_net::start() {
            // A cell without a network device is no error; an application that needs one gets an error when it opens a
            // port.
            Ok(()) | Err(NetworkError::NoDevice) => {}
            Err(error) => println!("network: {error}"),
        }
        let arguments = Arguments::new(platform().descriptor().arguments.clone());
        exit(main(arguments).await.0);
    })
    .detach();
}

/// Replaces no components.
pub fn no_components() -> Result<(), EbbInUse> {
    Ok(())
}
