//! The start of the application's `main` from the first core's event loop.

use crate::arguments::{Arguments, ExitCode};
use crate::ebbs::EbbInUse;
use crate::on::{connect_network, start_links};
use crate::{println, stop};
use core::future::Future;
use isola_abi::grid::GridSetup;
use isola_ebbs::platform;
use isola_events::{exit, spawn_task};
use isola_net::add_activity_rule;
use isola_net::interface::NetworkError;
use isola_resources::GridResource;

/// Queues the start of the application on the first core. Calls `components` first, which replaces components of Isola
/// by the application's own before their first use.
pub fn begin<F: Future<Output = ExitCode> + 'static>(
    components: fn() -> Result<(), EbbInUse>,
    main: fn(Arguments) -> F,
) {
    let over_links = start_links();
    let named = components();
    spawn_task(async move {
        stop::listen();
        if let Err(error) = named {
            println!("components: {error}");
            return exit(ExitCode::FAILURE.0);
        }
        set_up_grid();
        if let Some(port) = platform().descriptor().network_service.port() {
            match connect_network(&port.cell).await {
                Ok(port) => isola_net::manager::supply(port),
                Err(error) => println!("network of the service cell {:?}: {error}", port.cell),
            }
        }
        match isola_net::interface::start_over(over_links) {
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

/// Applies the settings of the resource grid with which the cell starts. An invalid one is reported and skipped.
fn set_up_grid() {
    let GridSetup { changes, rules } = &platform().descriptor().grid;
    for change in changes {
        if let Err(error) = GridResource::set_up(change) {
            println!("grid: {error}");
        }
    }
    for rule in rules {
        if let Err(error) = add_activity_rule(rule.clone()) {
            println!("grid: {error}");
        }
    }
}

/// Replaces no components.
pub fn no_components() -> Result<(), EbbInUse> {
    Ok(())
}
