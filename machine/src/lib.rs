//! The one door to hardware. Everything that executes a privileged instruction, touches a device register or
//! turns a number into a pointer is here; the layers above are safe Rust. [`authority`] has the rule by which functions
//! of this crate are safe, need an [`Authority`](authority::Authority), or are `unsafe`.
//!
//! | module | what |
//! |---|---|
//! | [`authority`] | the right to program hardware that others depend on |
//! | [`image`] | what makes a binary an image |
//! | [`boot`] | from the loader's entry to an image that knows its machine |
//! | [`memory`] | physical memory: who owns it, what firmware left in it |
//! | [`paging`] | page tables |
//! | [`interrupts`] | when interrupts come, and where they lead |
//! | [`apic`] | interrupt controllers: of a core (also its timer), and of the machine |
//! | [`smp`] | the machine's other cores |
//! | [`topology`] | which cores are siblings, or share a cache |
//! | [`space`] | the address space of a cell |
//! | [`window`] | the virtual memory that a cell maps itself |
//! | [`cell`] | a cell as its own code finds it |
//! | [`alone`] | a cell image that boots without a supervisor |
//! | [`clock`] | how fast clocks run, and the time of day |
//! | [`cpu`] | the processor's features and counters |
//! | [`acpi`] | the firmware's tables |
//! | [`device`] | devices: on PCI, and virtio with registers in memory |
//! | [`restart`] | an image that restarts, and finds its cells again |
//! | [`registers`] | bounds-checked windows of device registers |
//! | [`dma`] | memory that drivers and devices share, and the addresses by which devices know it |
//! | [`dma_peer`] | the same memory as a device in software sees it |
//! | [`backtrace`] | return addresses on a stack |
//! | [`heap`] | a heap for images that own the machine |
//! | [`serial`] | the serial line |
//! | [`fault_injection`] | breaking the rules on purpose |
//! | [`power`] | exit and reset |
//!
//! Not here: drivers (`isola-drivers`), and what to do with the machine.
#![no_std]
#![allow(
    unsafe_code,
    reason = "the door to hardware: its instructions, registers and raw memory have no safe form"
)]

extern crate alloc;

pub mod acpi;
pub mod alone;
pub mod apic;
pub mod authority;
pub mod backtrace;
pub mod boot;
pub mod cell;
pub mod clock;
pub mod cpu;
pub mod device;
pub mod dma;
pub mod dma_peer;
pub mod dma_ring;
pub mod fault_injection;
pub mod heap;
pub mod image;
pub mod interrupts;
pub mod memory;
mod memory_functions;
pub mod paging;
mod port;
pub mod power;
pub mod registers;
pub mod restart;
pub mod serial;
pub mod smp;
pub mod space;
mod switch;
mod tables;
pub mod topology;
pub mod window;
