//! The supervisor's image: boots the machine and serves management requests.
//!
//! | file | contents |
//! |---|---|
//! | `main` | the boot, step by step |
//! | `serve` | the loop: console, notifications, deadlines |
//! | `console` | the management console |
//! | `log_lines` | the log |
//!
//! Not here: hardware operations, which are in `isola-supervisor-machine`.
#![no_std]
#![no_main]

extern crate alloc;

mod console;
mod log_lines;
mod serve;

use console::Port;
use core::panic::PanicInfo;
use isola_machine::boot::Machine;
use isola_machine::{interrupts, power, restart};
use isola_supervisor::cells::{Boot, Cells, Checkpoint, SupervisorState};
use isola_supervisor::heap;
use isola_supervisor::server::Server;
use isola_supervisor_core::Hardware;
use isola_supervisor_machine::inventory::{extend_heap, inventory};
use isola_supervisor_machine::{MachineHardware, Time, heartbeat, recovered};

isola_machine::machine_image!(main);

// The heap during boot; `extend_heap` adds memory for the largest number of cells.
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

    let heap_bytes = heap::bytes(machine.cores.len());
    let own_bytes = extend_heap(&mut machine, &HEAP, heap_bytes) + machine.own_bytes;
    let apic = machine.boot_core.apic;
    let opened = Port::find(&mut machine.devices, &mut machine.lines, apic, authority)
        .and_then(|port| Ok((port.open()?, port)))
        .inspect_err(|error| log::error!("{error}"));
    let Ok((mut console, port)) = opened else { machine.power.off() };
    let checkpoint = restart::checkpoint().map(|bytes| Checkpoint::decode(&bytes)).unwrap_or_default();
    let images =
        recovered::take_images(&mut machine, checkpoint.images.iter().copied(), |image| image.memory);
    let mut inventory = inventory(&mut machine);
    let nodes = machine.space.memory_nodes().clone();
    let recovered = machine.recovered.take().map(|recovered| {
        let ranges = images.iter().map(|(image, _)| image.memory);
        recovered::enter(recovered, &time, &nodes, &mut inventory, ranges, authority)
    });
    let hardware = MachineHardware::new(time, machine, serve::vector::NOTIFICATION);
    let boot = Boot {
        unix_ns: time.started_unix_ns(),
        ready_ns: hardware.now_ns(),
        tsc_hz: time.clock().tsc_hz,
        memory_supervisor: own_bytes,
        restarts: recovered.as_ref().map_or(0, |(recovered, _)| recovered.number),
    };
    let mut server = match recovered {
        Some((recovered, texts)) => {
            let state = SupervisorState { checkpoint, journal: restart::journal_entries(), images, texts };
            Server::after_another(Cells::recover(hardware, inventory, boot, recovered, state))
        }
        None => Server::new(Cells::new(hardware, inventory, boot)),
    };
    if restart::arm(authority, port.device()) {
        heartbeat::watch(authority, &time);
    } else {
        log::warn!("on this machine the supervisor cannot restart after a failure");
    }
    log::info!("ready");

    let mut log = serve::Log::of(server.cells().journal());
    while let Err(fault) = serve::serve(&mut server, &mut console, &mut log) {
        // Cells do not depend on the console, so they keep running.
        log::error!("the management console has failed, and is restarted: {fault}");
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
    server.cells().core().power_off();
    power::stop()
}
