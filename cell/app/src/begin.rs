//! From the first core's loop to the application's `main`.

use crate::arguments::{Arguments, ExitCode};
use crate::{println, stop};
use core::future::Future;
use isola_ebbs::platform;
use isola_events::{exit, spawn_task};
use isola_net::interface::NetworkError;

/// Queues the application's start on the first core.
pub fn begin<F: Future<Output = ExitCode> + 'static>(main: fn(Arguments) -> F) {
    spawn_task(async move {
        stop::listen();
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
