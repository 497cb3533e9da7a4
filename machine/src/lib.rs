//! All access to the hardware. This crate contains every privileged instruction, every access to a device register and
//! every conversion of a number to a pointer; the drivers and the supervisor above it are safe Rust. [`authority`] has
//! the rule by which functions of this crate are safe, need an [`Authority`](authority::Authority), or are `unsafe`.
//!
//! | module | contents |
//! |---|---|
//! | [`authority`] | the right to program hardware that others depend on |
//! | [`image`] | entry point, note and segment bounds of an image |
//! | [`boot`] | the boot, from the loader's entry to a [`Machine`](boot::Machine) |
//! | [`memory`] | physical memory: ownership, and the firmware's memory map |
//! | [`paging`] | page tables |
//! | [`interrupts`] | interrupt handlers, and the interrupt window |
//! | [`apic`] | interrupt controllers: local APIC with its timer, I/O APIC |
//! | [`smp`] | the machine's other cores |
//! | [`topology`] | siblings, and cores that share a cache |
//! | [`space`] | the address space of a cell, as the supervisor builds and changes it |
//! | [`region_area`] | the region area: virtual memory that a cell maps itself |
//! | [`user`] | programs in user mode: entry and exit, page tables, processor state |
//! | [`cell`] | the running cell's descriptor, report, memory and devices |
//! | [`standalone`] | a cell image that boots without a supervisor |
//! | [`clock`] | the rates of clocks, and the time of day |
//! | [`cpu`] | the processor's features and counters |
//! | [`acpi`] | the firmware's tables |
//! | [`device`] | PCI functions, and virtio devices with registers in memory |
//! | [`restart`] | restart of an image, and recovery of its cells |
//! | [`registers`] | bounds-checked ranges of device registers |
//! | [`dma`] | memory that drivers and devices share, and its device addresses |
//! | [`dma_ring`] | rings and words in that memory |
//! | [`dma_peer`] | the same memory from the side of a device in software |
//! | [`backtrace`] | return addresses on a stack |
//! | [`heap`] | a heap for images that own the machine |
//! | [`serial`] | the serial line |
//! | [`power`] | exit and reset |
//!
//! Not here: drivers (`isola-drivers`), policy (`isola-supervisor`), and illegal accesses for tests
//! (`isola-fault-injection`).
#![no_std]
#![allow(
    unsafe_code,
    reason = "the door to hardware: its instructions, registers and raw memory have no safe form"
)]

extern crate alloc;

pub mod acpi;
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
pub mod heap;
pub mod image;
pub mod image_bounds;
pub mod interrupts;
pub mod memory;
mod memory_functions;
pub mod paging;
mod port;
pub mod power;
pub mod region_area;
pub mod registers;
pub mod restart;
pub mod serial;
pub mod smp;
pub mod space;
pub mod standalone;
mod switch;
mod tables;
pub mod topology;
pub mod user;
