//! The loop of a parked core: halt until an order arrives.

use super::control_block::{CoreControlBlock, Order};
use crate::apic::local;
use crate::{cpu, interrupts, switch, tables};

/// Called by `start.s`, on the core's own stack, in the image's address space, with the block of this core.
#[unsafe(no_mangle)]
extern "sysv64" fn isola_processor_main(block: &'static CoreControlBlock) -> ! {
    let park_context = block.park_context();
    cpu::protect();
    // SAFETY: the page and the table belong to this core for good; the address space that maps them is in use.
    unsafe { tables::load(park_context.core_page, park_context.core_page, park_context.interrupt_table) };
    local::enable();
    loop {
        block.park();
        let order = loop {
            match block.take() {
                Some(order) => break order,
                None => interrupts::halt(),
            }
        };
        match order {
            Order::Call { function, argument } => function(argument),
            Order::Enter(entry) => {
                // SAFETY: the code that gave the order has built the space for this core, and keeps it until the core
                // was reclaimed.
                unsafe {
                    tables::load(entry.core_page_here, entry.core_page, entry.interrupt_table);
                    switch::enter(entry.root, entry.stack_top, entry.entry, entry.argument)
                }
            }
        }
    }
}

/// Called by `start.s`, at every interrupt of a parked core.
#[unsafe(no_mangle)]
extern "sysv64" fn isola_parked_interrupted() {
    local::end_of_interrupt();
}
