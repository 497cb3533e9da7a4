//! From the first core's loop to the application's `main`.

use crate::arguments::{Arguments, ExitCode};
use crate::ebbs::InUse;
use crate::{println, stop};
use core::future::Future;
use isola_ebbs::platform;
use isola_events::{exit, spawn_task};
use isola_net::interface::NetworkError;

/// Queues the application's start on the first core. `components` puts the application's own components in the place of
/// Isola's, before any of them is used.
pub fn begin<F: Future<Output = ExitCode> + 'static>(
    components: fn() -> Result<(), InUse>,
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
            // A cell without a network is an ordinary thing; who needs one is told when it asks for a port.
            Ok(()) | Err(NetworkError::NoDevice) => {}
            Err(error) => println!("network: {error}"),
        }
        let arguments = Arguments::new(platform().descriptor().arguments.clone());
        exit(main(arguments).await.0);
    })
    .detach();
}

/// The components of an application that names none: Isola's.
pub fn no_components() -> Result<(), InUse> {
    Ok(())
}
