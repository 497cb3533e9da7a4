//! The supervisor's image: boots the machine and serves management requests.
//!
//! | file | contents |
//! |---|---|
//! | `main` | the boot, step by step |
//! | `stock` | the inventory of the machine's resources |
//! | `serve` | the loop: console, notifications, deadlines |
//! | `effects` | the supervisor's hardware operations |
//! | `console` | the management console |
//! | `recovered` | the state that a failed supervisor left |
//! | `life` | signs of life, to detect a hang of the supervisor |
//! | `faults` | fault injection for tests |
//! | `memory`, `time`, `log_lines` | memory regions as pieces of the inventory; cycles as time; the log |
#![no_std]
#![no_main]

extern crate alloc;

mod console;
mod effects;
mod faults;
mod life;
mod log_lines;
mod memory;
mod recovered;
mod serve;
mod stock;
mod time;

use console::Port;
use core::panic::PanicInfo;
use effects::Hardware;
use isola_machine::boot::Machine;
use isola_machine::{interrupts, power, restart};
use isola_supervisor::cells::{Boot, Cells};
use isola_supervisor::effects::Effects;
use isola_supervisor::server::Server;
use time::Time;

isola_machine::machine_image!(main);

// The heap during boot; `stock::extend_heap` adds memory for the largest number of cells.
isola_machine::static_heap!(1 << 20);

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    isola_machine::image::panic_to_serial(info)
}

fn main(mut machine: Machine) -> ! {
    let time = Time::new(machine.clock, machine.started_cycles);
    log_lines::begin(time);
    let authority = machine.authority;
    interrupts::set_interrupt_handler(authority, serve::on_interrupt);
    log::info!(
        "isola supervisor {}, version {} of the protocol",
        env!("CARGO_PKG_VERSION"),
        isola_abi::VERSION
    );

    let own_bytes = stock::extend_heap(&mut machine, &HEAP) + machine.own_bytes;
    let apic = machine.boot_core.apic;
    let opened = Port::find(&mut machine.devices, &mut machine.lines, apic, authority)
        .and_then(|port| Ok((port.open()?, port)))
        .inspect_err(|error| log::error!("{error}"));
    let Ok((mut console, port)) = opened else { machine.power.off() };
    let left = recovered::take_images(&mut machine);
    let mut inventory = stock::inventory(&mut machine);
    let nodes = machine.space.memory_nodes().clone();
    let recovered = machine
        .recovered
        .take()
        .map(|recovered| recovered::enter(recovered, &time, &nodes, &mut inventory, left, authority));
    let hardware = Hardware::new(time, machine);
    let boot = Boot {
        unix_ns: time.started_unix_ns(),
        ready_ns: hardware.now_ns(),
        tsc_hz: time.clock().tsc_hz,
        memory_supervisor: own_bytes,
        restarts: recovered.as_ref().map_or(0, |recovered| recovered.number),
    };
    let mut server = match recovered {
        Some(recovered) => Server::after_another(Cells::recover(hardware, inventory, boot, recovered)),
        None => Server::new(Cells::new(hardware, inventory, boot)),
    };
    if restart::arm(authority, port.device()) {
        life::watch(authority, &time);
    } else {
        log::warn!("this machine is such that the supervisor could not begin anew on it, should it go wrong");
    }
    log::info!("ready");

    let mut log = serve::Log::of(server.cells().journal());
    while let Err(fault) = serve::serve(&mut server, &mut console, &mut log) {
        // Cells do not depend on the console, so they keep running.
        log::error!("the management console has failed, and is started anew: {fault}");
        drop(console);
        console = match port.open() {
            Ok(console) => console,
            Err(error) => {
                log::error!("{error}");
                serve::serve_cells(&mut server, &mut log)
            }
        };
    }
    log::info!("off, as asked");
    server.cells().effects().power_off();
    power::stop()
}
