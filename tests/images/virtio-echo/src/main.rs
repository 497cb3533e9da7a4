//! A test image: echoes every frame and every byte of the console, and halts when idle. So a lost wake-up shows as a
//! frame or byte that never comes back.
#![no_std]
#![no_main]

extern crate alloc;

mod console;
mod frame;
mod network;

use alloc::vec::Vec;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};
use isola_abi::descriptor::DeviceKind;
use isola_drivers::virtqueue::Pending;
use isola_machine::apic::InterruptMessage;
use isola_machine::apic::io::Trigger;
use isola_machine::authority::Authority;
use isola_machine::boot::Machine;
use isola_machine::device::Device;
use isola_machine::{apic, interrupts, power, serial_line};

isola_machine::machine_image!(main);
isola_machine::static_heap!(4 << 20);

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    isola_machine::image::panic_to_serial(info)
}

/// The vector of the first device; the others follow.
const FIRST_VECTOR: u8 = 0x40;

/// The devices that have interrupted since they were last handled, a bit each.
static RAISED: AtomicU32 = AtomicU32::new(0);

/// The number of interrupts.
static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

fn on_interrupt(vector: u8) {
    RAISED.fetch_or(1 << vector.wrapping_sub(FIRST_VECTOR), Ordering::Relaxed);
    INTERRUPTS.fetch_add(1, Ordering::Relaxed);
}

/// A device that echoes.
trait Echo {
    /// Acknowledges the device's interrupt. Called before the work, so that input during the work interrupts again.
    fn acknowledge(&mut self);

    /// Sends back all input. Returns whether the machine should end.
    fn work(&mut self) -> GrowthRequest;

    /// Enables interrupts.
    fn arm(&mut self) -> Pending;
}

/// Whether a frame has requested the machine's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrowthRequest {
    GoOn,
    End,
}

fn main(mut machine: Machine) -> ! {
    interrupts::set_interrupt_handler(machine.authority, on_interrupt);
    let devices = core::mem::take(&mut machine.devices);
    let mut echoes: Vec<alloc::boxed::Box<dyn Echo>> = Vec::new();
    for device in &devices {
        let vector = FIRST_VECTOR + echoes.len() as u8;
        match device.kind() {
            Some(DeviceKind::Network) => {
                let message = connect(&mut machine, device, vector);
                echoes.push(alloc::boxed::Box::new(network::Network::start(device.registers(), message)));
            }
            Some(DeviceKind::Console) => {
                let message = connect(&mut machine, device, vector);
                echoes.push(alloc::boxed::Box::new(console::ConsoleEcho::start(device.registers(), message)));
            }
            Some(DeviceKind::Block) | None => {}
        }
    }
    serial_line!("ready: {} devices", echoes.len());
    serve(machine.authority, &mut echoes)
}

/// Routes the device's interrupts to `vector`. Returns the message for the device to send, if it uses messages.
fn connect(machine: &mut Machine, device: &Device, vector: u8) -> Option<InterruptMessage> {
    let apic = machine.boot_core.apic;
    match device.interrupt_line() {
        Some(line) => {
            machine.lines.route(line, Trigger::Edge, apic, vector).expect("the line exists");
            None
        }
        None => Some(apic::message(machine.authority, apic, vector).expect("the boot core's id is small")),
    }
}

fn serve(authority: Authority, echoes: &mut [alloc::boxed::Box<dyn Echo>]) -> ! {
    loop {
        let raised = RAISED.swap(0, Ordering::Relaxed);
        let mut pending = Pending::No;
        for (nth, echo) in echoes.iter_mut().enumerate() {
            if raised & 1 << nth != 0 {
                echo.acknowledge();
            }
            if echo.work() == GrowthRequest::End {
                serial_line!("interrupts: {}", INTERRUPTS.load(Ordering::Relaxed));
                power::exit(authority, 0);
            }
            if echo.arm() == Pending::Yes {
                pending = Pending::Yes;
            }
        }
        if pending == Pending::No {
            interrupts::halt();
        }
    }
}
